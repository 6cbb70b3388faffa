"""The whole server as one ASGI application: the routes and the layers around them."""

from __future__ import annotations

from pmpguard.errors import require
from pmpguard.serving.access import refuse_other_sites, require_token, trust_hosts
from pmpguard.serving.config import DEFAULTS, ServerConfig
from pmpguard.serving.middleware import Application, limit_body, observe
from pmpguard.serving.page_files import read_page_files
from pmpguard.serving.protocols import SearchBackend
from pmpguard.serving.service import Service

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
BESIDE = "/beside"
ROUTES = frozenset({"/", "/search", "/explain", "/info", "/healthz", "/metrics", "/openapi.json"})


def create_app(
    backend: SearchBackend,
    *,
    beside: SearchBackend | None = None,
    token: str | None = None,
    hosts: frozenset[str] | None = LOOPBACK,
    config: ServerConfig = DEFAULTS,
    refresh_seconds: float = 2.0,
) -> Application:
    """The server over an index, and over another one `beside` it, which is asked below /beside.

    `hosts` are the names it may be asked under, None for any. With a `token` everything but the page itself
    and the health check needs it. The index is looked at every `refresh_seconds` for a newer version, and is
    closed when the application ends.
    """
    require_packages()
    from pmpguard.serving.routes import create_routes

    service = Service(backend, config, refresh_seconds)
    pages = frozenset(read_page_files())
    other = None if beside is None else Service(beside, config, refresh_seconds)
    app: Application = limit_body(create_routes(service, other, with_token=token is not None), config)
    if token is not None:
        app = require_token(
            app, token, is_open=lambda path: path in pages or path == "/healthz", guesses=config.token_guesses
        )
    app = refuse_other_sites(app)
    if hosts is not None:
        app = trust_hosts(app, hosts)
    return observe(app, service.metrics, route_label)


def require_packages() -> None:
    """Say early what the server needs and is not installed."""
    require("fastapi", "serve")
    require("pydantic", "serve")
    require("python_multipart", "serve")
    require("prometheus_client", "serve")


def route_label(path: str) -> str:
    """The route a path belongs to, of which there are few, so that nobody can swell the metrics.

    >>> route_label("/images/a/b"), route_label("/page/x.js"), route_label("/wp-admin")
    ('/images/{id}', '/page/{name}', 'other')
    """
    if path.startswith(BESIDE):
        label = route_label(path.removeprefix(BESIDE))
        return label if label == "other" else BESIDE + label
    if path.startswith("/images/"):
        return "/images/{id}"
    if path.startswith("/page/"):
        return "/page/{name}"
    return path if path in ROUTES else "other"
