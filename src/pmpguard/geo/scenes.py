"""GeoTIFF files: where and when they were taken, and what else their tags say.

Only GDAL's GeoTIFF driver is let in, so a file cannot point GDAL at other files or at the network.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import TiffImagePlugin

from pmpguard.data.column_names import CAPTION_NAMES, IMAGE_NAMES, STANDARD
from pmpguard.data.pairs import COORDINATES
from pmpguard.errors import ConfigError, DataError, PmpguardError, require
from pmpguard.geo.footprints import Box, in_utc, parse_time, wrapped_box

Transform = tuple[float, float, float, float, float, float]  # a, b, c, d, e, f of x = a col + b row + c
_DEGREES = "EPSG:4326"
_GEO_KEYS = 34735  # the tag that names a GeoTIFF's reference system
_EARTH_RADIUS = 6_371_008.8  # metres
_CACHE_MEGABYTES = 256
_LARGEST_BLOCK = 512 * 2**20  # bytes GDAL has to decode at once
_MAX_SIDECAR = 10 * 2**20
_MAX_PROPERTIES = 40
_MAX_PROPERTY_CHARACTERS = 200
_ACQUIRED = ("acquisitiondatetime", "acquisitiondate", "dateacquired", "sensingdatetime", "datetime")
_CLOUD_COVER = (
    "eocloudcover",
    "cloudcover",
    "cloudcoverage",
    "cloudcoverpercentage",
    "cloudypixelpercentage",
)
_TAKEN = {*STANDARD, *CAPTION_NAMES, *IMAGE_NAMES, *COORDINATES}  # mean something else in tables of pairs
_FILE_TAGS = (  # of the file, not of what it shows
    "AREA_OR_POINT",
    "OVR_RESAMPLING_ALG",
    "TIFFTAG_DATETIME",
    "TIFFTAG_XRESOLUTION",
    "TIFFTAG_YRESOLUTION",
    "TIFFTAG_RESOLUTIONUNIT",
)
_NAME_DATE = re.compile(
    r"(?<!\d)((?:19|20)\d\d)(?P<mark>[-_.]?)(0[1-9]|1[0-2])(?P=mark)(0[1-9]|[12]\d|3[01])"
    r"(?:[T_-]?([01]\d|2[0-3])(?P<colon>[-:]?)([0-5]\d)(?P=colon)([0-5]\d))?(?!\d)"
)


@dataclass(frozen=True)
class ScenePlace:
    """A scene's reference system, as rasterio holds it and as text, and its pixel-to-map transform."""

    crs: Any
    crs_name: str  # "EPSG:32633", or WKT where there is no code
    transform: Transform


@dataclass(frozen=True)
class SceneFacts:
    """What a scene's tags, its STAC item and its name say; `properties` are further named values."""

    place: ScenePlace | None
    time: datetime.datetime | None
    time_source: str | None  # "stac", "tag" or "name"
    cloud_cover: float | None
    properties: Mapping[str, str]
    warnings: tuple[str, ...]


def has_coordinates(path: Path) -> bool:
    """Whether a TIFF says where it lies; looks at its tags alone, and needs no geographic library."""
    try:
        with path.open("rb") as stream:
            head = stream.read(16)
            is_big = b"\x2b" in head[2:4]  # BigTIFF, whose head is longer
            tags = TiffImagePlugin.ImageFileDirectory_v2(head if is_big else head[:8])
            stream.seek(tags.next)
            tags.load(stream)
    except Exception:  # of a damaged file anything can be raised
        return False
    return _GEO_KEYS in tags


