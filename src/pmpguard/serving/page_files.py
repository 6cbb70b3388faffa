"""The page's files, read once: nothing else of the disk can be asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent."""

    data: bytes
    media_type: str
    etag: str


def read_page_files() -> dict[str, PageFile]:
    """Every file of the page by its address; index.html stands at `/`."""
    found = {}
    for folder in ("search", "shared"):
        for entry in files("pmpguard").joinpath("web", folder).iterdir():
            media_type = MEDIA_TYPES.get(f".{entry.name.rpartition('.')[2]}")
            if media_type is not None:
                data = entry.read_bytes()
                address = "/" if entry.name == "index.html" else f"/page/{folder}/{entry.name}"
                found[address] = PageFile(data, media_type, etag_of(data))
    return found


def etag_of(data: bytes) -> str:
    """The tag by which a browser knows these bytes again."""
    return f'"{hashlib.sha256(data).hexdigest()[:24]}"'
