"""Several kinds of evidence as one number: a logistic discriminant between labelled and mismatched pairs.

Labelled pairs are a mixture of right and wrong ones, deliberately mismatched pairs are wrong ones only. What
tells the two samples apart is therefore what tells right from wrong, and no label is needed. Evidence that
says nothing in this dataset (agreement when nearly all captions are wrong) gets hardly any weight by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pmpguard.detection.mixture import fit_match_mixture
from pmpguard.errors import DataError

Array = npt.NDArray[np.float64]
RIDGE = 1e-3
ITERATIONS = 50
FEWEST_MATCHES = 20
FITTED_ROWS = 200_000  # a handful of weights needs no more


@dataclass(frozen=True)
class Discriminant:
    """A weighted sum of standardised parts; no weight is negative: more evidence never speaks against."""

    centre: Array  # (K,) mean of mismatched pairs
    scale: Array  # (K,) their deviation
    weights: Array  # (K,)

    def named(self, names: tuple[str, ...]) -> dict[str, float]:
        """The weights by the names of the K parts."""
        return dict(zip(names, self.weights.tolist(), strict=True))

    def __call__(self, parts: Array) -> Array:
        """(N, K) evidence -> (N,) combined."""
        combined: Array = ((parts - self.centre) / self.scale) @ self.weights
        return combined


def weighted_sum(wrong: Array, weights: Array) -> Discriminant:
    """Parts standardised by mismatched pairs (M, K) and added up with known weights (K,)."""
    scale = wrong.std(0)
    return Discriminant(wrong.mean(0), np.where(scale > 0, scale, 1.0), weights)


def refined_discriminant(
    labelled: Array, wrong: Array, rounds: int = 2, judged_by: Sequence[int] = ()
) -> Discriminant:
    """Fit, judge, and fit again to the matches: mismatched pairs among the labelled blur the first fit.

    `judged_by` are the parts that say which pairs match, all by default. A part that some matches have much
    of and most have little of, as agreement where few captions are right, makes matches of those it favours
    and is fitted to them again; judged by others it counts as far as it goes.

    Where hardly any labelled pair looks like a match, the first fit is all there is. Of more than
    `FITTED_ROWS` pairs of a kind, evenly spaced ones are fitted.
    """
    labelled, wrong = (each[:: -(-len(each) // FITTED_ROWS) or 1] for each in (labelled, wrong))
    if 0 < len(judged_by) < labelled.shape[1]:
        own, null = (each[:, list(judged_by)] for each in (labelled, wrong))
        judge = refined_discriminant(own, null, rounds)
        p_match = fit_match_mixture(judge(own), judge(null), bootstrap=0).p_match
        if p_match.sum() >= FEWEST_MATCHES:
            return fit_discriminant(labelled, wrong, p_match)
    discriminant = fit_discriminant(labelled, wrong)
    for _ in range(rounds):
        p_match = fit_match_mixture(discriminant(labelled), discriminant(wrong), bootstrap=0).p_match
        if p_match.sum() < FEWEST_MATCHES:
            break
        discriminant = fit_discriminant(labelled, wrong, p_match)
    return discriminant


def fit_discriminant(labelled: Array, wrong: Array, counted: Array | None = None) -> Discriminant:
    """Fit to labelled (N, K) and deliberately wrong (M, K) evidence, both sides counting the same.

    `counted` (N,) says how much each labelled pair counts, all the same by default.

    Weights that come out negative are left out one by one, the most negative first. With a single part, or
    when nothing separates the samples, the weights are those of the plain sum.

    >>> generator = np.random.default_rng(0)
    >>> wrong = generator.normal(size=(2000, 2))
    >>> right = generator.normal([2.0, 0.0], size=(2000, 2))
    >>> useful, useless = fit_discriminant(right, wrong).weights
    >>> bool(useful > 1.5), bool(useless < 0.2)
    (True, True)
    """
    if labelled.ndim != 2 or wrong.ndim != 2 or labelled.shape[1] != wrong.shape[1] or not labelled.size:
        raise DataError(f"evidence of shapes {labelled.shape} and {wrong.shape} cannot be combined")
    parts = labelled.shape[1]
    plain = weighted_sum(wrong, np.ones(parts))
    used = np.arange(parts)
    while len(used) > 1:
        one, other = ((sample - plain.centre)[:, used] / plain.scale[used] for sample in (labelled, wrong))
        fitted = _fit(one, other, np.ones(len(labelled)) if counted is None else counted)
        if fitted.min() >= 0:
            break
        used = np.delete(used, fitted.argmin())
    weights = np.zeros(parts)
    weights[used] = fitted if len(used) > 1 else 1.0
    return replace(plain, weights=weights) if weights.any() else plain


def _fit(labelled: Array, wrong: Array, counted: Array) -> Array:
    """(K,) slopes of a ridge logistic regression by Newton's method, both samples weighing one half."""
    inputs = np.concatenate([labelled, wrong])
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)  # (N + M, K + 1)
    truth = np.repeat([1.0, 0.0], [len(labelled), len(wrong)])
    share = np.concatenate([0.5 * counted / counted.sum(), np.full(len(wrong), 0.5 / len(wrong))])
    penalty = np.full(inputs.shape[1], RIDGE)
    penalty[-1] = 0.0  # not on the constant
    slopes = np.zeros(inputs.shape[1])
    for _ in range(ITERATIONS):
        chance = 0.5 * (1 + np.tanh(0.5 * inputs @ slopes))
        gradient = inputs.T @ (share * (chance - truth)) + penalty * slopes
        curvature = (inputs * (share * chance * (1 - chance))[:, None]).T @ inputs + np.diag(penalty)
        step = np.linalg.solve(curvature + 1e-9 * np.eye(len(slopes)), gradient)
        step *= min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))  # Newton overshoots from afar
        slopes = slopes - step
        if np.abs(step).max() < 1e-8:
            break
    weights: Array = slopes[:-1]
    return weights
