"""JSON Schemas of STAC extensions in our own words, after their published tables: theirs are on the web.

`EMB_COLLECTION` and `EMB_ITEM` say what the embedding extension (`emb:`, 0.0.1) asks, `PROJECTION` what the
projection extension (2.0) asks of an item's properties.
"""

from __future__ import annotations

from typing import Any

DATA_TYPES = [
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "cint16", "cint32", "cfloat32", "cfloat64", "other"),
]
PIXELS = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2}
NUMBERS = {"type": "array", "items": {"type": "number"}}
LINK = {
    "type": "object",
    "required": ["rel", "href"],
    "properties": {"href": {"type": "string", "minLength": 1}},
}


def has_link(relation: str) -> dict[str, Any]:
    return {"contains": {**LINK, "properties": {**LINK["properties"], "rel": {"const": relation}}}}


LAYOUT = {
    "type": "object",
    "required": ["layout_type"],
    "additionalProperties": False,
    "properties": {
        "layout_type": {"enum": ["regular_grid", "variable_grid", "named_grid"]},
        "chip_size": PIXELS,
        "stride": PIXELS,
        "grid_id": {"type": "string"},
        "grid_definition": LINK,
    },
    "if": {"properties": {"layout_type": {"const": "regular_grid"}}},
    "then": {"required": ["chip_size"]},
}
QUANTIZATION = {
    "type": "object",
    "required": ["method", "original_dtype"],
    "additionalProperties": False,
    "properties": {
        "method": {"type": "string", "minLength": 1},
        "original_dtype": {"enum": DATA_TYPES},
        "quantized_dtype": {"enum": DATA_TYPES},
        "scale": NUMBERS,
        "offset": NUMBERS,
        "link": LINK,
    },
}
USES = {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}
EXTENSIONS = {"type": "array", "contains": {"pattern": r"^https://[^/]+/embeddings/v0\.0\.1/schema\.json$"}}
KNOWN = (
    "type|dimensions|chip_layout|temporal_resolution|fit_for_use|quantization|runtime_parameters|uncertainty"
)
NO_OTHERS = {"propertyNames": {"pattern": rf"^(?!emb:)|^emb:({KNOWN}|preprocessing|postprocessing)$"}}
FIELDS: dict[str, Any] = {
    "emb:type": {"enum": ["pixel", "chip"]},
    "emb:dimensions": {"type": "integer", "minimum": 1},
    "data_type": {"enum": DATA_TYPES},
    "emb:chip_layout": LAYOUT,
    "emb:fit_for_use": USES,
    "emb:quantization": QUANTIZATION,
}
EMB_COLLECTION: dict[str, Any] = {
    "type": "object",
    **NO_OTHERS,
    "required": [
        *("stac_extensions", "id", "license", "extent", "links", "emb:type", "emb:dimensions", "data_type"),
    ],
    "properties": {
        "stac_extensions": EXTENSIONS,
        **FIELDS,
        "links": {"type": "array", "allOf": [has_link("emb:model"), has_link("emb:source-data")]},
    },
}
EMB_ITEM: dict[str, Any] = {
    "type": "object",
    "required": ["stac_extensions", "properties", "links", "assets"],
    "properties": {
        "stac_extensions": EXTENSIONS,
        "properties": {"type": "object", **NO_OTHERS, "properties": FIELDS},
        "links": {"type": "array", **has_link("emb:source-data")},
        "assets": {"type": "object", "required": ["embeddings"]},
    },
}
EMB_FOOTER: dict[str, Any] = {
    "type": "object",
    "required": [
        "emb:type",
        "emb:dimensions",
        "data_type",
        "emb:quantization",
        "emb:model",
        "emb:source-data",
    ],
    "properties": FIELDS,
}
PROJECTION: dict[str, Any] = {
    "type": "object",
    "propertyNames": {
        "pattern": "^(?!proj:)|^proj:(code|wkt2|projjson|geometry|bbox|centroid|shape|transform)$"
    },
    "anyOf": [{"required": [f"proj:{name}"]} for name in ("code", "wkt2", "projjson")],
    "properties": {
        "proj:code": {"type": ["string", "null"], "pattern": "^[A-Za-z]+:[0-9A-Za-z]+$"},
        "proj:wkt2": {"type": ["string", "null"]},
        "proj:bbox": {"oneOf": [{**NUMBERS, "minItems": size, "maxItems": size} for size in (4, 6)]},
        "proj:shape": PIXELS,
        "proj:transform": {"oneOf": [{**NUMBERS, "minItems": size, "maxItems": size} for size in (6, 9)]},
    },
}
