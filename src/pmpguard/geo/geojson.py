"""Answers as GeoJSON, which every map program opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pmpguard.geo.footprints import bounds_of, box_geometry
from pmpguard.geo.hit_rows import FoundImage, hit_rows


def hits_to_geojson(hits: Sequence[FoundImage]) -> dict[str, Any]:
    """A FeatureCollection of RFC 7946, in the order of the hits; one without coordinates has no geometry.

    Every column of the metadata is an attribute of its own, as QGIS shows and filters them.
    """
    features = [_feature(hit, row) for hit, row in zip(hits, hit_rows(hits), strict=True)]
    return {"type": "FeatureCollection", "features": features}


def _feature(hit: FoundImage, row: dict[str, Any]) -> dict[str, Any]:
    box = bounds_of(hit.metadata)
    feature = {
        "type": "Feature",
        "id": hit.id,
        "geometry": None if box is None else box_geometry(box),
        "properties": row,
    }
    return feature if box is None else {**feature, "bbox": list(box)}
