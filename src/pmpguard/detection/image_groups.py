"""Scene classes and folds of images as they are given: one whole number for each image, or an error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pmpguard.detection.null_pairs import Numbers
from pmpguard.errors import ConfigError, DataError


def checked_labels(labels: npt.ArrayLike | Tensor | None, images: int) -> Numbers | None:
    """(I,) scene classes, -1 for unknown; None where there are none."""
    if labels is None:
        return None
    return _one_per_image(labels, "image_labels", images, "number the classes from 0, -1 for unknown")


def checked_folds(folds: npt.ArrayLike | Tensor, images: int) -> Numbers:
    """(I,) folds from 0, none without an image; two at least: no pair may be judged by what it taught."""
    numbers = _one_per_image(folds, "image_folds", images, "number the folds from 0")
    outside = np.flatnonzero(numbers < 0)
    if len(outside):
        raise DataError(
            f"image_folds row {outside[0]}: {numbers[outside[0]]} is negative", fix="number the folds from 0"
        )
    folds, fold_of = np.unique(numbers, return_inverse=True)
    if len(folds) < 2:
        raise DataError(
            f"image_folds: all {images} images are in fold {folds[0]}",
            fix="give two folds at least, or leave them out: no pair may be judged by what it taught",
        )
    return fold_of.ravel()


def check_whole(name: str, value: object, least: int) -> None:
    """An option that counts something."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{name}: {value!r} is no whole number from {least}", fix=f"give {least} or more")


def _one_per_image(values: npt.ArrayLike | Tensor, name: str, images: int, fix: str) -> Numbers:
    array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (images,):
        raise DataError(f"{name}: shape {array.shape}, expected ({images},)", fix="give one for each image")
    if array.dtype.kind not in "iu":
        raise DataError(f"{name}: {array.dtype} is no whole number", fix=fix)
    return array.astype(np.int64, copy=False)