@contextmanager
def opened_file(path: Path) -> Iterator[Any]:
    """A GeoTIFF as a rasterio dataset whose blocks GDAL keeps within a fixed share of memory."""
    rasterio = require("rasterio", "geo")
    unplaced = require("rasterio.errors", "geo").NotGeoreferencedWarning
    with rasterio.Env(GDAL_CACHEMAX=_CACHE_MEGABYTES), warnings.catch_warnings():
        warnings.simplefilter("ignore", unplaced)  # we say so ourselves
        with damage_named(path):
            dataset = rasterio.open(path, driver="GTiff")
        with dataset:
            _check_pixels(dataset, path)
            yield dataset


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn whatever GDAL raises into an error naming the scene; damaged data can raise anything."""
    try:
        yield
    except PmpguardError:
        raise
    except Exception as error:
        cause = error.__cause__ or error
        raise DataError(
            f"{path}: damaged, or not a GeoTIFF ({cause})", fix="restore the file from its source"
        ) from error


def _check_pixels(dataset: Any, path: Path) -> None:
    """Refuse what cannot be read in parts, and values that make no image."""
    if any("complex" in kind for kind in dataset.dtypes):
        raise DataError(f"{path}: holds complex values", fix="convert it to amplitudes first")
    height, width = dataset.block_shapes[0]
    planes = dataset.count if dataset.interleaving.name == "pixel" else 1
    if height * width * planes * np.dtype(dataset.dtypes[0]).itemsize > _LARGEST_BLOCK:
        raise DataError(
            f"{path}: stored in blocks of {width}x{height} pixels, too large to read in parts",
            fix="rewrite it with: gdal_translate -co TILED=YES -co COMPRESS=DEFLATE in.tif out.tif",
        )


def scene_facts(dataset: Any, path: Path, item: Mapping[str, Any] | None = None) -> SceneFacts:
    """Everything but the pixels; `item` is the scene's STAC item, where it does not lie beside the file."""
    notes: list[str] = []
    with damage_named(path):
        place = _place_of(dataset, path, notes)
        tags = {**dataset.tags(), **dataset.tags(ns="IMAGERY")}
    item = _stac_item(path, notes) if item is None else item
    stac = item.get("properties", {})
    time, source = _time_of(stac, tags, path)
    return SceneFacts(
        place, time, source, _cloud_cover({**tags, **stac}), _properties(tags, stac), tuple(notes)
    )


def _place_of(dataset: Any, path: Path, notes: list[str]) -> ScenePlace | None:
    if dataset.crs is None or dataset.transform.is_identity:
        reason = (
            "ground control points only, warp it to have them" if dataset.gcps[0] else "not georeferenced"
        )
        notes.append(f"{path}: tiles have no coordinates ({reason})")
        return None
    authority = dataset.crs.to_authority()
    name = ":".join(authority) if authority else dataset.crs.to_wkt()
    place = ScenePlace(dataset.crs, name, tuple(dataset.transform)[:6])
    if degrees_of(place, 0, 0, dataset.width, dataset.height) is None:
        notes.append(f"{path}: tiles have no coordinates (no way from its reference system to degrees)")
        return None
    return place


def pixel_place(transform: Transform, column: float, row: float) -> tuple[float, float]:
    """The map coordinates of a pixel's upper left corner."""
    a, b, c, d, e, f = transform
    return a * column + b * row + c, d * column + e * row + f


def shifted(transform: Transform, column: int, row: int) -> Transform:
    """The transform of the part of a scene that begins at `column` and `row`."""
    a, b, _, d, e, _ = transform
    x, y = pixel_place(transform, column, row)
    return a, b, x, d, e, y


