"""Positive-negative aware loss (PA, eq. 15): a two-way hinge on the awareness score S, pair by pair."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from pmpguard.errors import ConfigError

Negatives = Literal["hardest", "mean", "sum"]


def hinge_terms(
    scores: Tensor,
    image_of: Tensor,
    positives: Tensor,
    margin: float = 0.5,
    negatives: Negatives = "hardest",
) -> Tensor:
    """One loss per pair: [margin - S(t, v) + S(t, v')]+ + [margin - S(t, v) + S(t', v)]+.

    scores (T, I), image_of (T,) the labelled image v of caption t, positives (T, I) bool -> (T,). v' and t'
    are images and captions of the batch; positives and labelled pairs are never among them. `negatives` takes
    the hardest of each, or the mean or sum over all. `mean` suits the start of training under heavy noise,
    where the hardest negative is mostly a false one. With nothing to compare to, the term is 0.
    """
    if negatives not in ("hardest", "mean", "sum"):
        raise ConfigError(f"awareness negatives are {negatives!r}", fix="choose 'hardest', 'mean' or 'sum'")
    own = scores.gather(1, image_of[:, None]).squeeze(1)  # (T,)
    negative = ~positives.scatter(1, image_of[:, None], True)  # (T, I)
    rows = scores, negative, own  # each caption against other images
    columns = (
        scores.T[image_of],
        negative.T[image_of],
        own,
    )  # (T, T) each labelled image against other captions
    return _hinge(*rows, margin, negatives) + _hinge(*columns, margin, negatives)


def _hinge(scores: Tensor, negative: Tensor, own: Tensor, margin: float, negatives: Negatives) -> Tensor:
    """(T, K) competitors, (T, K) bool, (T,) -> (T,)."""
    hinges = (margin - own[:, None] + scores).clamp(min=0) * negative  # (T, K)
    if negatives == "hardest":
        return hinges.amax(1)
    total = hinges.sum(1)
    return total if negatives == "sum" else total / negative.sum(1).clamp(min=1)
