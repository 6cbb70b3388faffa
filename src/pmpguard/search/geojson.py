"""Answers as GeoJSON, which every map program opens."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pmpguard.search.footprints import bounds_of, box_geometry
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


def plain_value(value: Any) -> Any:
    """A value as JSON can hold it: times as ISO 8601, numbers that are not finite as null.

    >>> plain_value({"a": np.float32(0.5), "b": math.nan, "c": datetime.date(2024, 5, 1), "d": (1, None)})
    {'a': 0.5, 'b': None, 'c': '2024-05-01', 'd': [1, None]}
    """
    if isinstance(value, np.generic | np.ndarray):
        return plain_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence | set) and not isinstance(value, bytes):
        return [plain_value(item) for item in value]
    return str(value)
