"""GeoTIFF scenes for tests, written with rasterio."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from pmpguard.geo.tiles import METADATA, TileReport, TileSettings, tile_scenes

UTM = "EPSG:32633"
WHERE = (10.0, 0.0, 500_000.0, 0.0, -10.0, 5_400_000.0)  # ten-metre pixels, north up


def write_scene(
    path: Path,
    pixels: np.ndarray,
    *,
    crs: str | None = UTM,
    transform: tuple[float, ...] | None = WHERE,
    tags: dict[str, str] | None = None,
    colours: tuple[str, ...] | None = None,
    palette: dict[int, tuple[int, ...]] | None = None,
    **options: Any,
) -> Path:
    """Write (bands,H,W) as a GeoTIFF and return its path."""
    import rasterio
    from rasterio.enums import ColorInterp
    from rasterio.transform import Affine

    path.parent.mkdir(parents=True, exist_ok=True)
    bands, height, width = pixels.shape
    place = {} if transform is None else {"transform": Affine(*transform)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(
            path,
            "w",
            driver="GTiff",
            width=width,
            height=height,
            count=bands,
            dtype=pixels.dtype,
            crs=crs,
            **place,
            **options,
        ) as dataset:
            if palette:
                dataset.write_colormap(1, palette)
            if colours:
                dataset.colorinterp = [ColorInterp[colour] for colour in colours]
            dataset.update_tags(**(tags or {}))
            dataset.write(pixels)
    return path


def random_pixels(shape: tuple[int, ...], kind: str = "uint8", seed: int = 0) -> np.ndarray:
    """Values of which none is 0, so that 0 can stand for no data."""
    high = np.iinfo(kind).max
    return np.random.default_rng(seed).integers(1, high, shape, dtype=kind, endpoint=True)


def cut(scenes: Path, out: Path, **settings: Any) -> tuple[TileReport, list[dict[str, Any]]]:
    """Cut scenes; the report and the rows of metadata.parquet."""
    report = tile_scenes(scenes, out, TileSettings(**settings))
    return report, pq.read_table(out / METADATA).to_pylist()


def pixels_of(out: Path, row: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(out / row["image"]))  # (height,width,3)
