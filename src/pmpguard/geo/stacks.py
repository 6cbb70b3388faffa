"""One file per band, read as if they were one scene."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pmpguard.errors import DataError, require
from pmpguard.geo.scene_files import SceneFiles
from pmpguard.geo.scenes import opened_file

_GREY = SimpleNamespace(name="gray")


class BandStack:
    """Datasets of one band each as one dataset, on the grid of the finest; as far as tiles need it."""

    interleaving = SimpleNamespace(name="band")

    def __init__(self, datasets: Sequence[Any], names: Sequence[str], finest: Any) -> None:
        self._datasets = datasets
        self._finest = finest
        self.descriptions = tuple(names)
        self.count = len(datasets)
        self.colorinterp = [_GREY] * len(datasets)
        self.dtypes = [dataset.dtypes[0] for dataset in datasets]
        self.shape = (self.height, self.width) = (finest.height, finest.width)
        self.crs, self.transform, self.gcps = finest.crs, finest.transform, finest.gcps

    def tags(self, band: int | None = None, ns: str | None = None) -> dict[str, str]:
        source, number = (self._finest, None) if band is None else (self._datasets[band - 1], 1)
        found: dict[str, str] = source.tags(number, ns=ns) if number else source.tags(ns=ns)
        return found

    def read(self, bands: Sequence[int], out_shape: Any = None, **part: Any) -> np.ndarray:
        """(k,h,w) of the bands, as rasterio reads them."""
        return self._each("read", bands, out_shape, part)

    def read_masks(self, bands: Sequence[int], out_shape: Any = None, **part: Any) -> np.ndarray:
        """(k,h,w): 0 where there is no data."""
        return self._each("read_masks", bands, out_shape, part)

    def _each(self, method: str, bands: Sequence[int], out_shape: Any, part: dict[str, Any]) -> np.ndarray:
        if out_shape is not None:
            part = {**part, "out_shape": out_shape[1:]}
        return np.stack([getattr(self._datasets[band - 1], method)(1, **part) for band in bands])


@contextlib.contextmanager
def opened_scene(scene: SceneFiles) -> Iterator[Any]:
    """A scene as a dataset; coarser bands are interpolated to the finest one's pixels as they are read."""
    if not scene.bands:
        with opened_file(scene.path) as dataset:
            yield dataset
        return
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(opened_file(file)) for file in scene.bands]
        _check_alike(scene.bands, opened)
        finest = max(opened, key=lambda dataset: dataset.width * dataset.height)
        yield BandStack([_on_grid(dataset, finest, stack) for dataset in opened], scene.names, finest)


def _check_alike(files: Sequence[Path], opened: Sequence[Any]) -> None:
    for file, dataset in zip(files, opened, strict=True):
        if dataset.count != 1:
            raise DataError(f"{file}: holds {dataset.count} bands where one is meant", fix="check the file")
        if dataset.crs != opened[0].crs or (dataset.crs is None and dataset.shape != opened[0].shape):
            raise DataError(
                f"{file}: is of another grid than {files[0]}", fix="warp them to one grid, as gdalwarp does"
            )


def _on_grid(dataset: Any, finest: Any, stack: contextlib.ExitStack) -> Any:
    """The band itself where it has the grid of the finest, else a view of it on that grid."""
    if dataset.shape == finest.shape and dataset.transform.almost_equals(finest.transform, precision=1e-6):
        return dataset
    if dataset.crs is None:
        return dataset
    vrt = require("rasterio.vrt", "geo").WarpedVRT
    bilinear = require("rasterio.enums", "geo").Resampling.bilinear
    grid = {"transform": finest.transform, "width": finest.width, "height": finest.height}
    return stack.enter_context(vrt(dataset, crs=finest.crs, resampling=bilinear, **grid))
