"""Satellite values to images: which bands, which values are black and white, which pixels count.

Every scene has one look, worked out from a thinned reading of the whole, so that all its tiles match.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pmpguard.errors import DataError, require
from pmpguard.geo.bands import COLOURS, described, place_of, true_colour
from pmpguard.geo.scenes import damage_named

Stretch = Literal["auto", "percentile", "minmax", "none"]
_PERCENTILES = (2, 98)
_SAMPLE_SIDE = 1024


@dataclass(frozen=True)
class SceneLook:
    """How a scene's values become RGB.

    `bands` are one (grey) or three numbers from 1 on. `limits` (bands,2) become black and white; None keeps
    values. `palette` (entries,3) replaces values by colours. `nodata` marks pixels beside the scene's mask.
    `notes` say what a person may have meant otherwise.
    """

    bands: tuple[int, ...]
    limits: np.ndarray | None = None
    palette: np.ndarray | None = None
    nodata: float | None = None
    notes: tuple[str, ...] = ()


def scene_look(
    dataset: Any,
    path: Path,
    bands: tuple[int | str, ...],
    stretch: Stretch,
    nodata: float | None,
    names: tuple[str, ...] = (),
) -> SceneLook:
    """Choose bands and limits; 8-bit values stay as they are unless a stretch is asked for by name.

    `names` are the bands' names where somebody else than the file knows them.
    """
    names = names if len(names) == dataset.count else tuple(name or "" for name in dataset.descriptions)
    if not bands and dataset.colorinterp[0].name == "palette":
        return SceneLook((1,), palette=_palette(dataset), nodata=nodata)
    notes: list[str] = []
    if bands:
        chosen = tuple(_band_number(band, dataset, path, names) for band in bands)
    else:
        chosen = _usual_bands(dataset, path, names, notes)
    if stretch == "auto":
        stretch = "none" if all(_is_full_byte(dataset, band) for band in chosen) else "percentile"
    if stretch == "none":
        return SceneLook(chosen, nodata=nodata, notes=tuple(notes))
    scale = max(1.0, max(dataset.shape) / _SAMPLE_SIDE)
    shape = (len(chosen), *(math.ceil(side / scale) for side in dataset.shape))
    values, valid = _read(dataset, path, chosen, nodata, out_shape=shape)  # (k,h,w)
    limits = [
        stretch_limits(band[good], stretch, band.dtype) for band, good in zip(values, valid, strict=True)
    ]
    return SceneLook(chosen, np.array(limits), nodata=nodata, notes=tuple(notes))


def _band_number(band: int | str, dataset: Any, path: Path, names: tuple[str, ...]) -> int:
    """The number of a band asked for by number, name or colour."""
    if isinstance(band, int):
        place = band - 1 if 1 <= band <= dataset.count else None
    else:
        place = place_of(band, names, path.stem)
        colours = [colour.name for colour in dataset.colorinterp]
        if place is None and band.lower() in colours:
            place = colours.index(band.lower())
    if place is None:
        known = described(range(1, dataset.count + 1), dict(enumerate(names, 1)))
        raise DataError(f"{path}: no band {band}", fix=f"the scene has bands {known}; see --bands")
    return place + 1


def _usual_bands(dataset: Any, path: Path, names: tuple[str, ...], notes: list[str]) -> tuple[int, ...]:
    """Red, green and blue by the bands' names, else by what the file calls them, else the first three.

    What is shown as red, green and blue without being called so is said in a note.
    """
    colours = [colour.name for colour in dataset.colorinterp]
    numbered = dict(enumerate(names, 1))
    called = tuple(colours.index(colour) + 1 for colour in COLOURS) if set(COLOURS) <= {*colours} else ()
    named = tuple(place + 1 for place in true_colour(names, path.stem))
    if named:
        if called and called != named:
            notes.append(
                f"{path}: bands {described(named, numbered)} are red, green and blue by their names, bands "
                f"{described(called, {})} by the file's colours; the names are followed (--bands chooses)"
            )
        return named
    if called:
        return called
    chosen = (1, 2, 3) if dataset.count >= 3 else (1,)
    if len(chosen) < dataset.count or len(chosen) == 3:
        shown = "red, green and blue" if len(chosen) == 3 else "grey"
        notes.append(
            f"{path}: no bands are called red, green and blue; {described(chosen, numbered)} of "
            f"{dataset.count} shown as {shown} (--bands chooses)"
        )
    return chosen


def _is_full_byte(dataset: Any, band: int) -> bool:
    bits = dataset.tags(band, ns="IMAGE_STRUCTURE").get("NBITS", "8")
    return bool(dataset.dtypes[band - 1] == "uint8" and bits == "8")


def _palette(dataset: Any) -> np.ndarray:
    colours = dataset.colormap(1)
    palette = np.zeros((max(colours) + 1, 3), np.uint8)
    for value, colour in colours.items():
        palette[value] = colour[:3]
    return palette


def stretch_limits(values: np.ndarray, stretch: Stretch, kind: np.dtype[Any]) -> tuple[float, float]:
    """The values that become black and white: 2nd and 98th percentile, or smallest and largest.

    Equal percentiles give way to the extremes; where nothing is known, the range the kind of value has.
    """
    if not values.size:
        return (0.0, float(np.iinfo(kind).max)) if kind.kind in "ui" else (0.0, 1.0)
    extremes = float(values.min()), float(values.max())
    if stretch == "minmax":
        return extremes
    low, high = (float(value) for value in np.percentile(values, _PERCENTILES))
    return (low, high) if high > low else extremes


def read_tile(
    dataset: Any, path: Path, look: SceneLook, place: tuple[int, int, int, int], min_valid: float
) -> tuple[np.ndarray | None, float]:
    """The part of the scene at (column, row, width, height) and its share of pixels that hold data.

    The image is uint8 (height,width,3), black where there is no data; None of a part with too little.
    """
    window = require("rasterio.windows", "geo").Window(*place)
    values, valid = _read(dataset, path, look.bands, look.nodata, window=window)  # (k,height,width)
    share = float(valid.any(axis=0).mean())
    if share == 0 or share < min_valid:
        return None, share
    if look.palette is not None:
        known = values[0] < len(look.palette)  # (height,width)
        image = look.palette[np.where(known, values[0], 0)]  # (height,width,3)
        image[~(known & valid[0])] = 0
        return image, share
    image = to_bytes(values, look.limits)  # (k,height,width)
    image[~valid] = 0
    return np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0)), share


def to_bytes(values: np.ndarray, limits: np.ndarray | None) -> np.ndarray:
    """(k,h,w) of any values to uint8: stretched between the limits, or cut to 0 to 255 without any."""
    if limits is None and values.dtype == np.uint8:
        return values
    scaled = values.astype(np.float64)  # changed in place from here on
    if limits is not None:
        low, high = limits[:, :1, None], limits[:, 1:, None]  # (k,1,1)
        scaled -= low
        scaled /= np.where(high > low, high - low, 1.0)
        scaled *= 255
    if values.dtype.kind == "f":
        np.nan_to_num(scaled, copy=False)
    np.clip(scaled, 0, 255, out=scaled)
    return np.rint(scaled, out=scaled).astype(np.uint8)


def _read(
    dataset: Any, path: Path, bands: tuple[int, ...], nodata: float | None, **part: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Values (k,h,w) of the bands and which of them are data, (k,h,w) bool."""
    with damage_named(path):
        values = dataset.read(list(bands), **part)  # (k,h,w)
        valid = dataset.read_masks(list(bands), **part) > 0  # (k,h,w)
    if values.dtype.kind == "f":
        valid &= np.isfinite(values)
    if nodata is not None:
        valid &= values != nodata
    return values, valid
