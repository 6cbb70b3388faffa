"""The ASGI layers around the routes: headers and metrics outside, then the size of what is sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pmpguard.serving.config import ServerConfig
from pmpguard.serving.errors import RequestError
from pmpguard.serving.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

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
_NO_STORE = (b"cache-control", b"no-store")

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def observe(application: Application, metrics: Metrics, route_of: Callable[[str], str]) -> Application:
    """Add the security headers to every response and count it under its route."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                cached = any(name == b"cache-control" for name, _ in headers)
                message["headers"] = [*headers, *([] if cached else [_NO_STORE]), *_HEADER_BYTES]
            await send(message)

        try:
            await application(scope, receive, send_with_headers)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            metrics.request(route_of(scope["path"]), method, status, time.perf_counter() - started)

    return serve


def limit_body(application: Application, config: ServerConfig) -> Application:
    """Count the body as it comes in, announced or not, and stop reading at the limit.

    A body whose length is announced in two ways is refused: who forwards requests may have taken the other.
    """
    ambiguous = RequestError(
        400, "both Content-Length and Transfer-Encoding are given", fix="send one of the two"
    )
    too_large = RequestError(
        413,
        f"the request is larger than {config.body_bytes} bytes",
        fix="send a smaller image; 1,024 pixels on the longer side are plenty",
    )
    too_slow = RequestError(408, "the request did not arrive in time", fix="send it again")

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        announced = header(scope, b"content-length")
        if announced and header(scope, b"transfer-encoding"):
            await send_error(send, ambiguous)
            return
        if announced.isdecimal() and int(announced[:20]) > config.body_bytes:
            await send_error(send, too_large)
            return
        received, complete, started = 0, False, False
        deadline = asyncio.get_running_loop().time() + config.body_seconds

        async def receive_counted() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise too_slow from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > config.body_bytes:
                raise too_large
            return message

        async def send_noticed(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await application(scope, receive_counted, send_noticed)
        except RequestError as error:
            if started:
                raise
            await send_error(send, error)

    return serve


async def send_error(send: Send, error: RequestError) -> None:
    """Respond with the error; the connection is closed, for the rest of the body is not read."""
    body = json.dumps(error.as_dict()).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **error.headers,
    }
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> str:
    """A request header's first value, or an empty text."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
