"""Which pairs have a low loss: a mixture of two Gaussians fitted to losses squeezed into [0, 1].

Reference: Li, Socher and Hoi, "DivideMix: Learning with Noisy Labels as Semi-supervised Learning", ICLR 2020.
Like `beta_mixture.py` it knows nothing of what mismatched pairs score and always finds two groups, at 0 %
mismatch too. The published methods that judge pairs by their loss differ in which of the two they fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pmpguard.errors import DataError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GaussianMixture:
    """A fitted mixture, the group of low losses first."""

    weights: Array  # (2,)
    means: Array  # (2,) of losses in [0, 1]
    variances: Array  # (2,)
    p_low: Array  # (N,) each pair's probability of belonging to the group with low losses


def fit_gaussian_mixture(
    losses: npt.ArrayLike, iterations: int = 100, tolerance: float = 1e-4, floor: float = 5e-4
) -> GaussianMixture:
    """Fit by EM, from the means at the first and the last decile; `floor` is added to each variance.

    EM ends when the mean log-likelihood gains less than `tolerance`. When all losses are equal they say
    nothing, and `p_low` is 1 everywhere.

    >>> fit_gaussian_mixture([0.1, 0.2, 0.1, 0.15, 3.9, 4.0, 4.1]).p_low.round(1).tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise DataError(f"losses: expected a list of finite numbers, got shape {values.shape}")
    lowest, highest = float(values.min()), float(values.max())
    if lowest == highest:
        return GaussianMixture(np.array([1.0, 0.0]), np.zeros(2), np.full(2, floor), np.ones(len(values)))
    squeezed = (values - lowest) / (highest - lowest)  # (N,)
    weights, means = np.array([0.5, 0.5]), np.quantile(squeezed, [0.1, 0.9])
    variances = np.full(2, squeezed.var() / 4 + floor)
    likelihood = -np.inf
    for _ in range(iterations):
        logs = _log_densities(squeezed, weights, means, variances)  # (N, 2)
        total = np.logaddexp(logs[:, 0], logs[:, 1])  # (N,)
        shares = np.exp(logs - total[:, None])  # (N, 2)
        mass = shares.sum(0).clip(1e-12)
        weights, means = mass / len(squeezed), (shares * squeezed[:, None]).sum(0) / mass
        variances = (shares * (squeezed[:, None] - means) ** 2).sum(0) / mass + floor
        gained, likelihood = float(total.mean()) - likelihood, float(total.mean())
        if gained < tolerance:
            break
    order = np.argsort(means, kind="stable")
    weights, means, variances = weights[order], means[order], variances[order]
    logs = _log_densities(squeezed, weights, means, variances)
    p_low = np.exp(logs[:, 0] - np.logaddexp(logs[:, 0], logs[:, 1]))
    return GaussianMixture(weights, means, variances, p_low)


def _log_densities(values: Array, weights: Array, means: Array, variances: Array) -> Array:
    """(N, 2): logarithm of weight times density."""
    squares = (values[:, None] - means) ** 2 / variances
    return np.asarray(np.log(weights.clip(1e-300)) - (squares + np.log(2 * np.pi * variances)) / 2)
