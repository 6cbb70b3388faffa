"""Verdicts from scores alone: of any model, about any pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pmpguard.detection.mixture import MatchMixture, fit_match_mixture

Array = npt.NDArray[np.float64]
FLAGGED_BELOW = 0.5
# Under so many pairs a share of wrong ones is hardly more than a guess.
FEW_PAIRS = 100
MOST = 0.7


@dataclass(frozen=True)
class ScoreAudit:
    """What the scores say of each pair (N,) and of all: `rank` 1 is the most suspicious pair."""

    p_match: Array  # (N,)
    flag: npt.NDArray[np.bool_]  # (N,) judged wrong
    rank: npt.NDArray[np.int64]  # (N,)
    mismatch_rate: float
    mismatch_interval: tuple[float, float] | None
    mixture: MatchMixture
    warnings: tuple[str, ...] = ()


def audit_scores(
    scores: npt.ArrayLike,
    mismatched_scores: npt.ArrayLike,
    *,
    bootstrap: int = 100,
    seed: int = 0,
) -> ScoreAudit:
    """Judge labelled pairs by their scores (N,), given scores of pairs known to be wrong (M,).

    Mismatched pairs are free: score captions against images they are not labelled with. Any score will do, if
    it is higher for better matches and both kinds were computed in the same way; scores standardised per
    caption and per image (`audit_embeddings`) judge better than raw ones.

    >>> found = audit_scores([*np.linspace(2, 4, 60), *np.linspace(-1, 1, 40)], np.linspace(-1, 1, 500))
    >>> int(found.flag.sum()), round(found.mismatch_rate, 1), int(found.rank[60])
    (39, 0.4, 1)
    """
    mixture = fit_match_mixture(scores, mismatched_scores, bootstrap=bootstrap, seed=seed)
    values = np.asarray(scores, dtype=np.float64)
    return replace(verdicts_of(values, mixture), warnings=tuple(_warnings(values, mixture)))


def verdicts_of(scores: Array, mixture: MatchMixture) -> ScoreAudit:
    """What a mixture fitted to the scores (N,) says of each pair."""
    order = np.lexsort([scores, mixture.p_match])  # p(match) first; equal ones by their scores
    rank = np.empty(len(scores), np.int64)
    rank[order] = np.arange(1, len(scores) + 1)
    return ScoreAudit(
        mixture.p_match,
        mixture.p_match < FLAGGED_BELOW,
        rank,
        mixture.mismatch_rate,
        mixture.mismatch_interval,
        mixture,
    )


def _warnings(scores: Array, mixture: MatchMixture) -> list[str]:
    neighbour_text = []
    if len(scores) < FEW_PAIRS:
        neighbour_text.append(f"only {len(scores)} pairs: the estimated mismatch rate is a rough guess")
    if np.ptp(scores) == 0 and mixture.match_rate == 1.0:
        neighbour_text.append("all scores are equal: they say nothing, and no pair is held against")
    elif mixture.mismatch_rate >= MOST:
        neighbour_text.append(
            f"about {mixture.mismatch_rate:.0%} of the labelled pairs score like wrong ones: either most "
            "captions are wrong, or the model is too weak to tell; look at some before trusting this"
        )
    return neighbour_text
