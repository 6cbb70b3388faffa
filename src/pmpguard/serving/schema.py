"""The server's questions and answers as JSON schemas, for /openapi.json."""

from __future__ import annotations

from typing import Any

from pmpguard.serving.middleware import Limits
from pmpguard.serving.search_request import LONGEST_NAME

Schema = dict[str, Any]

NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
ID: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}


def whole(**fields: Schema) -> Schema:
    """An object that has all of these fields and no others."""
    return {
        "type": "object",
        "required": list(fields),
        "properties": fields,
        "additionalProperties": False,
    }


ERROR = whole(error={"type": "string"}, fix={"type": "string"})
HIT = whole(
    id={"type": "string"},
    image_id={"type": ["string", "null"], "description": "id to ask /images and /explain for"},
    kind={"enum": ["image", "caption"]},
    score=NUMBER_OR_NULL,
    probability={"type": ["number", "null"], "minimum": 0, "maximum": 1},
    caption=TEXT_OR_NULL,
    image=TEXT_OR_NULL,
    bounds={"type": ["array", "null"], "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
    geometry={"type": ["object", "null"]},
    metadata={"type": "object"},
)
HITS = whole(
    version={"type": "string"},
    count={"type": "integer"},
    milliseconds={"type": "number"},
    hits={"type": "array", "items": HIT},
)
WORD = whole(
    word={"type": "string"},
    start={"type": "integer"},
    stop={"type": "integer"},
    positive=NUMBER_OR_NULL,
    negative=NUMBER_OR_NULL,
    regions={"type": "array", "items": {"type": "array", "items": NUMBER_OR_NULL}},
)
EXPLANATION = whole(
    id={"type": "string"},
    text={"type": "string"},
    score=NUMBER_OR_NULL,
    boundary=NUMBER_OR_NULL,
    words={"type": "array", "items": WORD},
)
INFO = whole(
    version={"type": "string"},
    count={"type": "integer"},
    captions={"type": "integer"},
    model={"type": "string"},
    columns={"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    numbers={"type": "array", "items": {"type": "string"}, "description": "columns to compare with numbers"},
    has_places={"type": "boolean", "description": "whether a box can find anything"},
    has_times={"type": "boolean", "description": "whether start and stop can find anything"},
    limits={"type": "object", "additionalProperties": {"type": "integer"}},
)
HEALTH = whole(status={"enum": ["ok", "degraded"]}, version={"type": "string"}, problem=TEXT_OR_NULL)


def text_schema(limits: Limits) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": limits.text_characters}


def search_fields(limits: Limits) -> Schema:
    """The fields that a JSON body, an address and a form have in common."""
    return {
        "text": text_schema(limits),
        "like": {**ID, "description": "id of an indexed image to search by"},
        "kind": {"enum": ["image", "caption"], "default": "image"},
        "k": {"type": "integer", "minimum": 1, "maximum": limits.hits, "default": 20},
        "shortlist": {"type": "integer", "minimum": 1, "maximum": limits.shortlist, "default": 100},
        "text_weight": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
    }


def flat_fields(limits: Limits) -> Schema:
    return {
        **search_fields(limits),
        "box": {"type": "string", "description": "west,south,east,north in degrees"},
        "start": {"type": "string", "description": "ISO 8601, inclusive"},
        "stop": {"type": "string", "description": "ISO 8601, inclusive"},
        "where": {
            "type": "array",
            "items": {"type": "string", "maxLength": 2 * LONGEST_NAME},
            "description": "COLUMN=VALUE, alternatives if of one column; COLUMN<NUMBER, also <=, >, >=",
        },
    }


def search_body(limits: Limits) -> Schema:
    """What POST /search takes, by content type."""
    values = {"type": "array", "items": ID, "minItems": 1, "maxItems": limits.filter_values}
    filters = {
        "type": "object",
        "properties": {
            "box": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
            "start": {"type": "string"},
            "stop": {"type": "string"},
            "columns": {"type": "object", "additionalProperties": values},
            "where": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME},
                "maxItems": limits.filter_values,
                "description": "COLUMN<NUMBER, also <=, >, >= and =; all must hold",
            },
        },
        "additionalProperties": False,
    }
    json_body = {
        "type": "object",
        "properties": {**search_fields(limits), "filters": filters},
        "additionalProperties": False,
    }
    image = {"type": "string", "format": "binary", "description": "JPEG, PNG, TIFF, WEBP, BMP or GIF"}
    form = {
        "type": "object",
        "properties": {**flat_fields(limits), "image": image},
        "additionalProperties": False,
    }
    content = {"application/json": {"schema": json_body}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


def query_parameters(fields: Schema, required: tuple[str, ...] = ()) -> Schema:
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in fields.items()
        ]
    }


def path_parameter(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def answers(
    schema: Schema | None, *statuses: int, media_type: str = "application/json"
) -> dict[int | str, Schema]:
    """The answers of a route: 200 with its schema, and each error with the one shape all errors have."""
    content = {media_type: {} if schema is None else {"schema": schema}}
    errors = {"application/json": {"schema": ERROR}}
    meanings = {
        400: "not readable",
        401: "token missing or wrong",
        404: "no such id",
        408: "too slow",
        413: "too large",
        415: "wrong content type",
        422: "a field is wrong",
        503: "busy, or the index cannot be read now",
    }
    described: dict[int | str, Schema] = {200: {"description": "the answer", "content": content}}
    for status in (401, *statuses):
        described[status] = {"description": meanings[status], "content": errors}
    return described
