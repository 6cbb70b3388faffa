"""Isotonic regression: the non-decreasing function nearest to what was observed, for calibration.

References: Ayer et al., "An Empirical Distribution Function for Sampling with Incomplete Information", 1955
(pool adjacent violators); Zadrozny and Elkan, "Transforming Classifier Scores into Accurate Multiclass
Probability Estimates", KDD 2002.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A non-decreasing function: constant on each block of scores, in straight lines between blocks."""

    scores: Array  # (K,) rising
    values: Array  # (K,) rising

    def __call__(self, scores: npt.ArrayLike) -> Array:
        return np.interp(np.asarray(scores, np.float64), self.scores, self.values)


def fit_isotonic(scores: npt.ArrayLike, truth: npt.ArrayLike, prior: float = 0.0) -> Calibration:
    """The share of truth (N,) in [0, 1] as a function of the scores (N,) that never falls.

    `prior` observations of either truth are added to each block, so that few scores are never sure.

    >>> found = fit_isotonic([1, 2, 3, 4], [0, 1, 0, 1])
    >>> found([1, 2.5, 4]).tolist()
    [0.0, 0.5, 1.0]
    """
    given, true = np.asarray(scores, np.float64), np.asarray(truth, np.float64)
    levels, place = np.unique(given, return_inverse=True)  # equal scores are one
    blocks: list[list[float]] = []  # sum of truth, count, first score, last score
    sums, counts = np.bincount(place, true), np.bincount(place)
    for level, total, count in zip(levels.tolist(), sums.tolist(), counts.tolist(), strict=True):
        blocks.append([total, count, level, level])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [blocks[-1][0] + last[0], blocks[-1][1] + last[1], blocks[-1][2], last[3]]
    values = [(total + prior) / (count + 2 * prior) for total, count, _, _ in blocks]
    rising = np.maximum.accumulate(values)
    ends = np.array([(first, last) for _, _, first, last in blocks]).reshape(-1)
    return Calibration(ends, np.repeat(rising, 2))
