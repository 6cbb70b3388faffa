"""Which pairs have a low loss: a mixture of two beta distributions fitted to losses squeezed into [0, 1].

Reference: Arazo et al., "Unsupervised Label Noise Modeling and Loss Correction", ICML 2019. Networks learn
right pairs before wrong ones, so early in training the right ones have the lower losses. Unlike
`mixture.py` it knows nothing of what mismatched pairs score: it always finds two groups, at 0 % mismatch too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pmpguard.errors import DataError

Array = npt.NDArray[np.float64]

# Densities may be infinite at 0 and 1, so values are kept this far away from them.
_EDGE = 1e-4
_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class BetaComponent:
    """One part of the mixture."""

    alpha: float
    beta: float
    weight: float

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    def log_density(self, values: Array) -> Array:
        """Logarithm of weight times density, at values in (0, 1)."""
        scale = math.lgamma(self.alpha + self.beta) - math.lgamma(self.alpha) - math.lgamma(self.beta)
        powers = (self.alpha - 1) * np.log(values) + (self.beta - 1) * np.log1p(-values)
        return np.asarray(math.log(max(self.weight, 1e-300)) + scale + powers)


@dataclass(frozen=True)
class BetaMixture:
    """A fitted mixture. `p_low` holds each pair's probability of belonging to the group with low losses."""

    low: BetaComponent
    high: BetaComponent
    lowest: float  # the losses that became 0 and 1
    highest: float
    p_low: Array  # (N,)


def fit_beta_mixture(losses: npt.ArrayLike, iterations: int = 10) -> BetaMixture:
    """Fit by EM with matched moments, from densities that fall and rise linearly.

    When all losses are equal they say nothing, and `p_low` is 1 everywhere.

    >>> fit_beta_mixture([0.1, 0.2, 0.1, 0.15, 3.9, 4.0, 4.1]).p_low.round(1).tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise DataError(f"losses: expected a list of finite numbers, got shape {values.shape}")
    low, high = BetaComponent(1.0, 2.0, 0.5), BetaComponent(2.0, 1.0, 0.5)
    lowest, highest = float(values.min()), float(values.max())
    if lowest == highest:
        return BetaMixture(low, high, lowest, highest, np.ones(len(values)))
    squeezed = ((values - lowest) / (highest - lowest)).clip(_EDGE, 1 - _EDGE)
    for _ in range(iterations):
        share = _share_of_low(low.log_density(squeezed), high.log_density(squeezed))  # (N,)
        low, high = _component(squeezed, share), _component(squeezed, 1 - share)
    if low.mean > high.mean:
        low, high = high, low
    return BetaMixture(low, high, lowest, highest, low_posterior(low, high, squeezed))


def low_posterior(low: BetaComponent, high: BetaComponent, values: Array) -> Array:
    """p(low) of values in (0, 1); never rises with the value.

    The log odds are a constant + (a0 - a1) ln x + (b0 - b1) ln(1 - x) and turn round once at most: a wide
    group outlives a narrow one at both ends, and would claim the other's best members. Beyond the turning
    point the value there is kept.
    """
    rise, fall = low.alpha - high.alpha, low.beta - high.beta
    if rise > 0 and fall > 0:
        values = np.maximum(values, rise / (rise + fall))
    elif rise < 0 and fall < 0:
        values = np.minimum(values, rise / (rise + fall))
    return _share_of_low(low.log_density(values), high.log_density(values))


def _share_of_low(low: Array, high: Array) -> Array:
    """exp(low) / (exp(low) + exp(high))."""
    return np.asarray(np.exp(low - np.logaddexp(low, high)))


def _component(values: Array, shares: Array) -> BetaComponent:
    """The beta distribution with the weighted mean and variance of the values."""
    total = max(float(shares.sum()), 1e-12)
    mean = float(np.clip((shares * values).sum() / total, _EDGE, 1 - _EDGE))
    variance = float((shares * (values - mean) ** 2).sum() / total)
    variance = float(np.clip(variance, _LEAST_VARIANCE, 0.999 * mean * (1 - mean)))
    size = mean * (1 - mean) / variance - 1  # alpha + beta
    return BetaComponent(mean * size, (1 - mean) * size, total / len(values))
