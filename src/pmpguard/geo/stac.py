"""Answers as a STAC collection, which catalogues and geographic libraries read."""

from __future__ import annotations

import datetime
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pmpguard.errors import ConfigError, DataError, require
from pmpguard.files import atomic_directory, file_name_of, plain_value
from pmpguard.geo.footprints import bounds_of, box_around, box_geometry, in_utc, parse_time
from pmpguard.geo.hit_rows import FoundImage

COLLECTION = "collection.json"
_ITEMS = "items"
_WHOLE_EARTH = (-180.0, -90.0, 180.0, 90.0)
_EARLIEST = datetime.datetime(1858, 1, 1, tzinfo=datetime.UTC)  # the first aerial photograph
_PROJECTED_BOX = ("left", "bottom", "right", "top")
_MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".tif": "image/tiff"}


def hits_to_stac(
    hits: Sequence[FoundImage],
    out: Path,
    *,
    images: Path | Mapping[str, Path] | None = None,
    description: str = "Images found by a search, best first",
) -> Path:
    """Write a STAC collection with one item per hit and return the path of its `collection.json`.

    `images` says where links lead: the folder the hits' images are relative to, or an image's path for the
    id of every hit. An earlier collection in `out` is replaced; a folder with anything else in it is refused.
    STAC knows no unknown time: an item without one gets a span from the first aerial photograph to now, and
    `pmpguard:time_known` false.
    """
    pystac = require("pystac", "geo")
    if out.exists() and not (out.is_dir() and ((out / COLLECTION).is_file() or not any(out.iterdir()))):
        raise DataError(f"{out}: exists and is no STAC collection", fix="choose a new folder")
    repeated = [name for name, count in Counter(hit.id for hit in hits).items() if count > 1]
    if repeated:
        raise DataError(f"several hits have the id {repeated[0]!r}", fix="export one hit per image")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    collection = pystac.Collection(
        id="search-results", description=description, extent=_extent(pystac, hits, now), license="other"
    )
    layout = require("pystac.layout", "geo").CustomLayoutStrategy(item_func=_item_place)
    with atomic_directory(out) as temporary:
        collection.set_self_href(str(temporary / COLLECTION))
        for rank, hit in enumerate(hits, start=1):
            item = _item(pystac, hit, rank, now)
            if hit.image:
                item.add_asset("image", _asset(pystac, hit.id, hit.image, images, out))
            collection.add_item(item, strategy=layout)
        collection.save(catalog_type=pystac.CatalogType.SELF_CONTAINED)
    return out / COLLECTION


def _asset(pystac: Any, id: str, image: str, images: Path | Mapping[str, Path] | None, out: Path) -> Any:
    """The image, by its path from the item's file where it is known."""
    path = images / image if isinstance(images, Path) else (images or {}).get(id)
    place = image if path is None else os.path.relpath(path.resolve(), (out / _ITEMS).resolve())
    return pystac.Asset(place, media_type=_MEDIA_TYPES.get(Path(image).suffix.lower()), roles=["data"])


def _item_place(item: Any, folder: str) -> str:
    return str(Path(folder) / _ITEMS / f"{file_name_of(item.id)}.json")


def _item(pystac: Any, hit: FoundImage, rank: int, now: datetime.datetime) -> Any:
    box, time = bounds_of(hit.metadata), _time_of(hit.metadata)
    properties = {
        "pmpguard:rank": rank,
        "pmpguard:score": hit.score,
        "pmpguard:probability": hit.probability,
        "pmpguard:caption": hit.caption,
        "pmpguard:time_known": time is not None,
        "pmpguard:metadata": hit.metadata,
        **({"gsd": hit.metadata["resolution"]} if hit.metadata.get("resolution") else {}),
    }
    item = pystac.Item(
        id=hit.id,
        geometry=None if box is None else box_geometry(box),
        bbox=None if box is None else list(box),
        datetime=time,
        start_datetime=None if time else _EARLIEST,
        end_datetime=None if time else now,
        properties=plain_value(properties),
    )
    _add_projection(item, hit.metadata)
    return item


def _add_projection(item: Any, metadata: Mapping[str, Any]) -> None:
    """The fields of the projection extension, as far as they are known."""
    crs = metadata.get("crs")
    if not crs:
        return
    extension = require("pystac.extensions.projection", "geo").ProjectionExtension
    is_code = re.fullmatch(r"[A-Za-z]+:\w+", str(crs)) is not None
    shape, bounds = (
        [plain_value(metadata.get(name)) for name in names] for names in (("height", "width"), _PROJECTED_BOX)
    )
    extension.ext(item, add_if_missing=True).apply(
        code=str(crs) if is_code else None,
        wkt2=None if is_code else str(crs),
        bbox=None if None in bounds else bounds,
        shape=None if None in shape else shape,
        transform=plain_value(metadata.get("transform")),
    )


def _extent(pystac: Any, hits: Sequence[FoundImage], now: datetime.datetime) -> Any:
    """Where and when all of them are; everywhere and any time where nothing is known."""
    box = box_around(box for hit in hits if (box := bounds_of(hit.metadata)))
    known = [_time_of(hit.metadata) for hit in hits]
    span = [
        min((time or _EARLIEST for time in known), default=_EARLIEST),
        max((time or now for time in known), default=now),
    ]
    return pystac.Extent(pystac.SpatialExtent([list(box or _WHOLE_EARTH)]), pystac.TemporalExtent([span]))


def _time_of(metadata: Mapping[str, Any]) -> datetime.datetime | None:
    time = metadata.get("time")
    if isinstance(time, datetime.datetime):
        return in_utc(time)
    try:
        return parse_time(str(time)) if time else None
    except ConfigError:
        return None
