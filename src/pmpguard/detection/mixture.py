"""Which labelled pairs match, and how many: a two-component mixture whose mismatched half is known.

Scores of deliberately mismatched pairs are free, so the mismatched density f- is sampled, not guessed. The
labelled scores follow pi f+ + (1 - pi) f-. Replacing every score by its *chance level* u, the share of wrong
pairs that score at least as high, makes f- exactly uniform on [0, 1] whatever its shape and tails were, and
puts the matched pairs near 0. There f+ is a mixture of densities b (1 - u)^(b - 1) over a fixed grid of
exponents: a flexible family that always falls with u and vanishes at u = 1. EM with f- held fixed then
only fits weights, so

* the likelihood is concave: one optimum, no starting values, no label switching;
* p(match) = 1 - (1 - pi) / f(u) can only grow with the score;
* 1 - pi is read off where only mismatched pairs live (u near 1), so it is right at 0 % mismatch too.

Pairs put together at random match by accident now and then, a share a of them. Then no score is more than
1 / a times as frequent among matches as among random pairs, and scores of plain matches come close to that: a
is read off them, and p(match) is scaled so that the plainest pairs are sure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pmpguard.errors import DataError
from pmpguard.stable_random import StableRandom

Array = npt.NDArray[np.float64]

# How far matched pairs reach into the middle of f- samples hardly tell: a family of small exponents
# takes mismatched pairs for matches, one of large exponents the reverse. All are fitted and averaged.
FAMILIES = (2.5, 3.5, 5.0)  # smallest exponent of each
PRIOR = (0.2, 0.4, 0.4)  # of the families
EXPONENTS = 36
PLAIN = 0.9  # quantile of matches that speak as plainly for a match as any can
MOST_RANDOM_MATCHES = 0.03  # share of f- that may be accidental matches
UNSUPPORTED = (
    0.0125  # share of matched pairs that may look like any mismatched one: the interval allows for it
)
MOST_RAISED = 0.25  # by so much accidental matches may raise p(match)
MOST_ITERATIONS = 2000
PART = 65_536  # scores whose densities are computed at once


@dataclass(frozen=True)
class MatchMixture:
    """A fitted mixture.

    `p_match` holds the labelled pairs' probabilities of being true matches, `match_rate` is pi and
    `mismatch_interval` a bootstrap 95 % interval of 1 - pi. `converged` is False when EM was still moving or
    when the scores carry no information at all.
    """

    p_match: Array  # (N,)
    match_rate: float
    converged: bool
    mismatch_interval: tuple[float, float] | None
    mismatched: Array = field(repr=False)  # (M,) sorted sample of f-
    exponents: Array = field(repr=False)  # (C,)
    weights: Array = field(repr=False)  # (1 + C,): random pairs first, then the rest split over the exponents
    random_matches: float = 0.0  # share a of f- that matches by accident

    @property
    def mismatch_rate(self) -> float:
        return 1.0 - self.match_rate

    def posterior(self, scores: npt.ArrayLike) -> Array:
        """p(match) of any scores of the same kind, labelled or not; never falls as the score grows."""
        values = np.asarray(scores, dtype=np.float64)
        low, high = chance_levels(values.ravel(), self.mismatched)
        u = (low + high) / 2  # (S,)
        matched_density = self.exponents * self.weights[1:]  # (C,) at u = 0
        density = np.empty_like(u)
        for part in range(0, len(u), PART):
            powers = np.exp(np.log1p(-u[part : part + PART, None]) * (self.exponents - 1))  # (1 - u)^(b - 1)
            density[part : part + PART] = self.weights[0] + powers @ matched_density
        mismatched = np.divide(self.weights[0], density, out=np.zeros_like(u), where=density > 0)
        rest = 1 - self.weights[0]
        raised = 1 + self.random_matches * self.weights[0] / rest if rest > 0 else 1.0
        matched: Array = (raised * (1 - mismatched)).clip(0, 1).reshape(values.shape)
        return matched


def fit_match_mixture(
    scores: npt.ArrayLike,
    mismatched_scores: npt.ArrayLike,
    *,
    bootstrap: int = 100,
    seed: int = 0,
) -> MatchMixture:
    """Fit the mixture to labelled `scores` (N,) given a sample of mismatched pairs' `mismatched_scores` (M,).

    When all scores of both kinds are equal they say nothing, and nothing is held against any pair: p(match)
    is 1 everywhere, `match_rate` 1 and `converged` False. `bootstrap` resamples both sets for the interval;
    0 leaves it out.

    >>> wrong = np.linspace(-1, 1, 500)
    >>> mixture = fit_match_mixture([*np.linspace(2, 4, 60), *np.linspace(-1, 1, 40)], wrong)
    >>> round(mixture.match_rate, 1), mixture.posterior([0.0, 3.0]).round(2).tolist()
    (0.6, [0.0, 1.0])
    """
    labelled = _checked(scores, "scores")
    fit = _fit_without_posterior(labelled, mismatched_scores, bootstrap, seed)
    return fit if len(fit.p_match) else replace(fit, p_match=fit.posterior(labelled))


def _fit_without_posterior(
    labelled: Array, mismatched_scores: npt.ArrayLike, bootstrap: int, seed: int
) -> MatchMixture:
    """The mixture alone: the labelled pairs' probabilities cost as much again and are not always wanted."""
    mismatched = np.sort(_checked(mismatched_scores, "mismatched_scores"))
    exponents = np.geomspace(FAMILIES[0], 4.0 * max(len(mismatched), 3), EXPONENTS)
    if np.ptp(mismatched) == 0 and np.all(labelled == mismatched[0]):
        certain = np.eye(1, 1 + EXPONENTS, 1)[0]
        return MatchMixture(np.ones(len(labelled)), 1.0, False, None, mismatched, exponents, certain)
    edges = _bin_edges(len(mismatched))
    counts = _bin_counts(*chance_levels(labelled, mismatched), edges)
    families = np.where(exponents >= np.array(FAMILIES)[:, None] - 1e-9, 0.5, 0.0)  # (F, C)
    start = np.hstack([np.full((len(FAMILIES), 1), 0.5), families / (2 * families.sum(1, keepdims=True))])
    start /= start.sum(1, keepdims=True)
    fitted, converged = _fit_weights(counts[None], edges[None], exponents, start, MOST_ITERATIONS)
    likely = _log_likelihoods(counts, edges, exponents, fitted)
    believed = np.array(PRIOR) * np.exp(likely - likely.max())
    believed /= believed.sum()  # (F,)
    weights = believed @ fitted  # (1 + C,)
    random_matches = _random_matches(exponents, weights)
    interval = None
    if bootstrap:
        low, high = _bootstrap_rates(
            counts, edges, len(mismatched), exponents, fitted, believed, bootstrap, seed
        )
        interval = (float(np.quantile(low, 0.025)), float(np.quantile(high, 0.975)))
    rate = 1 - float(weights[0]) * (1 - random_matches)
    return MatchMixture(
        np.empty(0), rate, converged, interval, mismatched, exponents, weights, random_matches
    )


