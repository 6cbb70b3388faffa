"""Folds of images: whoever judges a pair has seen neither its image nor a copy of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pmpguard.data.quality.perceptual_hash import groups
from pmpguard.stable_random import StableRandom

Codes = npt.NDArray[np.int64]
VALIDATION = 0.1
MOST_VALIDATION = 500  # images


def split_images(images: int, folds: int, seed: int, duplicates: Sequence[Sequence[int]] = ()) -> Codes:
    """(images,) the fold of each image, of nearly equal sizes; a set of `duplicates` stays together.

    >>> fold = split_images(10, 3, 0, duplicates=[(0, 7, 8)])
    >>> sorted(np.bincount(fold).tolist()), len({int(fold[image]) for image in (0, 7, 8)})
    ([3, 3, 4], 1)
    """
    links = np.array([(members[0], other) for members in duplicates for other in members[1:]], dtype=np.int64)
    leader = np.asarray(groups(images, links.reshape(-1, 2)))
    leaders, place, sizes = np.unique(leader, return_inverse=True, return_counts=True)
    order = StableRandom("image folds", seed).order(len(leaders))
    order = order[np.argsort(-sizes[order], kind="stable")]  # large sets first, into the smallest fold
    fold_of_set = np.empty(len(leaders), np.int64)
    filled = np.zeros(folds, np.int64)
    for one in order:
        smallest = int(filled.argmin())
        fold_of_set[one] = smallest
        filled[smallest] += sizes[one]
    return fold_of_set[place.ravel()]


def training_images(fold: Codes, judged: int, seed: int) -> tuple[Codes, Codes]:
    """(images to train on, images to select the model on), both without those of the judged fold."""
    others = np.flatnonzero(fold != judged)
    order = others[StableRandom("validation images", seed, judged).order(len(others))]
    held = min(max(round(VALIDATION * len(others)), 2), MOST_VALIDATION)
    return np.sort(order[held:]), np.sort(order[:held])
