"""Running the server: a port, a page's address, an orderly end."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from pmpguard.errors import ConfigError, require
from pmpguard.serving.app import LOOPBACK, USUAL, create_app
from pmpguard.serving.middleware import Limits
from pmpguard.serving.protocols import Searchable

SHUTDOWN_SECONDS = 10  # for requests that are running when the server is told to stop


def serve_index(
    searcher: Searchable,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits = USUAL,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until SIGINT or SIGTERM; requests that are running then are still answered.

    `announce` gets the page's address as soon as it can be opened. Port 0 takes any free one.
    """
    uvicorn = require("uvicorn", "serve")
    _check_token(token)
    hosts = LOOPBACK if is_loopback(host) else None
    app = create_app(searcher, token=token, hosts=hosts, limits=limits)
    with listening(host, port) as listener:
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,  # queries are nobody's business
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        server = uvicorn.Server(settings)
        announce(page_address(host, listener.getsockname()[1], token))
        with _quiet_signals():
            server.run(sockets=[listener])


def check_listening(host: str, port: int, token: str | None) -> None:
    """Notice what would keep the server from starting, before time is spent on anything else."""
    require("uvicorn", "serve")
    require("fastapi", "serve")
    require("python_multipart", "serve")
    _check_token(token)
    with listening(host, port):
        pass


def _check_token(token: str | None) -> None:
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError("a token is printable ASCII without blanks", fix="use letters and digits")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host in ("127.0.0.1", "::1", "localhost")


def page_address(host: str, port: int, token: str | None) -> str:
    """Where the page is; the token rides behind the #, which browsers never send.

    >>> page_address("127.0.0.1", 8000, "a+b"), page_address("::1", 80, None)
    ('http://127.0.0.1:8000/#token=a%2Bb', 'http://[::1]:80/')
    """
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/" + (f"#token={quote(token, safe='')}" if token else "")


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """The listening socket, opened before anything else so that a taken port is a clear error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        fix = "choose another --port, or 0 for any free one; --host must be an address of this machine"
        raise ConfigError(f"cannot listen on {host} port {port}: {error}", fix=fix) from error
    with listener:
        # An answer goes out as head and body; without this the body waits until the head is acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """The server, once stopped, raises its signal again; being told to stop is a good end, not an error."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: None) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
