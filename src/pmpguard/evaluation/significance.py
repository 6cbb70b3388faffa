"""Whether a difference between two methods is more than chance: paired over the seeds both were run with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t for 1 to 9 degrees of freedom; the last one serves for more.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference over seeds and its 95 % interval; one seed has no interval."""

    mean: float
    interval: tuple[float, float] | None
    seeds: int

    @property
    def reading(self) -> str:
        """What may be said: "ahead", "behind", "within chance", or "one seed"."""
        if self.interval is None:
            return "one seed"
        low, high = self.interval
        return "ahead" if low > 0 else "behind" if high < 0 else "within chance"


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> PairedDifference | None:
    """First minus second by seed, where both have it: Student's t for paired samples; None without any.

    A seed is the noise's as well as the training's, so both methods saw the same mismatched pairs.

    >>> found = paired_difference({0: 3.0, 1: 5.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    >>> found.mean, [round(bound, 2) for bound in found.interval], found.reading
    (2.0, [-0.48, 4.48], 'within chance')
    """
    gains = [first[seed] - second[seed] for seed in first if seed in second]
    if not gains:
        return None
    mean = statistics.fmean(gains)
    if len(gains) == 1:
        return PairedDifference(mean, None, 1)
    wide = T_95[min(len(gains) - 1, len(T_95)) - 1] * statistics.stdev(gains) / math.sqrt(len(gains))
    return PairedDifference(mean, (mean - wide, mean + wide), len(gains))
