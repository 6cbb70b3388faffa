"""The routes, as FastAPI knows them, and the document that describes them.

This module needs the extra `serve`: `pmpguard.serving.app` imports it once that has been made sure of.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response, Security
from fastapi import Path as PathField
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

import pmpguard
from pmpguard.errors import ConfigError
from pmpguard.serving import models
from pmpguard.serving.downloads import FILE_NAMES, MEDIA_TYPES
from pmpguard.serving.errors import RequestError, invalid
from pmpguard.serving.page_files import read_page_files
from pmpguard.serving.service import Service
from pmpguard.serving.thumbnails import rounded_side

MEANINGS = {
    304: "the tag in If-None-Match is still that of the content",
    400: "not readable",
    401: "token missing or wrong",
    403: "asked by a page of another site",
    404: "no such id",
    408: "too slow",
    413: "too large",
    415: "wrong content type",
    421: "host name not served here",
    422: "a field is wrong",
    429: "too many wrong tokens",
    500: "a mistake of the server",
    503: "busy, or the index cannot be read now",
}
# What a hit of a search can be asked for next.
LINKS = {
    "image": {
        "operationId": "image",
        "parameters": {"path.id": "$response.body#/hits/0/id"},
        "description": "the first hit's image",
    },
    "explanation": {
        "operationId": "explain",
        "parameters": {"query.id": "$response.body#/hits/0/id", "query.text": "$response.body#/hits/0/id"},
        "description": "the words of a text in the first hit's image",
    },
}
FILES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            media_type: {"schema": {"type": "string", "format": "binary"}}
            for media_type in MEDIA_TYPES.values()
        },
        "links": LINKS,
    }
}
REFERENCE = "#/components/schemas/{model}"


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Errors of a route, in the one form all have."""
    return {status: {"model": models.ErrorResponse, "description": MEANINGS[status]} for status in statuses}


def create_routes(service: Service, beside: Service | None = None, *, with_token: bool) -> FastAPI:
    """The FastAPI application inside the layers; `beside` is another index, asked below /beside."""
    services = [service] if beside is None else [service, beside]

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for one in services:
                await stack.enter_async_context(one.running())
            yield

    app = FastAPI(
        title="pmpguard search",
        version=pmpguard.__version__,
        docs_url=None,  # its pages would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(refuse_repeated_fields)],
        responses=errors(400, 403, 413, 421, 500, 503),
    )

    @app.get("/healthz", summary="Whether the server is well", response_model=models.HealthResponse)
    async def health() -> Any:
        return next((one.health() for one in services if one.problem is not None), service.health())

    pages = read_page_files()

    async def page(request: Request) -> Response:
        file = pages[request.url.path]
        return tagged(request, file.data, file.media_type, file.etag)

    for address in pages:
        app.add_api_route(address, page, include_in_schema=False)
    name = None if beside is None else beside.backend.name
    app.include_router(index_routes(service, beside=name, with_token=with_token, named=True))
    if beside is not None:
        app.include_router(index_routes(beside, with_token=with_token), prefix="/beside")

    describe = app.openapi

    def describe_bodies() -> dict[str, Any]:
        """FastAPI's document, with the models of the body that is read by hand."""
        document = describe()
        bodies = [(model, "validation") for model in (models.SearchBody, models.SearchForm)]
        _, schemas = models_json_schema(bodies, ref_template=REFERENCE)  # type: ignore[arg-type]
        document["components"]["schemas"] |= schemas["$defs"]
        return document

    app.openapi = describe_bodies  # type: ignore[method-assign]
    add_error_handlers(app)
    return app