def map_bounds(transform: Transform, column: int, row: int, width: int, height: int) -> Box:
    """Left, bottom, right and top of a part of the scene in its own reference system."""
    corners = [
        pixel_place(transform, column + right, row + down) for right in (0, width) for down in (0, height)
    ]
    xs, ys = zip(*corners, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def degrees_of(place: ScenePlace, column: int, row: int, width: int, height: int) -> Box | None:
    """West, south, east and north of a part of the scene; None where they cannot be told.

    Edges are followed at 21 points a side, for straight lines of one system are bent in another.
    """
    warp = require("rasterio.warp", "geo")
    bounds = map_bounds(place.transform, column, row, width, height)
    try:
        return wrapped_box(*warp.transform_bounds(place.crs, _DEGREES, *bounds, densify_pts=21))
    except Exception:  # a system of another planet, coordinates outside the projection's domain
        return None


def ground_resolution(place: ScenePlace, column: float, row: float) -> float | None:
    """Metres a pixel at this place spans on the ground: the square root of its area."""
    warp = require("rasterio.warp", "geo")
    corners = [
        pixel_place(place.transform, column + right, row + down) for right, down in ((0, 0), (1, 0), (0, 1))
    ]
    xs, ys = zip(*corners, strict=True)
    try:
        longitudes, latitudes = warp.transform(place.crs, _DEGREES, xs, ys)
    except Exception:  # as above
        return None
    shrink = math.cos(math.radians(latitudes[0]))
    (right_x, right_y), (down_x, down_y) = (
        (((longitudes[i] - longitudes[0] + 180) % 360 - 180) * shrink, latitudes[i] - latitudes[0])
        for i in (1, 2)
    )
    area = abs(right_x * down_y - right_y * down_x)  # square degrees
    metres = math.sqrt(area) * math.radians(1) * _EARTH_RADIUS
    return metres if math.isfinite(metres) and metres > 0 else None


def side_files(path: Path) -> list[Path]:
    """The scene's file and those beside it that belong to it: STAC item, world file, overviews, masks."""
    beginning = f"{path.stem}."
    return [path, *sorted(p for p in path.parent.iterdir() if p.name.startswith(beginning) and p != path)]


def _stac_item(path: Path, notes: list[str]) -> dict[str, Any]:
    """The STAC item beside the scene, `<name>.json` or `<name>.stac.json`; empty where there is none."""
    for suffix in (".stac.json", ".json"):
        file = path.with_name(path.stem + suffix)
        if not file.is_file() or file.stat().st_size > _MAX_SIDECAR:
            continue
        try:
            item = json.loads(file.read_bytes())
        except (ValueError, RecursionError) as error:
            notes.append(f"{file}: not valid JSON ({error}); ignored")
            continue
        if isinstance(item, dict) and "stac_version" in item and isinstance(item.get("properties"), dict):
            return item
    return {}


def _time_of(
    stac: Mapping[str, Any], tags: Mapping[str, str], path: Path
) -> tuple[datetime.datetime | None, str | None]:
    """When the scene was taken and what says so: STAC item, acquisition tag, the TIFF's date, the name."""
    plain = {_letters(name): value for name, value in tags.items()}
    candidates = [
        (stac.get("datetime") or stac.get("start_datetime"), "stac"),
        *((plain.get(name), "tag") for name in _ACQUIRED),
        (tags.get("TIFFTAG_DATETIME"), "tag"),
        (_date_in_name(path.stem), "name"),
    ]
    for text, source in candidates:
        moment = _moment(text)
        if moment:
            return moment, source
    return None, None


def _moment(text: Any) -> datetime.datetime | None:
    """A time as ISO 8601 or as TIFF writes it, 2024:05:01 12:00:00; None where it is neither."""
    if not isinstance(text, str):
        return None
    try:
        return in_utc(datetime.datetime.strptime(text.strip(), "%Y:%m:%d %H:%M:%S"))
    except ValueError:
        pass
    try:
        return parse_time(text)
    except ConfigError:
        return None


def _date_in_name(stem: str) -> str | None:
    """The first date in a file's name, with its time of day where one follows.

    >>> _date_in_name("T32TQM_20220611T100601_TCI"), _date_in_name("LC08_044034_20140318_20170306")
    ('2022-06-11T10:06:01', '2014-03-18')
    >>> _date_in_name("tile_20229999_2020-02-03")
    '2020-02-03'
    """
    for found in _NAME_DATE.finditer(stem):
        year, _, month, day, hour, _, minute, second = found.groups()
        text = f"{year}-{month}-{day}" + (f"T{hour}:{minute}:{second}" if hour else "")
        if _moment(text):  # not of the 31st of June
            return text
    return None


def _cloud_cover(values: Mapping[str, Any]) -> float | None:
    """Percent of the scene under clouds, under any of the usual names."""
    plain = {_letters(name): value for name, value in values.items()}
    for name in _CLOUD_COVER:
        try:
            percent = float(plain[name])
        except (KeyError, TypeError, ValueError):
            continue
        if 0 <= percent <= 100:
            return percent
    return None


def _properties(tags: Mapping[str, str], stac: Mapping[str, Any]) -> dict[str, str]:
    """Short single values as text under names fit for columns; those of the STAC item win."""
    described = {name.removeprefix("TIFFTAG_"): tags[name] for name in tags if name not in _FILE_TAGS}
    found: dict[str, str] = {}
    for name, value in {**described, **stac}.items():
        column = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        column = f"scene_{column}" if column in _TAKEN else column
        single = isinstance(value, str | int | float) and str(value).strip()
        if column and single and len(str(value)) <= _MAX_PROPERTY_CHARACTERS:
            found[column] = str(value)
    return dict(list(found.items())[-_MAX_PROPERTIES:])


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())
