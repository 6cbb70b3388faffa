"""`pmpguard tile`: GeoTIFF scenes cut into tiles that `pmpguard embed` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pmpguard.errors import ConfigError
from pmpguard.geo.pixels import Stretch
from pmpguard.geo.tiles import TileReport, TileSettings, tile_scenes


def tile(
    scenes: str,
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
        scenes: a GeoTIFF file, a folder of them, or a STAC catalogue, collection, item or item collection: a
            file, or an address of file:// or http(s)://.
        out: the folder to write: tiles and `metadata.parquet`.
        size: pixels a side of a tile.
        overlap: the share of a tile that its neighbour shows too.
        bands: one band for grey or three for colour, counted from 1, such as 4,3,2, or by name, such as
            B08,B04,B03 or red,green,blue; by default those called red, green and blue, else the first three.
        stretch: which values become black and white: `percentile` the 2nd and 98th of the scene, `minmax` its
            extremes, `none` 0 and 255; `auto` keeps 8-bit values and stretches deeper ones by percentile.
        min_valid: leave out tiles with a smaller share of pixels that hold data.
        nodata: a value that means no data, where the scene does not say so itself.
        format: file format of the tiles, png or jpeg.
        quality: quality of jpeg tiles, 1 to 100.
        progress: draw a progress bar on stderr.
    """
    if out is None:
        raise ConfigError("where do the tiles go?", fix="give --out FOLDER")
    settings = TileSettings(size, overlap, parse_bands(bands), stretch, min_valid, nodata, format, quality)
    return tile_scenes(scenes, out, settings, progress)


def parse_bands(text: str) -> tuple[int | str, ...]:
    """Band numbers or names separated by commas; none of an empty text.

    >>> parse_bands("4, 3,2"), parse_bands("B08,red,3"), parse_bands("")
    ((4, 3, 2), ('B08', 'red', 3), ())
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    bands = tuple(int(part) if part.lstrip("+-").isdecimal() else part for part in parts)
    if any(band == "" or (isinstance(band, int) and band < 1) for band in bands):
        fix = "write them as 4,3,2, counted from 1, or by name as B04,B03,B02"
        raise ConfigError(f"bands {text!r}: not numbers or names of bands", fix=fix)
    return bands
