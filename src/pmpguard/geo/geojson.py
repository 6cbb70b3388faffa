"""Answers as GeoJSON, which every map program opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pmpguard.files import plain_value
from pmpguard.geo.footprints import bounds_of, box_geometry


class FoundImage(Protocol):
    """What a search found, as far as maps and catalogues ask; `metadata` may hold bounds, crs and time."""

    @property
    def id(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def probability(self) -> float | None: ...
    @property
    def caption(self) -> str | None: ...
    @property
    def image(self) -> str | None: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


def hits_to_geojson(hits: Sequence[FoundImage]) -> dict[str, Any]:
    """A FeatureCollection of RFC 7946, in the order of the hits; one without coordinates has no geometry."""
    return {"type": "FeatureCollection", "features": [_feature(hit) for hit in hits]}


def _feature(hit: FoundImage) -> dict[str, Any]:
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
