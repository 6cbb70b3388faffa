"""Many small images on few sheets, so that a page of 50,000 pairs loads only the sheets in sight.

Two kinds: thumbnails of the dataset's images (JPEG) and the heat maps of words (PNG with a palette). A
sheet is a square of equal tiles, filled row by row from the top left; a tile's number says where it lies.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from pmpguard.audit.rows import AuditRow

THUMBNAIL = 224  # pixels; a multiple of 16, so that JPEG blocks never span two tiles
ACROSS = 4  # thumbnails in a row of a sheet
HEAT_SHEET = 512  # pixels along a sheet of heat maps
_QUALITY = 82
_TYPICAL, _STRONGEST = 0.5, 0.995  # quantiles of all cosines: where the heat begins, where it is full
_SAMPLED_PAIRS = 2000
# Level, red, green, blue, alpha: shade where a word is not found, warm light where it is;
# web/shared/heat.js has the same.
HEAT = ((0, 8, 10, 20, 130), (0.5, 120, 95, 45, 50), (1, 255, 205, 80, 120))

LoadThumbnail = Callable[[str], Image.Image | None]
SaveSheet = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Thumbnails:
    """Where each image lies. `tile` is -1 where there is none; `width` and `height` are its pixels."""

    tile: np.ndarray  # (images,) int
    width: np.ndarray  # (images,) int
    height: np.ndarray  # (images,) int


@dataclass(frozen=True)
class HeatMaps:
    """The sheets of heat maps: word number w of all pairs together has tile w. No tiles: 0 across."""

    across: int
    tile_height: int
    tile_width: int


def write_thumbnails(images: Sequence[str], load_thumbnail: LoadThumbnail, save: SaveSheet) -> Thumbnails:
    """Draw every image that can be loaded, in order, and hand each full sheet to `save` as `000.jpg`..."""
    tile = np.full(len(images), -1)
    width, height = np.zeros(len(images), int), np.zeros(len(images), int)
    waiting: list[Image.Image] = []
    sheets = placed = 0
    for index, name in enumerate(images):
        image = load_thumbnail(name)
        if image is None:
            continue
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
        tile[index], (width[index], height[index]) = placed, small.size
        placed += 1
        waiting.append(small)
        if len(waiting) == ACROSS * ACROSS:
            save(f"{sheets:03d}.jpg", _thumbnail_sheet(waiting))
            sheets += 1
            waiting.clear()
    if waiting:
        save(f"{sheets:03d}.jpg", _thumbnail_sheet(waiting))
    return Thumbnails(tile, width, height)


def _thumbnail_sheet(images: Sequence[Image.Image]) -> bytes:
    side, rows = ACROSS * THUMBNAIL, math.ceil(len(images) / ACROSS)
    sheet = Image.new("RGB", (side, rows * THUMBNAIL))
    for place, image in enumerate(images):
        row, column = divmod(place, ACROSS)
        sheet.paste(image, (column * THUMBNAIL, row * THUMBNAIL))
    stream = io.BytesIO()
    sheet.save(stream, "JPEG", quality=_QUALITY)
    return stream.getvalue()


def write_heat_maps(rows: Sequence[AuditRow], save: SaveSheet) -> HeatMaps:
    """Draw the regions of every word, in order, and hand each full sheet to `save` as `heat-000.png`...

    All pairs share one scale, from the typical cosine to the strongest ones: a word that is nowhere in its
    image stays pale instead of having its noise blown up.
    """
    grids = [row.grid for row in rows if any(word.regions for word in row.words)]
    if not grids:
        return HeatMaps(0, 0, 0)
    tile_height, tile_width = max(grid[0] for grid in grids), max(grid[1] for grid in grids)
    across = max(1, HEAT_SHEET // max(tile_height, tile_width))
    low, high = _heat_scale(rows)
    sheet = np.full((across, tile_height, across, tile_width), low)  # cosines; the lowest are not drawn
    sheets = filled = 0
    for row in rows:
        for word in row.words:
            if word.regions:
                place, column = divmod(filled, across)
                regions = np.array(word.regions).reshape(row.grid)  # (h, w)
                sheet[place, : row.grid[0], column, : row.grid[1]] = regions
            filled += 1
            if filled == across * across:
                save(f"heat-{sheets:03d}.png", _heat_sheet(_heat_levels(sheet, low, high)))
                sheets, filled = sheets + 1, 0
                sheet[:] = low
    if filled:
        save(
            f"heat-{sheets:03d}.png",
            _heat_sheet(_heat_levels(sheet[: math.ceil(filled / across)], low, high)),
        )
    return HeatMaps(across, tile_height, tile_width)


def _heat_scale(rows: Sequence[AuditRow]) -> tuple[float, float]:
    explained = [row for row in rows if any(word.regions for word in row.words)]
    explained = explained[:: math.ceil(len(explained) / _SAMPLED_PAIRS)]
    values = np.array([cosine for row in explained for word in row.words for cosine in word.regions])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = np.quantile(values, (_TYPICAL, _STRONGEST))
    return float(low), float(high if high > low else values.max())  # where few regions stand out, to the best


def _heat_levels(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 to 255; not-a-number is 0."""
    scaled = np.clip((values - low) / (high - low if high > low else 1.0), 0, 1) * 255
    return np.nan_to_num(scaled).round().astype(np.uint8)


def _heat_sheet(sheet: np.ndarray) -> bytes:
    """(down, h, across, w) levels to a PNG whose palette is the colours of heat maps."""
    down, tile_height, across, tile_width = sheet.shape
    image = Image.fromarray(np.ascontiguousarray(sheet.reshape(down * tile_height, across * tile_width)), "L")
    stops, *channels = zip(*HEAT, strict=True)
    level = np.linspace(0, 1, 256)
    colours = np.stack([np.interp(level, stops, channel) for channel in channels], axis=1)  # (256, 4)
    colours = colours.round().astype(np.uint8)
    image.putpalette(colours[:, :3].tobytes())
    stream = io.BytesIO()
    image.save(stream, "PNG", transparency=colours[:, 3].tobytes())
    return stream.getvalue()
