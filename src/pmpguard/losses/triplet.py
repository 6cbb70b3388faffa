"""Hinges against the negatives of a batch whose margin differs from pair to pair, or that average several.

`awareness.py` holds the plain case of one margin for all pairs.

Semi-hard negatives, easier than the pair itself, are those of Schroff, Kalenichenko and Philbin, "FaceNet",
CVPR 2015. Where many negatives outscore the pairs, as look-alike scenes do, the hardest cost more than the
margin on average. The margin is what a model pays that embeds everything alike, so that is what training
arrives at. A negative easier than its pair never costs more than the margin, and collapsing gains nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pmpguard.errors import ConfigError

HardNegatives = Literal["semi-hard", "hardest"]


def own_and_negatives(scores: Tensor, image_of: Tensor, positives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Own score (T,), its caption's with other images (T, I) and its image's with other captions (T, T).

    scores (T, I), image_of (T,) the labelled image of each caption, positives (T, I) bool. Positives and
    labelled pairs are no negatives; they hold the lowest number there is, so that a maximum never picks
    them.
    """
    own = scores.gather(1, image_of[:, None]).squeeze(1)  # (T,)
    allies = positives.scatter(1, image_of[:, None], True)  # (T, I)
    rows = scores.masked_fill(allies, torch.finfo(scores.dtype).min)  # (T, I)
    return own, rows, rows.T[image_of]


def hinge_terms(
    scores: Tensor,
    image_of: Tensor,
    positives: Tensor,
    margin: float | Tensor,
    hardest: int = 1,
    negatives: HardNegatives = "hardest",
) -> Tensor:
    """One loss per pair: the mean of its `hardest` largest hinges [margin - own + negative]+, both ways.

    `margin` is one number or one for each pair (T,). Where a pair has fewer negatives than `hardest`, those
    missing count as 0. With semi-hard negatives only those easier than the pair are negatives.
    """
    if negatives not in ("semi-hard", "hardest"):
        raise ConfigError(f"negatives are {negatives!r}", fix="choose 'semi-hard' or 'hardest'")
    own, rows, columns = own_and_negatives(scores, image_of, positives)
    if negatives == "semi-hard":
        rows, columns = (_easier(negative, own) for negative in (rows, columns))
    needed = (margin - own)[:, None]  # (T, 1)
    return _mean_of_hardest(needed + rows, hardest) + _mean_of_hardest(needed + columns, hardest)


def _easier(negative: Tensor, own: Tensor) -> Tensor:
    """(T, K), (T,) -> (T, K): negatives that reach the pair's score are masked."""
    return negative.masked_fill(negative >= own[:, None], torch.finfo(negative.dtype).min)


def _mean_of_hardest(hinges: Tensor, hardest: int) -> Tensor:
    """(T, K) -> (T,)"""
    return hinges.clamp(min=0).topk(min(hardest, hinges.shape[1]), dim=1).values.mean(1)
