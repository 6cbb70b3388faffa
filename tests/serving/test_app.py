"""The API over a fake index: answers, and refusals of what cannot be answered."""

from __future__ import annotations

import io

import pytest
from helpers.app_clients import client_of, huge_png, png, refused, upload
from helpers.fake_searcher import FakeSearcher
from PIL import Image

httpx = pytest.importorskip("httpx", reason="the test client needs httpx")


# ------------------------------------------------------------------------------------------------- answers


def test_address_body_and_form_give_the_same_hits(client):
    by_address = client.get(
        "/search", params={"text": "white storage tanks", "k": "5", "where": "class=odd"}
    ).json()
    body = {"text": "white storage tanks", "k": 5, "filters": {"columns": {"class": ["odd"]}}}
    by_body = client.post("/search", json=body).json()
    fields = {"text": "white storage tanks", "k": "5", "where": "class=odd"}
    by_form = client.post("/search", data=fields, files={}, headers={}).json()
    assert by_form["error"].startswith("content type")  # a form that is not multipart
    by_form = client.post("/search", files={name: (None, value) for name, value in fields.items()}).json()
    assert by_address["hits"] == by_body["hits"] == by_form["hits"]
    assert len(by_address["hits"]) == 5 and by_address["version"] == "000001" and by_address["count"] == 24
    assert {hit["metadata"]["class"] for hit in by_address["hits"]} == {"odd"}


def test_a_hit_carries_all_there_is(client, searcher):
    hit = client.get("/search", params={"text": "plane", "k": "1"}).json()["hits"][0]
    assert hit["id"] == hit["image_id"] == "scene/000" and hit["kind"] == "image"
    assert hit["caption"] == searcher.captions[0] and hit["image"] == "000.png"
    assert hit["bounds"] == [5.8, 45.9, 6.3, 46.24]
    assert hit["geometry"]["type"] == "Polygon"
    assert hit["metadata"]["time"] == "2024-01-01T10:00:00Z"
    assert 0 <= hit["probability"] <= 1


def test_captions_name_their_image(client):
    hit = client.get("/search", params={"text": "plane", "kind": "caption", "k": "1"}).json()["hits"][0]
    assert (hit["id"], hit["image_id"], hit["kind"]) == ("scene/000#0", "scene/000", "caption")


def test_a_image_finds_itself_uploaded_or_by_its_id(client, searcher):
    uploaded = upload(client, png(searcher.images[7]), k="3").json()["hits"]
    by_id = client.get("/search", params={"like": "scene/007", "k": "3"}).json()["hits"]
    assert uploaded[0]["id"] == "scene/007" and uploaded == by_id
    query = searcher.asked[-1][0][0]
    assert query.text is None and query.image.size == (96, 96)


def test_words_and_image_together(client, searcher):
    answer = upload(client, png(searcher.images[7]), k="3", text="blue water", text_weight="0.75")
    assert answer.status_code == 200
    query = searcher.asked[-1][0][0]
    assert (query.text, query.text_weight, query.image.size) == ("blue water", 0.75, (96, 96))


def test_filters_reach_the_index(client, searcher):
    flat = {
        "text": "a",
        "box": "5,45,7,47",
        "start": "2024-02",
        "stop": "2024-09",
        "k": "50",
        "shortlist": "10",
        "near": "6,46",
        "radius": "2.5",
    }
    answer = client.get("/search", params=flat)
    assert answer.status_code == 200
    _, k, shortlist, filters = searcher.asked[-1]
    assert (filters.near, filters.radius) == ((6.0, 46.0, 6.0, 46.0), 2.5)
    assert (k, shortlist) == (50, 50)  # a shortlist is never shorter than the answer
    assert (filters.box, filters.start, filters.stop) == ((5.0, 45.0, 7.0, 47.0), "2024-02", "2024-09")


