"""Who may ask: under which host names, from which pages, and with which token."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections import Counter
from collections.abc import Callable

from pmpguard.errors import require
from pmpguard.serving.errors import RequestError
from pmpguard.serving.middleware import Application, Message, Receive, Scope, Send, header, send_error

GUESS_SECONDS = 1.0  # that a wrong token waits for its response


def trust_hosts(application: Application, hosts: frozenset[str]) -> Application:
    """Refuse other host names: a web page can point its own name at 127.0.0.1 and then read from there.

    The check is Starlette's; the error has the form all errors have.
    """
    check = require("fastapi.middleware.trustedhost", "serve").TrustedHostMiddleware
    error = RequestError(421, "this host name is not served here", fix="use the address printed at start")

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def go_on(scope: Scope, receive: Receive, _: Send) -> None:
            await application(scope, receive, send)

        async def refuse(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send_error(send, error)

        await check(go_on, sorted(hosts), www_redirect=False)(scope, receive, refuse)

    return serve


def refuse_other_sites(application: Application) -> Application:
    """Refuse what a page of another site asks for in a visitor's browser; following a link to here is fine.

    Such a page could not read the response, but it could keep the server at work. Browsers say where a
    request comes from, and no script can change it; whoever sends no such header is no page.
    """
    error = RequestError(403, "asked by a page of another site", fix="ask from the server's own page")

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            foreign = header(scope, b"sec-fetch-site") in ("cross-site", "same-site")  # another port, too
            if foreign and header(scope, b"sec-fetch-mode") != "navigate":
                await send_error(send, error)
                return
        await application(scope, receive, send)

    return serve


def require_token(
    application: Application, token: str, *, is_open: Callable[[str], bool], guesses: int
) -> Application:
    """Refuse whoever does not send the token; `is_open` says which paths need none.

    A wrong one is refused after a second, and at once while as many as `guesses` of its address wait for
    that. The right one is always let in: behind a proxy all clients have one address, and nobody shall lock
    the others out. What keeps a token from being guessed is its length.
    """
    missing = RequestError(
        401, "this server asks for a token", fix="send the header 'Authorization: Bearer TOKEN'"
    )
    too_many = RequestError(
        429, "too many wrong tokens from this address", fix="try again in a moment", retry_after=1
    )
    waiting: Counter[str] = Counter()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]):
            await application(scope, receive, send)
            return
        given = header(scope, b"authorization")
        address = address_group((scope.get("client") or ("",))[0])
        if not given:
            await send_error(send, missing)
        elif bears(given, token):
            await application(scope, receive, send)
        elif waiting[address] >= guesses:
            await send_error(send, too_many)
        else:
            waiting[address] += 1
            try:
                await asyncio.sleep(GUESS_SECONDS)
            finally:
                waiting.subtract([address])
                if not waiting[address]:
                    del waiting[address]
            await send_error(send, missing)

    return serve


def bears(authorization: str, token: str) -> bool:
    """Whether a header bears the token; the comparison takes as long for any wrong one."""
    scheme, _, given = authorization.partition(" ")
    same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode("utf-8"))
    return scheme.lower() == "bearer" and same


def address_group(address: str) -> str:
    """The address, or the network of an IPv6 one: a single client has all 2^64 addresses of it.

    >>> address_group("10.0.0.7"), address_group("2001:db8:1:2:3:4:5:6"), address_group("::1")
    ('10.0.0.7', '2001:db8:1:2::', '::1')
    """
    try:
        network = ipaddress.ip_network(f"{address}/64", strict=False)
    except ValueError:
        return address
    return address if network.network_address.is_unspecified else str(network.network_address)
