"""The API over a fake index: answers, refusals, headers, limits, tokens, and an index that goes away."""

from __future__ import annotations

import io
import json
import select
import socket
import struct
import threading
import time
import zlib

import pytest
from fake_searcher import FakeSearcher, gone
from PIL import Image
from running_server import running_server

from pmpguard.data.images import ImageError
from pmpguard.serving.app import create_app
from pmpguard.serving.limits import Limits

httpx = pytest.importorskip("httpx", reason="the test client needs httpx")
TestClient = pytest.importorskip("fastapi.testclient", reason="the extra serve is not installed").TestClient


def client_of(searcher: FakeSearcher, **options: object) -> TestClient:
    options = {"hosts": None, "refresh_seconds": 0.05, **options}
    return TestClient(create_app(searcher, **options), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def searcher():
    return FakeSearcher()


@pytest.fixture(scope="module")
def client(searcher):
    with client_of(searcher) as client:
        yield client
    assert searcher.closed


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A small file that claims to be, and is, a picture of that many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((width + 7) // 8 + 1) * height, 9)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def upload(client: TestClient, data: bytes, **fields: str):
    return client.post("/search", data=fields, files={"image": ("a.png", data, "image/png")})


def refused(response, status: int) -> str:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error", "fix"}
    assert "Traceback" not in response.text
    return response.json()["error"]


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
    assert hit["id"] == hit["picture"] == "scene/000" and hit["kind"] == "image"
    assert hit["caption"] == searcher.captions[0] and hit["image"] == "000.png"
    assert hit["bounds"] == [5.8, 45.9, 6.3, 46.24]
    assert hit["geometry"]["type"] == "Polygon"
    assert hit["metadata"]["time"] == "2024-01-01T10:00:00Z"
    assert 0 <= hit["probability"] <= 1


def test_captions_name_their_picture(client):
    hit = client.get("/search", params={"text": "plane", "kind": "caption", "k": "1"}).json()["hits"][0]
    assert (hit["id"], hit["picture"], hit["kind"]) == ("scene/000#0", "scene/000", "caption")


def test_a_picture_finds_itself_uploaded_or_by_its_id(client, searcher):
    uploaded = upload(client, png(searcher.pictures[7]), k="3").json()["hits"]
    by_id = client.get("/search", params={"like": "scene/007", "k": "3"}).json()["hits"]
    assert uploaded[0]["id"] == "scene/007" and uploaded == by_id
    query = searcher.asked[-1][0][0]
    assert query.text is None and query.image.size == (96, 96)


def test_words_and_picture_together(client, searcher):
    answer = upload(client, png(searcher.pictures[7]), k="3", text="blue water", text_weight="0.75")
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
    }
    answer = client.get("/search", params=flat)
    assert answer.status_code == 200
    _, k, shortlist, filters = searcher.asked[-1]
    assert (k, shortlist) == (50, 50)  # a shortlist is never shorter than the answer
    assert (filters.box, filters.start, filters.stop) == ((5.0, 45.0, 7.0, 47.0), "2024-02", "2024-09")


def test_pictures_come_reduced_and_are_known_again(client):
    small = client.get("/images/scene/003", params={"size": "50"})
    assert small.status_code == 200 and small.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(small.content)).size == (96, 96)
    again = client.get("/images/scene%2F003?size=96", headers={"If-None-Match": small.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    other = client.get("/images/scene/004?size=96", headers={"If-None-Match": small.headers["etag"]})
    assert other.status_code == 200 and other.headers["etag"] != small.headers["etag"]


def test_large_pictures_are_bounded():
    searcher = FakeSearcher()
    searcher.pictures[0] = Image.new("RGB", (4000, 1000), "red")
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
    assert info["columns"]["class"] == ["even", "odd"]
    assert client.get("/healthz").json() == {"status": "ok", "version": "000001", "problem": None}
    text = client.get("/metrics").text
    assert 'pmpguard_requests_total{route="/info",method="GET",status="200"} 1' in text
    assert 'pmpguard_index_info{version="000001",model="fake words"} 1' in text
    assert "pmpguard_index_items 24" in text


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


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"not a picture", b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_files_that_are_no_pictures(client, data):
    assert refused(upload(client, data), 422).startswith("image: ")


def test_a_truncated_picture(client, searcher):
    stream = io.BytesIO()
    searcher.pictures[0].save(stream, "JPEG")
    assert "image: " in refused(upload(client, stream.getvalue()[:-400]), 422)


@pytest.mark.parametrize("side", [12_000, 20_000])  # Pillow itself only warns of the first
def test_bombs_are_refused_quickly(client, side):
    data = huge_png(side, side)
    assert len(data) < 100_000
    upload(client, b"x")  # the worker has started
    started = time.perf_counter()
    assert "pixels" in refused(upload(client, data), 413)
    assert time.perf_counter() - started < 1


def test_wrong_forms(client):
    picture = png(Image.new("RGB", (8, 8)))
    refused(client.post("/search", files={"picture": ("a.png", picture)}), 422)
    two = [("image", ("a.png", picture)), ("image", ("b.png", picture))]
    refused(client.post("/search", files=two), 400)
    both = {"image": ("a.png", picture), "like": (None, "scene/001")}
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
def test_wrong_questions_about_one_picture(client, path):
    refused(client.get(path), 422)


def test_other_methods(client):
    refused(client.delete("/search"), 405)
    refused(client.post("/images/scene/000"), 405)
    refused(client.options("/search"), 405)


# --------------------------------------------------------------------------------------- limits and access


def test_every_answer_carries_the_security_headers_and_none_allows_other_origins(client):
    for response in (
        client.get("/", headers={"Origin": "http://evil.example"}),
        client.get("/search?text=a", headers={"Origin": "http://evil.example"}),
        client.get("/nothing"),
        client.post("/search", content=b"x" * 17_000_000),
    ):
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_body_over_the_limit_is_refused_announced_or_not(client):
    refused(client.post("/search", content=b"x" * (17 * 2**20)), 413)

    def chunks():
        yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
        for _ in range(64):
            yield bytes(2**20)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    refused(client.post("/search", content=chunks(), headers=headers), 413)
    refused(client.post("/search", content=chunks(), headers={"content-type": "application/json"}), 413)


def test_a_chunked_body_is_cut_off_while_it_is_sent():
    """Over a real socket: the server answers and hangs up after the limit, long before the body would end."""
    limits = Limits(body_bytes=200_000)
    with running_server(create_app(FakeSearcher(), limits=limits)) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(
                b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
            )
            first = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            sent = 0
            for data in [first, *[bytes(50_000)] * 2000]:
                if select.select([connection], [], [], 0.001)[0]:  # it answers already
                    break
                connection.sendall(b"%x\r\n%b\r\n" % (len(data), data))
                sent += len(data)
            assert b" 413 " in connection.recv(4096)
        assert 200_000 < sent < 20_000_000


def test_a_body_that_does_not_arrive_is_given_up():
    with running_server(create_app(FakeSearcher(), limits=Limits(body_seconds=0.2))) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(
                b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            assert b" 408 " in connection.recv(4096)


def test_a_token_is_asked_for_everywhere_but_for_the_page_and_health():
    with client_of(FakeSearcher(), token="s3cret") as client:
        for path in ("/search?text=a", "/images/scene/000", "/explain?id=a&text=b", "/info", "/metrics"):
            response = client.get(path)
            refused(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
            for wrong in ("Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret", "Bearer ", "Bearer é"):
                refused(client.get(path, headers={"Authorization": wrong.encode("latin-1")}), 401)
        refused(client.get("/openapi.json"), 401)
        refused(client.post("/search", content=b"x" * 17_000_000), 401)
        assert client.get("/").status_code == client.get("/healthz").status_code == 200
        assert client.get("/info", headers={"Authorization": "bearer s3cret"}).status_code == 200


def test_other_host_names_are_refused():
    with client_of(FakeSearcher(), hosts=frozenset({"127.0.0.1", "localhost"})) as client:
        for host in ("evil.example", "127.0.0.1.evil.example:80", "", "localhost:80:80"):
            refused(client.get("/info", headers={"Host": host}), 421)
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1"):
            assert client.get("/info", headers={"Host": host}).status_code == 200


def test_too_many_questions_are_refused_and_the_rest_answered():
    searcher = FakeSearcher()
    limits = Limits(waiting=4, batch=1, gather_seconds=0)
    with client_of(searcher, limits=limits) as client:
        searcher.gate.clear()
        responses = []

        def search() -> None:
            responses.append(client.get("/search", params={"text": "a"}))

        threads = [threading.Thread(target=search) for _ in range(12)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 5
        while len(responses) < 7 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(responses) == 7  # one is being answered, four wait
        searcher.gate.set()
        for thread in threads:
            thread.join()
    statuses = [response.status_code for response in responses]
    assert statuses == [503] * 7 + [200] * 5
    assert responses[0].headers["retry-after"] == "1"


# ------------------------------------------------------------------------------------ an index that changes


def wait_for(condition) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_new_version_is_taken_up():
    searcher = FakeSearcher()
    with client_of(searcher) as client:
        searcher.next_version = "000002"
        wait_for(lambda: client.get("/info").json()["version"] == "000002")
        assert client.get("/search?text=a").json()["version"] == "000002"
        wait_for(lambda: 'pmpguard_index_refreshes_total{result="swapped"} 1' in client.get("/metrics").text)


@pytest.mark.parametrize(
    "error", [gone(), FileNotFoundError("index"), ImageError("missing", "/x", "no such file")]
)
def test_an_index_that_goes_away_and_comes_back(error, caplog):
    searcher = FakeSearcher()
    with client_of(searcher) as client:
        searcher.broken = error
        wait_for(lambda: client.get("/healthz").json()["status"] == "degraded")
        message = refused(client.get("/images/scene/000"), 503)
        assert "/x" not in message and "/somewhere" not in message
        if not isinstance(error, ImageError):
            refused(client.get("/search?text=a"), 503)
            refused(client.get("/explain?id=scene/000&text=a"), 503)
        assert client.get("/").status_code == 200
        searcher.broken = None
        wait_for(lambda: client.get("/healthz").json()["status"] == "ok")
        assert client.get("/search?text=a").status_code == 200


def test_our_own_mistake_is_a_500_and_the_server_stays_up():
    searcher = FakeSearcher()
    with client_of(searcher, refresh_seconds=100) as client:
        searcher.broken = ZeroDivisionError("oh")
        response = client.get("/search?text=a")
        assert refused(response, 500) == "the server made a mistake"
        assert response.headers["x-content-type-options"] == "nosniff"
        searcher.broken = None
        assert client.get("/search?text=a").status_code == 200


def test_running_requests_are_answered_when_the_server_stops():
    searcher = FakeSearcher()
    searcher.delay = 0.4
    answers = []
    with running_server(create_app(searcher)) as address:
        asking = threading.Thread(target=lambda: answers.append(httpx.get(f"{address}/search?text=a")))
        asking.start()
        time.sleep(0.2)
    asking.join()
    assert [answer.status_code for answer in answers] == [200]
    assert searcher.closed


def test_the_openapi_names_every_route(client):
    described = json.loads(client.get("/openapi.json").content)
    assert set(described["paths"]) == {"/search", "/images/{id}", "/explain", "/info", "/healthz", "/metrics"}
    assert set(described["paths"]["/search"]) == {"get", "post"}
    content = described["paths"]["/search"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "multipart/form-data"}
