"""Requests that two readers could understand in two ways: refused, and nothing behind them is read."""

from __future__ import annotations

import socket

import pytest
from helpers.fake_searcher import FakeSearcher
from helpers.running_server import running_server

from pmpguard.serving.app import create_app

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

BEHIND = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HEAD = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
REQUESTS = {
    "both lengths": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, the other order": HEAD
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{} \r\n",
    "a signed length": HEAD + b"Content-Length: +2\r\n\r\n{}",
    "two codings": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a blank before the colon": HEAD + b"Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n",
    "a bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "two hosts": b"GET /info HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
    "no host": b"GET /info HTTP/1.1\r\n\r\n",
}


@pytest.fixture(scope="module")
def address():
    with running_server(create_app(FakeSearcher(), token="s3cret")) as running:
        yield running.removeprefix("http://").split(":")


@pytest.mark.parametrize("name", REQUESTS)
def test_the_connection_ends_with_the_error(address, name):
    """With the token, so that the request reaches what reads bodies; where a head is unreadable, before."""
    host, port = address
    first, _, rest = REQUESTS[name].partition(b"\r\n")
    sent = first + b"\r\nAuthorization: Bearer s3cret\r\n" + rest
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(sent + BEHIND)
        received = b""
        while part := connection.recv(65536):  # ends when the server closes
            received += part
    assert received.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421", b"HTTP/1.1 501")), received[:200]
    assert received.count(b"HTTP/1.1 ") == 1, "what stood behind was answered"
