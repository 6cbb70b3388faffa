"""`pmpguard tile`: GeoTIFF scenes cut into tiles that `pmpguard embed` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pmpguard.errors import ConfigError
from pmpguard.geo.pixels import Stretch
from pmpguard.geo.tiles import TileReport, TileSettings, tile_scenes


def tile(
    scenes: Path,
    out: Path | None = None,
    size: int = 256,
    overlap: float = 0.25,
    bands: str = "",
    stretch: Stretch = "auto",
    min_valid: float = 0.5,
    nodata: float | None = None,
    format: Literal["png", "jpeg"] = "png",
    quality: int = 90,
    progress: bool = True,
) -> TileReport:
    """Cut GeoTIFF scenes into overlapping tiles that keep their coordinates, time and tags.

    Scenes are read part by part. Run the command again to go on after an interruption, or to add scenes:
    those cut before with the same options are left as they are. A scene that cannot be read is reported, the
    others are cut, and the exit code is 1.

    Args:
        scenes: a GeoTIFF file, or a folder of them.
        out: the folder to write: tiles and `metadata.parquet`.
        size: pixels a side of a tile.
        overlap: the share of a tile that its neighbour shows too.
        bands: one band for grey or three for colour, counted from 1, such as 4,3,2; by default those the file
            calls red, green and blue, else the first three.
        stretch: which values become black and white: `percentile` the 2nd and 98th of the scene, `minmax` its
            extremes, `none` 0 and 255; `auto` keeps 8-bit values and stretches deeper ones by percentile.
        min_valid: leave out tiles with a smaller share of pixels that hold data.
        nodata: a value that means no data, where the scene does not say so itself.
        format: png or jpeg.
        quality: of jpeg, 1 to 100.
        progress: draw a progress bar on stderr.
    """
    if out is None:
        raise ConfigError("where do the tiles go?", fix="give --out FOLDER")
    settings = TileSettings(size, overlap, parse_bands(bands), stretch, min_valid, nodata, format, quality)
    return tile_scenes(scenes, out, settings, progress)


def parse_bands(text: str) -> tuple[int, ...]:
    """Band numbers separated by commas; none of an empty text.

    >>> parse_bands("4, 3,2"), parse_bands("")
    ((4, 3, 2), ())
    """
    try:
        bands = tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError as error:
        raise ConfigError(f"bands {text!r}: not numbers", fix="write them as 4,3,2") from error
    if any(band < 1 for band in bands):
        raise ConfigError(f"bands {text!r}: counted from 1", fix="write them as 4,3,2")
    return bands