def fit_with_known_rate(
    scores: npt.ArrayLike,
    mismatched_scores: npt.ArrayLike,
    mismatch_rate: float,
    *,
    most: int = 5000,
    seed: int = 0,
) -> tuple[MatchMixture, float]:
    """The mixture of pairs a model was trained on, whose mismatch rate is known from pairs it was not.

    A model half remembers the mismatched pairs it has seen: they score higher than fresh mismatched pairs,
    and the plain fit takes many of them for matches. So f- is moved up by the shift at which the fit finds
    the known rate. Returns the mixture over all scores, and the shift, which is searched on at most `most`
    scores drawn at random.
    """
    labelled = _checked(scores, "scores")
    wrong = _checked(mismatched_scores, "mismatched_scores")
    drawn = StableRandom("known rate", seed).choice(len(labelled), most)

    def rate_at(shift: float) -> float:
        return _fit_without_posterior(labelled[drawn], wrong + shift, 0, seed).mismatch_rate

    low, high = 0.0, float(np.quantile(labelled, 0.99) - np.median(wrong))
    if high <= 0 or rate_at(0.0) >= mismatch_rate:
        high = 0.0
    for _ in range(10 if high > 0 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_at(middle) < mismatch_rate else (low, middle)
    shift = (low + high) / 2
    fit = _fit_without_posterior(labelled, wrong + shift, 0, seed)
    fit = _with_rate(fit, mismatch_rate)
    return (fit if len(fit.p_match) else replace(fit, p_match=fit.posterior(labelled))), shift


def _with_rate(fit: MatchMixture, mismatch_rate: float) -> MatchMixture:
    """The same densities, mixed so that this share is mismatched."""
    random_pairs = mismatch_rate / (1 - fit.random_matches)
    matched = float(fit.weights[1:].sum())
    if matched <= 0 or not 0 < random_pairs < 1:
        return fit
    weights = np.concatenate([[random_pairs], fit.weights[1:] * (1 - random_pairs) / matched])
    return replace(fit, match_rate=1 - mismatch_rate, weights=weights)


def labels_worth(p_match: Array) -> float:
    """How many pairs of known label would tell the share of matches as precisely as these probabilities do.

    The Fisher information of the mixture's share, in units of one label's.

    >>> labels_worth(np.array([1.0, 0.0, 0.0, 1.0])), labels_worth(np.full(4, 0.5))
    (4.0, 0.0)
    """
    share = float(p_match.mean())
    doubt = share * (1 - share)
    return float(((p_match - share) ** 2).sum() / doubt) if doubt > 0 else 0.0


def chance_levels(scores: Array, mismatched: Array) -> tuple[Array, Array]:
    """Between which two levels of chance each score lies, given the sorted mismatched sample.

    With M mismatched pairs of which k score higher and t exactly the same, the level is somewhere in
    [k, k + t + 1] / (M + 1): a distribution-free statement that holds for ties and in both tails.
    """
    count = len(mismatched)
    above = count - np.searchsorted(mismatched, scores, side="right")
    at_least = count - np.searchsorted(mismatched, scores, side="left")
    return above / (count + 1), (at_least + 1) / (count + 1)


def _checked(values: npt.ArrayLike | Any, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{name}: expected a non-empty list of numbers, got shape {array.shape}")
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise DataError(
            f"{name}: {bad} of {len(array)} values are NaN or infinite",
            fix="look for a loss that is not finite, or for empty captions and blank images",
        )
    return array


def _bin_edges(mismatched_count: int) -> Array:
    """(K + 1,) edges on [0, 1]: fine towards 0, down to what the mismatched sample can resolve."""
    finest = min(0.5 / (mismatched_count + 1), 0.05)
    return np.unique(np.concatenate([[0.0], np.geomspace(finest, 0.05, 40), np.linspace(0.05, 1.0, 60)]))


def _bin_counts(low: Array, high: Array, edges: Array) -> Array:
    """(K,) labelled pairs per bin, each spread evenly over its interval of chance levels.

    Both ends grow together, so what lies below an edge are the first intervals, and parts of the few that
    hold the edge: running sums give both.
    """
    low, high = np.sort(low), np.sort(high)
    share = 1 / (high - low)
    slopes = np.concatenate([[0.0], np.cumsum(share)])
    offsets = np.concatenate([[0.0], np.cumsum(low * share)])
    whole = np.searchsorted(high, edges, side="right")  # (K + 1,) intervals that end before the edge
    begun = np.searchsorted(low, edges, side="left")  # intervals that begin before it
    below = whole + edges * (slopes[begun] - slopes[whole]) - (offsets[begun] - offsets[whole])
    counts: Array = np.diff(below).clip(min=0)
    return counts


def _fit_weights(
    counts: Array, edges: Array, exponents: Array, weights: Array, max_iterations: int
) -> tuple[Array, bool]:
    """EM over the mixture weights for R data sets at once: counts (R, K), edges (R, K + 1) -> (R, 1 + C)."""
    survival = (1 - edges[:, :, None]).clip(0, 1) ** exponents  # (R, K+1, C)
    masses = np.concatenate([np.diff(edges)[:, :, None], -np.diff(survival, axis=1)], axis=2)  # (R, K, 1+C)
    across = np.ascontiguousarray(masses.transpose(0, 2, 1))  # (R, 1+C, K)
    shares = (counts / counts.sum(1, keepdims=True))[:, :, None]  # (R, K, 1)
    weights, converged = weights[:, :, None].copy(), False  # (R, 1 + C, 1)
    ratio, factors = np.empty((len(weights), masses.shape[1], 1)), np.empty_like(weights)
    for iteration in range(max_iterations):
        if iteration % 50 == 0:
            checked = weights[:, 0].copy()
        np.maximum(np.matmul(masses, weights, out=ratio), 1e-300, out=ratio)
        np.divide(shares, ratio, out=ratio)
        weights *= np.matmul(across, ratio, out=factors)
        if iteration % 50 == 49 and np.abs(weights[:, 0] - checked).max() < 1e-4:
            converged = True
            break
    return weights[:, :, 0] / weights[:, :, 0].sum(1, keepdims=True), converged


def _log_likelihoods(counts: Array, edges: Array, exponents: Array, weights: Array) -> Array:
    """(F,) of the counted labelled pairs (K,) under each of the weights (F, 1 + C)."""
    survival = (1 - edges[:, None]).clip(0, 1) ** exponents  # (K + 1, C)
    masses = np.hstack([np.diff(edges)[:, None], -np.diff(survival, axis=0)])  # (K, 1 + C)
    logarithms: Array = np.log(np.maximum(weights @ masses.T, 1e-300)) @ counts
    return logarithms


def _random_matches(exponents: Array, weights: Array) -> float:
    """The share a of random pairs that match, from the density of matches where it is plain."""
    rest = 1 - float(weights[0])
    if rest <= 0 or weights[0] <= 0:
        return 0.0
    levels = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 400)])  # of chance
    survival = ((1 - levels[:, None]) ** exponents) @ weights[1:] / rest  # (401,) falls from 1 to 0
    plain = float(np.interp(PLAIN, survival[::-1], levels[::-1]))  # below it lie the 1 - PLAIN plainest
    density = float(exponents * (1 - plain) ** (exponents - 1) @ weights[1:] / rest)
    return min(1 / max(density, 1.0), MOST_RANDOM_MATCHES, MOST_RAISED * rest / float(weights[0]))


