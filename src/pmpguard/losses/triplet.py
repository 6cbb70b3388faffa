"""Hinges against the negatives of a batch whose margin differs from pair to pair, or that average several.

`awareness.py` holds the plain case of one margin for all pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rivals(scores: Tensor, image_of: Tensor, positives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Own score (T,), its caption's with other images (T, I) and its image's with other captions (T, T).

    scores (T, I), image_of (T,) the labelled image of each caption, positives (T, I) bool. Positives and
    labelled pairs are no rivals; they hold the lowest number there is, so that a maximum never picks them.
    """
    own = scores.gather(1, image_of[:, None]).squeeze(1)  # (T,)
    allies = positives.scatter(1, image_of[:, None], True)  # (T, I)
    rows = scores.masked_fill(allies, torch.finfo(scores.dtype).min)  # (T, I)
    return own, rows, rows.T[image_of]


def hinge_terms(
    scores: Tensor, image_of: Tensor, positives: Tensor, margin: float | Tensor, hardest: int = 1
) -> Tensor:
    """One loss per pair: the mean of its `hardest` largest hinges [margin - own + rival]+, both ways, added.

    `margin` is one number or one for each pair (T,). Where a pair has fewer rivals than `hardest`, those
    missing count as 0.
    """
    own, rows, columns = rivals(scores, image_of, positives)
    needed = (margin - own)[:, None]  # (T, 1)
    return _mean_of_hardest(needed + rows, hardest) + _mean_of_hardest(needed + columns, hardest)


def _mean_of_hardest(hinges: Tensor, hardest: int) -> Tensor:
    """(T, K) -> (T,)"""
    return hinges.clamp(min=0).topk(min(hardest, hinges.shape[1]), dim=1).values.mean(1)
