"""Ranges of consecutive numbers, many at once."""

from __future__ import annotations

import numpy as np


def expand_ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers start .. start+size-1 of every range, one after another.

    >>> expand_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(sizes) - sizes
    offsets = np.arange(int(sizes.sum())) - np.repeat(before, sizes)
    return np.asarray(offsets + np.repeat(starts, sizes))
