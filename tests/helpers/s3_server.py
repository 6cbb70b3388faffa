"""An S3 server on this machine, behind a proxy that can fail: moto's own, real requests over loopback."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3

BUCKET = "data"


class FaultyServer:
    """What the proxy does: `fail` or `cut` so many of the next answers to GET; `sent` counts bytes."""

    def __init__(self, port: int) -> None:
        self.port, self.fail, self.cut, self.sent, self.asked = port, 0, 0, 0, 0
        self.url = ""
        self.log: list[tuple[str, str]] = []  # method and path of every request

    def client(self):
        return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.port}")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: FaultyServer

    def log_message(self, *parts: object) -> None:
        pass

    def answer(self) -> None:
        faults = self.faults
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        faults.asked += self.command == "GET"
        faults.log.append((self.command, self.path.partition("?")[0]))
        if faults.fail and self.command in ("GET", "PUT"):
            faults.fail -= 1
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        link = http.client.HTTPConnection("127.0.0.1", faults.port)
        link.request(self.command, self.path, body, dict(self.headers))
        answer = link.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if faults.cut and self.command == "GET" and len(content) > 100:
            faults.cut -= 1
            content = content[: len(content) // 2]
            self.close_connection = True
        self.wfile.write(content)
        faults.sent += len(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer


@contextmanager
def s3_server() -> Iterator[FaultyServer]:
    """A server with an empty bucket called `data`."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    faults = FaultyServer(moto.get_host_and_port()[1])
    handler = type("Bound", (Handler,), {"faults": faults})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    faults.url = f"http://127.0.0.1:{proxy.server_address[1]}"
    try:
        yield faults
    finally:
        proxy.shutdown()
        proxy.server_close()
        moto.stop()