def _bootstrap_rates(
    counts: Array,
    edges: Array,
    mismatched_count: int,
    exponents: Array,
    fitted: Array,
    believed: Array,
    replicates: int,
    seed: int,
) -> tuple[Array, Array]:
    """Least and largest mismatch rates (replicates,) of samples drawn again, by families (F,) as believed.

    The least allow for matches among random pairs, and for matched pairs that look like any mismatched one;
    the largest for neither.
    """
    draws = StableRandom("resampled scores", seed)
    pairs = max(round(float(counts.sum())), 1)
    labelled = draws.counts(pairs, counts, replicates)  # (R, K)
    masses = np.diff(edges)
    redrawn = draws.counts(mismatched_count, masses, replicates)  # (R, K)
    # a bin that no redrawn mismatched pair fell into keeps a sliver of mass: it is improbable, not impossible
    redrawn_masses = (redrawn + 0.1 * masses) / (mismatched_count + 0.1)
    moved = np.concatenate([np.zeros((replicates, 1)), np.cumsum(redrawn_masses, axis=1)], axis=1)
    shares = (np.arange(replicates) + 0.5) / replicates
    family = np.minimum(np.searchsorted(np.cumsum(believed), shares), len(believed) - 1)  # (R,)
    allowed = fitted[family] * 0 + (np.arange(fitted.shape[1]) == 0)
    allowed[:, 1:] = exponents >= np.array(FAMILIES)[family, None] - 1e-9
    start = 0.9 * fitted[family] + 0.1 * allowed / allowed.sum(1, keepdims=True)
    weights, _ = _fit_weights(labelled.astype(np.float64), moved, exponents, start, 300)
    accidental = np.array([_random_matches(exponents, each) for each in weights])
    largest = weights[:, 0]
    least = largest * (1 - accidental)
    return (least - UNSUPPORTED * (1 - least)).clip(min=0), largest
