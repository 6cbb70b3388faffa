"""Documents and files from the web, within bounds: http and https only, and no way into private networks."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pmpguard.errors import DataError
from pmpguard.files import atomic_output

SECONDS = 60.0  # without a byte
_BYTES_AT_ONCE = 2**20
_AGENT = "pmpguard (STAC reader)"


class Web:
    """Reads what one catalogue leads to.

    A public catalogue may lead to any public address. One that lies on this machine or in a private network
    may lead to its own host too; nothing leads into such a network from outside.
    """

    def __init__(self, start: str) -> None:
        self._home = urlsplit(start).hostname if is_web(start) else None
        self._opener = urllib.request.OpenerDirector()  # no handlers of file: and ftp:
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            _Redirects(self._check),
            urllib.request.HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)

    def read(self, address: str, most: int) -> bytes:
        """A document of at most so many bytes."""
        with self._opened(address) as response:
            data: bytes = response.read(most + 1)
        if len(data) > most:
            raise DataError(f"{address}: more than {most:,} bytes", fix="name a smaller document")
        return data

    def save(self, address: str, path: Path, most: int) -> None:
        """Keep a file of at most so many bytes at `path`, unless one of its size is there already."""
        with self._opened(address) as response:
            announced = response.headers.get("Content-Length")
            size = int(announced) if announced and announced.isdecimal() else None
            if size is not None and path.is_file() and path.stat().st_size == size:
                return
            too_large = DataError(f"{address}: more than {most:,} bytes", fix="cut it to what you need first")
            if size is not None and size > most:
                raise too_large
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_output(path) as stream:
                written = 0
                while chunk := response.read(_BYTES_AT_ONCE):
                    written += len(chunk)
                    if written > most:
                        raise too_large
                    stream.write(chunk)
                if size is not None and written != size:
                    raise DataError(f"{address}: broke off after {written:,} bytes", fix="run it again")

    @contextmanager
    def _opened(self, address: str) -> Iterator[Any]:
        self._check(address)
        request = urllib.request.Request(address, headers={"User-Agent": _AGENT})
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                yield response
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise DataError(f"{address}: cannot be read ({reason})", fix="check the address") from error

    def _check(self, address: str) -> None:
        host = urlsplit(address).hostname
        if not is_web(address) or host is None:
            raise DataError(f"{address[:200]}: not an http or https address", fix="download the file first")
        if host == self._home:
            return
        try:
            found = {info[4][0] for info in socket.getaddrinfo(host, None)}
        except OSError as error:
            raise DataError(f"{address}: no such host ({error})", fix="check the address") from error
        if not all(ipaddress.ip_address(str(place).partition("%")[0]).is_global for place in found):
            raise DataError(
                f"{address}: lies in a private network, and the catalogue does not",
                fix="start from a catalogue on that host",
            )


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, check: Any) -> None:
        self._check = check

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        self._check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def is_web(address: str) -> bool:
    """
    >>> is_web("https://example.org/catalog.json"), is_web("s3://bucket/catalog.json"), is_web("catalog.json")
    (True, False, False)
    """
    return address.lower().startswith(("http://", "https://"))
