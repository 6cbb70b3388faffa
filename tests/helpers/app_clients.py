"""The application without a network, and files to send to it."""

from __future__ import annotations

import io
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from helpers.fake_searcher import FakeSearcher
from PIL import Image

from pmpguard.serving.app import create_app


def client_of(searcher: FakeSearcher, **options: Any) -> Any:
    """A client of the whole application over a searcher."""
    testing = pytest.importorskip("fastapi.testclient", reason="the extra serve is not installed")
    app = create_app(searcher, **{"hosts": None, "refresh_seconds": 0.05, **options})
    return testing.TestClient(app, raise_server_exceptions=False)


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A small file that claims to be, and is, an image of that many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((width + 7) // 8 + 1) * height, 9)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def upload(client: Any, data: bytes, **fields: str) -> Any:
    return client.post("/search", data=fields, files={"image": ("a.png", data, "image/png")})


def refused(response: Any, status: int) -> str:
    """The error of an answer that must have this status and the shape all errors have."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error", "fix"}
    assert "Traceback" not in response.text
    return str(response.json()["error"])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