def index_routes(
    service: Service, *, beside: str | None = None, with_token: bool, named: bool = False
) -> APIRouter:
    """The routes of one index. The token is checked in a layer around them; here it is only described."""
    guarded = APIRouter(
        dependencies=[Security(HTTPBearer(auto_error=False))] if with_token else [],
        responses=errors(401, 429) if with_token else {},
    )

    @guarded.get(
        "/search",
        summary="Search by text",
        response_model=models.SearchResponse,
        responses={**FILES, **errors(404, 422)},
    )
    async def search_by_address(query: Annotated[models.SearchQuery, Query()]) -> Any:
        query.require_query()
        return found(query, await service.search(query))

    @guarded.post(
        "/search",
        summary="Search by text, image or both",
        response_model=models.SearchResponse,
        responses={**FILES, **errors(404, 408, 415, 422)},
        openapi_extra={"requestBody": request_body()},
    )
    async def search_by_body(request: Request) -> Any:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "application/json":
            body = models.validated(models.SearchBody, parse_json(await request.body()))
            body.require_query()
            return found(body, await service.search(body))
        if content_type != "multipart/form-data":
            fix = "send application/json, or multipart/form-data with an image"
            raise RequestError(415, f"content type {content_type[:60]!a} is not read here", fix=fix)
        image = None
        async with request.form(max_files=1, max_fields=200) as form:
            fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
            files = [(name, value) for name, value in form.multi_items() if not isinstance(value, str)]
            if any(name != "image" for name, _ in files):
                raise invalid("image", "must be the name of the file's field", "rename the field")
            query = models.validated(models.SearchQuery, models.single_values(fields))
            query.require_query(has_image=bool(files))
            if files:
                with service.uploads.place():  # not before all has arrived: the slow take no place
                    image = await service.uploads.decode(await files[0][1].read())
        return found(query, await service.search(query, image))

    @guarded.get(
        "/images/{id:path}",
        operation_id="image" if named else None,
        summary="An image as JPEG",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}},
            304: {"description": MEANINGS[304]},
            **errors(404, 422),
        },
    )
    async def image(
        request: Request,
        id: Annotated[models.Name, PathField()],
        query: Annotated[models.ImageQuery, Query()],
    ) -> Response:
        side = service.config.image_side
        if query.size is not None:
            side = min(side, rounded_side(query.size))
        jpeg = await service.jpeg(id, side)
        return tagged(request, jpeg.data, "image/jpeg", jpeg.etag)

    @guarded.get(
        "/explain",
        operation_id="explain" if named else None,
        summary="Word by word: where in the image",
        response_model=models.ExplainResponse,
        responses=errors(404, 422),
    )
    async def explain(query: Annotated[models.ExplainQuery, Query()]) -> Any:
        return await service.explain(query.id, query.text)

    @guarded.get(
        "/info",
        summary="The index and what it can be filtered by",
        response_model=models.InfoResponse,
    )
    async def info() -> Any:
        return service.info(beside)

    @guarded.get(
        "/metrics",
        summary="Counters for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        return Response(service.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return guarded


def add_error_handlers(app: FastAPI) -> None:
    """All errors have one form."""

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            error = models.validation_error(error.errors())
        elif isinstance(error, HTTPException):
            fixes = {404: "see /openapi.json for what there is", 405: "see /openapi.json for the methods"}
            content = {"error": str(error.detail), "fix": fixes.get(error.status_code, "check the request")}
            return JSONResponse(content, error.status_code, error.headers)
        elif isinstance(error, ConfigError):
            error = RequestError(422, error.message, fix=error.fix)
        if isinstance(error, RequestError):
            return JSONResponse(error.as_dict(), error.status, error.headers)
        return JSONResponse({"error": "the server made a mistake", "fix": "look into its log"}, 500)

    for kind in (RequestError, RequestValidationError, HTTPException, ConfigError, Exception):
        app.add_exception_handler(kind, refuse)


def refuse_repeated_fields(request: Request) -> None:
    models.single_values(request.query_params.multi_items())


def request_body() -> dict[str, Any]:
    kinds = {"application/json": models.SearchBody, "multipart/form-data": models.SearchForm}
    content = {
        media_type: {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}
        for media_type, model in kinds.items()
    }
    return {"required": True, "content": content}


def parse_json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or nested without end
        fix = 'send an object such as {"text": "a pond"}'
        raise RequestError(400, "the body is not JSON", fix=fix) from None


def found(query: models.SearchFields, result: dict[str, Any] | bytes) -> Any:
    """Hits as our JSON, or as a file to keep."""
    if isinstance(result, bytes):
        headers = {"Content-Disposition": f'attachment; filename="{FILE_NAMES[query.format]}"'}
        return Response(result, media_type=MEDIA_TYPES[query.format], headers=headers)
    return result


def tagged(request: Request, data: bytes, media_type: str, etag: str) -> Response:
    """A response a browser may keep and ask about again: 304 when it still holds the same."""
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)
