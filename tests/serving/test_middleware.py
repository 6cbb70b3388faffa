"""The server under strangers and over time: headers, limits, load, an index that changes."""

from __future__ import annotations

import json
import select
import socket
import threading
import time

import pytest
from helpers.app_clients import client_of, refused, wait_for
from helpers.fake_searcher import FakeSearcher, gone
from helpers.running_server import running_server

from pmpguard.data.images.decode import ImageError
from pmpguard.serving.app import create_app
from pmpguard.serving.config import ServerConfig

httpx = pytest.importorskip("httpx", reason="the test client needs httpx")


# -------------------------------------------------------------------------------------------------- limits


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
    config = ServerConfig(body_bytes=200_000)
    with running_server(create_app(FakeSearcher(), config=config)) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(
                b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
            )
            first = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            to_device = 0
            for data in [first, *[bytes(50_000)] * 2000]:
                if select.select([connection], [], [], 0.001)[0]:  # it answers already
                    break
                connection.sendall(b"%x\r\n%b\r\n" % (len(data), data))
                to_device += len(data)
            assert b" 413 " in connection.recv(4096)
        assert 200_000 < to_device < 20_000_000


def test_a_body_that_does_not_arrive_is_given_up():
    with running_server(create_app(FakeSearcher(), config=ServerConfig(body_seconds=0.2))) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(
                b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            assert b" 408 " in connection.recv(4096)


def test_a_length_announced_in_two_ways_is_refused_and_what_follows_is_not_read():
    smuggled = b"GET /info HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with running_server(create_app(FakeSearcher())) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(
                b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Content-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
            )
            received = b"".join(iter(lambda: connection.recv(4096), b""))
    assert received.startswith(b"HTTP/1.1 400 ") and received.count(b"HTTP/1.1 ") == 1


def test_too_many_questions_are_refused_and_the_rest_answered():
    searcher = FakeSearcher()
    config = ServerConfig(waiting=4, batch=1, gather_seconds=0)
    with client_of(searcher, config=config) as client:
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
    searcher.gate.clear()
    answers = []
    with running_server(create_app(searcher)) as address:
        asking = threading.Thread(target=lambda: answers.append(httpx.get(f"{address}/search?text=a")))
        asking.start()
        assert searcher.entered.wait(10)
        threading.Timer(0.4, searcher.gate.set).start()  # the server has been told to stop by then
    asking.join()
    assert [answer.status_code for answer in answers] == [200]
    assert searcher.closed


def test_the_openapi_names_every_route(client):
    described = json.loads(client.get("/openapi.json").content)
    assert set(described["paths"]) == {"/search", "/images/{id}", "/explain", "/info", "/healthz", "/metrics"}
    assert set(described["paths"]["/search"]) == {"get", "post"}
    content = described["paths"]["/search"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "multipart/form-data"}