def test_images_come_reduced_and_are_known_again(client):
    small = client.get("/images/scene/003", params={"size": "50"})
    assert small.status_code == 200 and small.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(small.content)).size == (96, 96)
    again = client.get("/images/scene%2F003?size=96", headers={"If-None-Match": small.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    other = client.get("/images/scene/004?size=96", headers={"If-None-Match": small.headers["etag"]})
    assert other.status_code == 200 and other.headers["etag"] != small.headers["etag"]


def test_large_images_are_bounded():
    searcher = FakeSearcher()
    searcher.images[0] = Image.new("RGB", (4000, 1000), "red")
    with client_of(searcher) as client:
        full = Image.open(io.BytesIO(client.get("/images/scene/000").content))
        small = Image.open(io.BytesIO(client.get("/images/scene/000?size=300").content))
    assert full.size == (1600, 400) and small.size == (320, 80)


def test_an_explanation_places_each_word(client):
    answer = client.get("/explain", params={"id": "scene/000", "text": "a  grey plane and a plane"}).json()
    text = answer["text"]
    assert text == "a grey plane and a plane"
    places = [(word["start"], word["stop"]) for word in answer["words"]]
    assert [text[start:stop] for start, stop in places] == [word["word"] for word in answer["words"]]
    assert places == sorted(places) and places[-1] == (19, 24)
    assert answer["words"][0]["regions"][0] == [0.9, 0.05, 0.05, 0.05]
    assert (answer["words"][0]["positive"], answer["words"][0]["negative"]) == (0.3, -0.05)
    assert (answer["score"], answer["boundary"]) == (0.5, 0.2)


def test_info_health_and_metrics(client):
    info = client.get("/info").json()
    assert (info["version"], info["count"], info["captions"], info["model"]) == (
        "000001",
        24,
        24,
        "fake words",
    )
    assert info["columns"]["class"] == ["even", "odd"] and info["has_places"] and info["has_times"]
    assert client.get("/healthz").json() == {"status": "ok", "version": "000001", "problem": None}
    text = client.get("/metrics").text
    assert 'pmpguard_requests_total{method="GET",route="/info",status="200"} 1.0' in text
    assert 'pmpguard_index_info{model="fake words",version="000001"} 1.0' in text
    assert "pmpguard_index_items 24.0" in text


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({}, 422),
        ({"text": ""}, 422),
        ({"text": "   "}, 422),
        ({"text": "x" * 10_000}, 422),
        ({"text": "a\0b"}, 422),
        ({"text": "!!!"}, 422),
        ({"text": "a", "k": "0"}, 422),
        ({"text": "a", "k": "many"}, 422),
        ({"text": "a", "url": "http://example.org/a.png"}, 422),
        ({"text": "a", "image": "http://example.org/a.png"}, 422),
        ({"text": "a", "where": "password=x"}, 422),
        ({"like": "nobody"}, 404),
        ({"like": "../../etc/passwd"}, 404),
    ],
)
def test_wrong_addresses(client, parameters, status):
    refused(client.get("/search", params=parameters), status)


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"[]", "application/json; charset=utf-8", 422),
        (b'{"text": "\\ud800"}', "application/json", 422),
        (b'{"text": NaN}', "application/json", 422),
        (b'{"text": "a", "k": 1e999}', "application/json", 422),
        (b"text=a", "application/x-www-form-urlencoded", 415),
        (b"<a/>", "text/xml", 415),
        (b"", "", 415),
        (b"abc", "multipart/form-data", 400),
        (b"abc", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n\r\nabc", "multipart/form-data; boundary=x", 400),
    ],
)
def test_wrong_bodies(client, content, content_type, status):
    headers = {"content-type": content_type} if content_type else {}
    refused(client.post("/search", content=content, headers=headers), status)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_files_that_are_no_images(client, data):
    assert refused(upload(client, data), 422).startswith("image: ")


def test_a_truncated_image(client, searcher):
    stream = io.BytesIO()
    searcher.images[0].save(stream, "JPEG")
    assert "image: " in refused(upload(client, stream.getvalue()[:-400]), 422)


@pytest.mark.parametrize("side", [12_000, 20_000])  # Pillow itself only warns of the first
def test_bombs_are_refused(client, side):
    data = huge_png(side, side)
    assert len(data) < 100_000
    assert "pixels" in refused(upload(client, data), 413)


def test_wrong_forms(client):
    image = png(Image.new("RGB", (8, 8)))
    refused(client.post("/search", files={"photo": ("a.png", image)}), 422)
    two = [("image", ("a.png", image)), ("image", ("b.png", image))]
    refused(client.post("/search", files=two), 400)
    both = {"image": ("a.png", image), "like": (None, "scene/001")}
    refused(client.post("/search", files=both), 422)
    refused(client.post("/search", files={"image": (None, "http://example.org/a.png")}), 422)


@pytest.mark.parametrize(
    "path",
    [
        "/images/nobody",
        "/images/..%2f..%2fetc%2fpasswd",
        "/images/%2e%2e/%2e%2e/etc/passwd",
        "/images//etc/passwd",
        "/images/scene/000.png",
        "/explain?id=..%2f..%2fetc%2fpasswd&text=a",
        "/page/..%2fapp.py",
        "/page/app.py",
        "/page/",
        "/docs",
        "/redoc",
        "/nothing",
    ],
)
def test_nothing_but_the_index_can_be_read(client, path):
    refused(client.get(path), 404)


@pytest.mark.parametrize(
    "path",
    [
        "/images/scene/000?size=0",
        "/images/scene/000?size=abc",
        "/images/scene/000?size=1&size=2",
        "/images/scene/000?width=5",
        "/images/a%00b",
        f"/images/{'x' * 600}",
        "/explain",
        "/explain?id=scene/000",
        "/explain?id=scene/000&text=",
        "/explain?id=scene/000&text=a%00",
        "/explain?id=scene/000&text=a&text=b",
        f"/explain?id=scene/000&text={'x' * 10_000}",
    ],
)
def test_wrong_questions_about_one_image(client, path):
    refused(client.get(path), 422)


def test_other_methods(client):
    refused(client.delete("/search"), 405)
    refused(client.post("/images/scene/000"), 405)
    refused(client.options("/search"), 405)
