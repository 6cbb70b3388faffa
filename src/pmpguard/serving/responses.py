"""Results as values JSON can hold; `pmpguard.serving.models` describes them."""

from __future__ import annotations

from typing import Any

from pmpguard.files import plain_value
from pmpguard.geo.footprints import bounds_of, box_geometry
from pmpguard.models.explain import Explanation
from pmpguard.search.plain_values import explanation_values
from pmpguard.search.query import SearchHit
from pmpguard.serving.batching import SearchResult


def search_response(result: SearchResult, seconds: float) -> dict[str, Any]:
    return {
        "version": result.version,
        "fingerprint": result.fingerprint,
        "count": result.count,
        "milliseconds": round(1000 * seconds, 1),
        "hits": [hit_response(hit) for hit in result.hits],
    }


def hit_response(hit: SearchHit) -> dict[str, Any]:
    """A hit; `image_id` is the id of its image, which for a caption is not its own."""
    bounds = bounds_of(hit.metadata)
    return {
        "id": hit.id,
        "image_id": hit.id if hit.kind == "image" else hit.metadata.get("image_id"),
        "kind": hit.kind,
        "score": plain_value(hit.score),
        "probability": plain_value(hit.probability),
        "caption": hit.caption,
        "image": hit.image,
        "bounds": None if bounds is None else list(bounds),
        "geometry": None if bounds is None else box_geometry(bounds),
        "metadata": plain_value(hit.metadata),
    }


def explain_response(id: str, text: str, explanation: Explanation) -> dict[str, Any]:
    """Each word with its place in the text, its evidence and its regions, row by row from the top left."""
    values = explanation_values(explanation)
    position = 0
    for word in values["words"]:
        found = text.find(word["word"], position)
        start = position if found < 0 else found
        position = start + len(word["word"])
        word |= {"start": start, "stop": min(position, len(text))}
    return {"id": id, "text": text, **values}
