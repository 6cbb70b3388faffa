"""Running the server: a port, the page's address, an orderly end."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from pmpguard.errors import ConfigError, require
from pmpguard.posix import LIMITS
from pmpguard.serving import connections
from pmpguard.serving.app import LOOPBACK, create_app, require_packages
from pmpguard.serving.config import DEFAULTS, ServerConfig
from pmpguard.serving.middleware import Application
from pmpguard.serving.protocols import SearchBackend


def serve_index(
    backend: SearchBackend,
    *,
    beside: SearchBackend | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    config: ServerConfig = DEFAULTS,
    trusted_proxy: str | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until SIGINT or SIGTERM; requests that are running then still get their responses.

    `announce` gets the page's address as soon as it can be opened. Port 0 takes any free one.
    """
    _check_system()
    _check_token(token)
    _check_proxy(trusted_proxy)
    hosts = LOOPBACK if is_loopback(host) else None
    app = create_app(backend, beside=beside, token=token, hosts=hosts, config=config)
    with open_listener(host, port) as listener:
        server = make_server(app, config, trusted_proxy=trusted_proxy)
        announce(page_address(host, listener.getsockname()[1], token))
        with _stop_signals(server):
            server.run(sockets=[listener])


def make_server(
    app: Application,
    config: ServerConfig = DEFAULTS,
    shutdown_seconds: int = 10,
    trusted_proxy: str | None = None,
) -> Any:
    """A `uvicorn.Server` whose connections are bounded and whose log is not swelled by strangers.

    Requests that are running when it is told to stop have `shutdown_seconds` to end. What `trusted_proxy`
    forwards, and only that, counts as coming from the address in its header X-Forwarded-For.
    """
    uvicorn = require("uvicorn", "serve")
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=connections.bounded_protocol(config),
            ws="none",
            backlog=connections.BACKLOG,
            log_level="warning",
            access_log=False,  # queries are nobody's business
            server_header=False,
            proxy_headers=trusted_proxy is not None,
            forwarded_allow_ips=trusted_proxy or "",
            timeout_keep_alive=int(config.idle_seconds) + 1,
            timeout_graceful_shutdown=shutdown_seconds,
        )
    )
    for name in ("asyncio", "uvicorn.error", connections.__name__, "pmpguard.serving.service"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, connections.RepeatFilter) for one in logger.filters):
            logger.addFilter(connections.RepeatFilter())
    return server


def check_startup(host: str, port: int, token: str | None, trusted_proxy: str | None = None) -> None:
    """Notice what would keep the server from starting, before time is spent on anything else."""
    _check_system()
    require("uvicorn", "serve")
    require_packages()
    _check_token(token)
    _check_proxy(trusted_proxy)
    with open_listener(host, port):
        pass


def _check_system() -> None:
    if LIMITS is None:
        raise ConfigError(
            f"the server does not run on {sys.platform}: images from strangers are decoded within bounds "
            "that only POSIX systems set",
            fix="use Linux, macOS or a container",
        )


def _check_token(token: str | None) -> None:
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError("a token is printable ASCII without blanks", fix="use letters and digits")


def _check_proxy(address: str | None) -> None:
    try:
        ipaddress.ip_network(address or "::1")
    except ValueError as error:
        fix = "give its IP address, or a network such as 10.0.0.0/24"
        raise ConfigError(f"trusted_proxy: {error}", fix=fix) from error


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
def open_listener(host: str, port: int) -> Iterator[socket.socket]:
    """The listening socket, opened before anything else so that a taken port is a clear error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=connections.BACKLOG)
    except (OSError, OverflowError) as error:
        fix = "choose another --port, or 0 for any free one; --host must be an address of this machine"
        raise ConfigError(f"cannot listen on {host} port {port}: {error}", fix=fix) from error
    with listener:
        # A response goes out as head and body; without this the body waits until the head is acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


@contextmanager
def _stop_signals(server: Any) -> Iterator[None]:
    """Being told to stop is a good end, not an error, also before the server listens to signals itself.

    Once stopped, it raises its signal again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: setattr(server, "should_exit", True)) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
