"""Connections are bounded and may not be silent for long, and the log stays small."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest
from helpers.app_clients import png
from helpers.fake_searcher import FakeSearcher
from helpers.running_server import running_server
from PIL import Image

from pmpguard.serving import service
from pmpguard.serving.app import create_app
from pmpguard.serving.config import ServerConfig
from pmpguard.serving.connections import ConnectionTable, RepeatFilter

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")


@dataclass(eq=False)
class FakeConnection:
    """A connection from an address that has been waited for since some time, or is at work."""

    address: str
    waiting_since: float | None = None
    aborted: bool = field(default=False)

    def abort(self) -> None:
        self.aborted = True


def test_the_connection_waited_for_longest_makes_way():
    table = ConnectionTable(3, 3)
    late, early, working = FakeConnection("a", 7.0), FakeConnection("b", 2.0), FakeConnection("c")
    assert all(map(table.admit, (late, early, working))) and len(table) == 3
    assert table.admit(FakeConnection("d", 9.0))
    assert (late.aborted, early.aborted, working.aborted) == (False, True, False) and len(table) == 3


def test_an_address_at_its_bound_displaces_its_own_connections_only():
    table = ConnectionTable(10, 2)
    other = FakeConnection("b", 0.0)
    own = [FakeConnection("a", 5.0), FakeConnection("a", 4.0)]
    assert all(map(table.admit, (other, *own)))
    assert table.admit(FakeConnection("a", 6.0))
    assert [one.aborted for one in (other, *own)] == [False, False, True]


def test_nobody_at_work_is_displaced():
    table = ConnectionTable(2, 2)
    working = [FakeConnection("a"), FakeConnection("a")]
    assert all(map(table.admit, working))
    assert not table.admit(FakeConnection("a", 1.0)) and not table.admit(FakeConnection("b", 1.0))
    table.remove(working[0])
    table.remove(working[0])  # closing is noticed in more than one place
    assert table.admit(FakeConnection("b", 1.0)) and len(table) == 2


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


@pytest.mark.parametrize("sent", [b"", b"GET /info HTTP/1.1\r\nHost: 127.0", b"GET /healthz HTTP/1.1\r\n"])
def test_a_silent_connection_and_a_head_that_never_ends_are_closed(sent):
    config = ServerConfig(idle_seconds=0.2)
    with running_server(create_app(FakeSearcher(), config=config), config) as address:
        with connect(address) as connection:
            connection.sendall(sent)
            with contextlib.suppress(ConnectionError):
                for _ in range(100):  # a header every now and then does not help
                    connection.settimeout(0.1)
                    with contextlib.suppress(TimeoutError):
                        assert connection.recv(100) == b""
                        break
                    if sent:
                        connection.sendall(b"X-Slow: 1\r\n"[:1])
                else:
                    pytest.fail("the connection stays open")
        assert httpx.get(f"{address}/healthz").status_code == 200


def test_a_request_may_take_longer_than_a_connection_may_be_silent():
    config = ServerConfig(idle_seconds=0.1)
    backend = FakeSearcher()
    backend.gate.clear()
    with (
        running_server(create_app(backend, config=config), config) as address,
        connect(address) as connection,
    ):
        connection.sendall(b"GET /search?text=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(0.5)
        backend.gate.set()
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_connection_too_many_is_told_so():
    config = ServerConfig(connections_per_address=1)
    backend = FakeSearcher()
    backend.gate.clear()
    with running_server(create_app(backend, config=config), config) as address, connect(address) as working:
        working.sendall(b"GET /search?text=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert backend.entered.wait(10)
        response = httpx.get(f"{address}/healthz")
        assert response.status_code == 503 and set(response.json()) == {"error", "fix"}
        backend.gate.set()
        assert working.recv(4096).startswith(b"HTTP/1.1 200 ")


RUDE_BYTES, RUDE_REQUESTS = 1 << 20, 30


async def large(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(RUDE_BYTES)})


def rude_client(address: str) -> socket.socket:
    """It asks for much in one go and takes nothing of it in."""
    connection = connect(address)
    connection.sendall(RUDE_REQUESTS * b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    time.sleep(0.3)
    return connection


def test_who_does_not_take_in_what_was_asked_for_makes_way():
    config = ServerConfig(connections_per_address=1)
    with running_server(large, config) as address, rude_client(address):
        assert httpx.get(address).status_code == 200


def test_who_takes_in_nothing_is_closed():
    config = ServerConfig(idle_seconds=0.2)
    with running_server(large, config) as address, rude_client(address) as connection:
        time.sleep(0.8)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 20):
                received += len(data)
        assert received < RUDE_BYTES * RUDE_REQUESTS


def test_slow_uploads_keep_no_other_from_being_decoded():
    config = ServerConfig(uploads=1)
    head = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
    head += b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
    with (
        running_server(create_app(FakeSearcher(), config=config), config) as address,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            stack.enter_context(connect(address)).sendall(head)
        files = {"image": ("a.png", png(Image.new("RGB", (8, 8))), "image/png")}
        assert httpx.post(f"{address}/search", files=files, timeout=30).status_code == 200


SERVER = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (640, 640))
from helpers.fake_searcher import FakeSearcher
from pmpguard.serving.run import serve_index
serve_index(FakeSearcher(), port=0, announce=lambda address: print(address, flush=True))
"""


@pytest.mark.slow
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 900, reason="needs 900 open files here")
def test_more_silent_connections_than_open_files_do_not_stop_the_server():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", SERVER]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        address = process.stdout.readline().strip()
        with contextlib.ExitStack() as stack:
            for number in range(700):
                stack.enter_context(connect(address))
                if number % 100 == 99:
                    assert httpx.get(f"{address}healthz", timeout=10).status_code == 200
        process.terminate()
        _, stderr = process.communicate(timeout=15)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "one that was waited for is closed" in stderr
    assert "Too many open files" not in stderr and len(stderr.splitlines()) <= 10


def test_an_index_that_cannot_be_read_does_not_swell_the_log(monkeypatch, caplog):
    monkeypatch.setattr(service.logger, "filters", [])
    backend = FakeSearcher()
    backend.broken = OSError("the disk is gone")
    with running_server(create_app(backend)) as address:
        statuses = {httpx.get(f"{address}/search?text=a").status_code for _ in range(20)}
    told = [record for record in caplog.records if "the disk is gone" in record.getMessage()]
    assert statuses == {503} and len(told) == 5


def test_a_line_of_log_repeats_only_so_often():
    now = [0.0]
    quiet = RepeatFilter(burst=2, seconds=60.0, clock=lambda: now[0])

    def log(line: int, text: str) -> str | None:
        record = logging.LogRecord("name", logging.WARNING, "file.py", line, "%s", (text,), None)
        return record.getMessage() if quiet.filter(record) else None

    assert [log(1, text) for text in "abcd"] == ["a", "b", None, None]
    assert log(2, "other") == "other"
    now[0] = 61.0
    assert log(1, "e") == "e (2 more like it were left out)"
    assert log(2, "other") == "other"
