"""What a request may cost, and the layers that see to it before anything is parsed.

Each layer is a plain ASGI application around the next one: headers and metrics outside, then who may ask,
then how much may be sent.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from pmpguard.serving.errors import RequestError
from pmpguard.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Every bound of the server in one place."""

    body_bytes: int = 16 * MIB
    body_seconds: float = 30.0
    text_characters: int = 1_000
    hits: int = 200
    shortlist: int = 2_000
    filter_values: int = 100
    upload_pixels: int = 50_000_000
    decode_seconds: float = 10.0
    uploads: int = 8  # images received or decoded at the same time
    waiting: int = 256  # queries, and as many images, waiting in line
    answer_seconds: float = 30.0
    batch: int = 32
    gather_seconds: float = 0.003
    image_side: int = 1_600
    thumbnail_bytes: int = 64 * MIB


# The page loads nothing from elsewhere; images may come from memory (an upload's preview, a token's fetch).
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_HEADER_BYTES = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def observed(application: Application, metrics: Metrics, route_of: Callable[[str], str]) -> Application:
    """Add the security headers to every answer and count it under its route."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_HEADER_BYTES]
            await send(message)

        try:
            await application(scope, receive, send_with_headers)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            metrics.request(route_of(scope["path"]), method, status, time.perf_counter() - started)

    return serve


def guarded(
    application: Application,
    *,
    token: str | None,
    hosts: frozenset[str] | None,
    is_open: Callable[[str], bool],
) -> Application:
    """Refuse foreign host names and, where a token is set, whoever does not send it.

    The host is checked because a web page can point its own name at 127.0.0.1 and then read from there.
    `is_open` says which paths need no token: the page itself, which holds no data, and the health check.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if hosts is not None and host_name(header(scope, b"host")) not in hosts:
                refusal = RequestError(
                    421, "this host name is not served here", fix="use the address printed at start"
                )
                await send_refusal(send, refusal)
                return
            if token is not None and not is_open(scope["path"]) and not carries(scope, token):
                fix = "send the header 'Authorization: Bearer TOKEN'"
                await send_refusal(send, RequestError(401, "this server asks for a token", fix=fix))
                return
        await application(scope, receive, send)

    return serve


def limited(application: Application, limits: Limits) -> Application:
    """Count the body as it comes in, announced or not, and stop reading at the limit."""
    too_large = RequestError(
        413,
        f"the request is larger than {limits.body_bytes} bytes",
        fix="send a smaller image; 1,024 pixels on the longer side are plenty",
    )
    too_slow = RequestError(408, "the request did not arrive in time", fix="send it again")

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        announced = header(scope, b"content-length")
        if announced.isdecimal() and int(announced[:20]) > limits.body_bytes:
            await send_refusal(send, too_large)
            return
        received, whole, started = 0, False, False
        deadline = asyncio.get_running_loop().time() + limits.body_seconds

        async def receive_counted() -> Message:
            nonlocal received, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise too_slow from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if received > limits.body_bytes:
                raise too_large
            return message

        async def send_noticed(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await application(scope, receive_counted, send_noticed)
        except RequestError as refusal:
            if started:
                raise
            await send_refusal(send, refusal)

    return serve


async def send_refusal(send: Send, refusal: RequestError) -> None:
    """Answer with the error; the connection is closed, for the rest of the body is not read."""
    body = json.dumps(refusal.as_dict()).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **refusal.headers,
    }
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> str:
    """A request header's first value, or an empty text."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def carries(scope: Scope, token: str) -> bool:
    """Whether the request bears the token; the comparison takes as long for any wrong one."""
    scheme, _, given = header(scope, b"authorization").partition(" ")
    same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode("utf-8"))
    return scheme.lower() == "bearer" and same


def host_name(host: str) -> str:
    """A Host header without its port.

    >>> host_name("LocalHost:8000"), host_name("[::1]:80"), host_name("127.0.0.1")
    ('localhost', '[::1]', '127.0.0.1')
    """
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()
