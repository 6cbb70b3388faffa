"""Answers as GeoJSON, which every map program opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pmpguard.geo.footprints import bounds_of, box_geometry
from pmpguard.search.plain_values import plain_value
from pmpguard.search.query import SearchHit


def hits_to_geojson(hits: Sequence[SearchHit]) -> dict[str, Any]:
    """A FeatureCollection of RFC 7946, in the order of the hits; one without coordinates has no geometry."""
    return {"type": "FeatureCollection", "features": [_feature(hit) for hit in hits]}


def _feature(hit: SearchHit) -> dict[str, Any]:
    box = bounds_of(hit.metadata)
    feature = {
        "type": "Feature",
        "id": hit.id,
        "geometry": None if box is None else box_geometry(box),
        "properties": plain_value(
            {
                "id": hit.id,
                "score": hit.score,
                "probability": hit.probability,
                "caption": hit.caption,
                "image": hit.image,
                "metadata": hit.metadata,
            }
        ),
    }
    return feature if box is None else {**feature, "bbox": list(box)}
