"""The HTTP face of the server: routes, what they take, and the layers around them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pmpguard
from pmpguard.errors import require
from pmpguard.serving import schema
from pmpguard.serving.errors import RequestError
from pmpguard.serving.middleware import Application, Limits, guarded, limited, observed
from pmpguard.serving.page_files import read_page_files
from pmpguard.serving.protocols import Searchable
from pmpguard.serving.search_request import (
    check_request,
    checked_text,
    name_field,
    unflatten,
    whole_number,
    wrong,
)
from pmpguard.serving.service import Service
from pmpguard.serving.thumbnails import rounded_side

USUAL = Limits()
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
ROUTES = frozenset({"/", "/search", "/explain", "/info", "/healthz", "/metrics", "/openapi.json"})
Endpoint = Callable[[Any], Awaitable[Any]]  # fastapi.Request to fastapi.Response


def create_app(
    searcher: Searchable,
    *,
    token: str | None = None,
    hosts: frozenset[str] | None = LOOPBACK,
    limits: Limits = USUAL,
    refresh_seconds: float = 2.0,
) -> Application:
    """The whole server as one ASGI application.

    `hosts` are the names it may be asked under, None for any. With a `token` everything but the page itself
    and the health check needs it. The searcher is looked at every `refresh_seconds` for a newer index, and is
    closed when the application ends.
    """
    service = Service(searcher, limits, refresh_seconds)
    pages = frozenset(read_page_files())
    routed = _routes(service)
    return observed(
        guarded(
            limited(routed, limits),
            token=token,
            hosts=hosts,
            is_open=lambda path: path in pages or path == "/healthz",
        ),
        service.metrics,
        route_label,
    )


def route_label(path: str) -> str:
    """The route a path belongs to, of which there are few, so that nobody can swell the metrics.

    >>> route_label("/images/a/b"), route_label("/page/x.js"), route_label("/wp-admin")
    ('/images/{id}', '/page/{name}', 'other')
    """
    if path.startswith("/images/"):
        return "/images/{id}"
    if path.startswith("/page/"):
        return "/page/{name}"
    return path if path in ROUTES else "other"


def _routes(service: Service) -> Application:
    """The FastAPI application inside the layers."""
    fastapi = require("fastapi", "serve")
    responses = require("fastapi.responses", "serve")
    exceptions = require("fastapi.exceptions", "serve")
    require("python_multipart", "serve")
    limits = service.limits

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = fastapi.FastAPI(
        title="pmpguard search",
        version=pmpguard.__version__,
        docs_url=None,  # its pages would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )

    def route(
        method: str, path: str, endpoint: Endpoint, summary: str, answers: Any = None, extra: Any = None
    ) -> None:
        # FastAPI looks at annotations to see that an endpoint wants the request itself.
        endpoint.__annotations__ = {"request": fastapi.Request}
        app.add_api_route(
            path,
            endpoint,
            methods=[method],
            summary=summary,
            responses=answers,
            openapi_extra=extra,
            include_in_schema=answers is not None,
            response_class=responses.Response,
            response_model=None,
        )

    def json_answer(content: Any) -> Any:
        return responses.JSONResponse(content, headers={"Cache-Control": "no-store"})

    async def search_by_address(request: Any) -> Any:
        asked = check_request(unflatten(request.query_params.multi_items()), limits=limits)
        return json_answer(await service.search(asked))

    async def search_by_body(request: Any) -> Any:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "application/json":
            return json_answer(
                await service.search(check_request(parse_json(await request.body()), limits=limits))
            )
        if content_type != "multipart/form-data":
            fix = "send application/json, or multipart/form-data with a image"
            raise RequestError(415, f"content type {content_type[:60]!a} is not read here", fix=fix)
        with service.uploads.place():
            async with request.form(max_files=1, max_fields=200) as form:
                fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
                files = [(name, value) for name, value in form.multi_items() if not isinstance(value, str)]
                if any(name != "image" for name, _ in files):
                    raise wrong("image", "must be the name of the file's field", "rename the field")
                asked = check_request(unflatten(fields), limits=limits, has_image=bool(files))
                pixel_image = await service.uploads.decode(await files[0][1].read()) if files else None
        return json_answer(await service.search(asked, pixel_image))

    async def image(request: Any) -> Any:
        id = name_field("id", request.path_params["id"])
        side = limits.image_side
        if size := _only(request.query_params, ("size",)).get("size"):
            side = min(side, rounded_side(whole_number("size", size, 10_000)))
        jpeg = await service.jpeg(id, side)
        return _tagged(responses, request, jpeg.data, "image/jpeg", jpeg.etag)

    async def explain(request: Any) -> Any:
        asked = _only(request.query_params, ("id", "text"))
        for field in ("id", "text"):
            if field not in asked:
                raise wrong(field, "is missing", "call /explain?id=ID&text=TEXT")
        text = checked_text(asked["text"], limits)
        return json_answer(await service.explain(name_field("id", asked["id"]), text))

    async def info(request: Any) -> Any:
        return json_answer(service.info())

    async def health(request: Any) -> Any:
        return json_answer(service.health())

    async def metrics(request: Any) -> Any:
        return responses.PlainTextResponse(service.metrics_text())

    pages = read_page_files()

    async def page(request: Any) -> Any:
        found = pages[request.url.path]
        return _tagged(responses, request, found.data, found.media_type, found.etag)

    text = schema.text_schema(limits)
    by_address = schema.query_parameters(schema.flat_fields(limits))
    sized = {
        "parameters": [
            schema.path_parameter("id", schema.ID),
            *schema.query_parameters({"size": {"type": "integer", "minimum": 1, "maximum": 10_000}})[
                "parameters"
            ],
        ]
    }
    explained = schema.query_parameters({"id": schema.ID, "text": text}, required=("id", "text"))
    ok = schema.answers
    route("GET", "/search", search_by_address, "Search by text", ok(schema.HITS, 404, 422, 503), by_address)
    route(
        "POST",
        "/search",
        search_by_body,
        "Search by text, image or both",
        ok(schema.HITS, 400, 404, 408, 413, 415, 422, 503),
        schema.search_body(limits),
    )
    route(
        "GET",
        "/images/{id:path}",
        image,
        "A image as JPEG",
        ok(None, 404, 422, 503, media_type="image/jpeg"),
        sized,
    )
    route(
        "GET",
        "/explain",
        explain,
        "Word by word: where in the image",
        ok(schema.EXPLANATION, 404, 422, 503),
        explained,
    )
    route("GET", "/info", info, "The index and what it can be filtered by", ok(schema.INFO))
    route("GET", "/healthz", health, "Whether the server is well", ok(schema.HEALTH))
    route("GET", "/metrics", metrics, "Counters for Prometheus", ok(None, media_type="text/plain"))
    for address in pages:
        route("GET", address, page, "The page")

    def refuse(_: Any, refusal: RequestError) -> Any:
        return responses.JSONResponse(refusal.as_dict(), refusal.status, refusal.headers)

    def refuse_http(_: Any, error: Any) -> Any:
        fixes = {404: "see /openapi.json for what there is", 405: "see /openapi.json for the methods"}
        content = {"error": str(error.detail), "fix": fixes.get(error.status_code, "check the request")}
        return responses.JSONResponse(content, error.status_code, error.headers)

    def fail(_: Any, error: Exception) -> Any:
        content = {"error": "the server made a mistake", "fix": "look into its log"}
        return responses.JSONResponse(content, 500)

    app.add_exception_handler(RequestError, refuse)
    app.add_exception_handler(exceptions.StarletteHTTPException, refuse_http)
    app.add_exception_handler(Exception, fail)
    result: Application = app
    return result


def parse_json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or nested without end
        raise RequestError(
            400, "the body is not JSON", fix='send an object such as {"text": "a pond"}'
        ) from None


def _only(parameters: Any, known: tuple[str, ...]) -> Mapping[str, str]:
    """The parameters of an address, each at most once and none unknown."""
    for name, count in ((name, len(parameters.getlist(name))) for name in parameters):
        if name not in known:
            raise wrong(ascii(name[:60]), "is not known", f"use one of {', '.join(known)}")
        if count > 1:
            raise wrong(name, "is given twice", "give it once")
    return dict(parameters)


def _tagged(responses: Any, request: Any, data: bytes, media_type: str, etag: str) -> Any:
    """An answer a browser may keep and ask about again: 304 when it still holds the same."""
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
        return responses.Response(status_code=304, headers=headers)
    return responses.Response(data, media_type=media_type, headers=headers)
