"""Hinges against one hard negative each way: the hardest, or the hardest that is easier than the pair itself.

The second is the semi-hard negative of Schroff, Kalenichenko and Philbin, "FaceNet", CVPR 2015. Where many
negatives outscore the pairs, as look-alike scenes do, the hardest cost more than the margin on average. The
margin is what a model pays that embeds everything alike, so that is what training arrives at. A negative
easier than its pair never costs more than the margin, and collapsing gains nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses.triplet import rivals

HardNegatives = Literal["semi-hard", "hardest"]


def hard_negative_terms(
    scores: Tensor, image_of: Tensor, positives: Tensor, margin: float | Tensor, negatives: HardNegatives
) -> Tensor:
    """One loss per pair: [margin - own + rival]+ both ways, added.

    scores (T, I), image_of (T,) the labelled image of each caption, positives (T, I) bool, margin one number
    or one for each pair (T,) -> (T,). A way without a rival, or without one that is easier, costs nothing.
    """
    if negatives not in ("semi-hard", "hardest"):
        raise ConfigError(f"negatives are {negatives!r}", fix="choose 'semi-hard' or 'hardest'")
    own, rows, columns = rivals(scores, image_of, positives)  # (T,), (T, I), (T, T)
    if negatives == "semi-hard":
        rows, columns = (_easier(rival, own) for rival in (rows, columns))
    needed = margin - own  # (T,)
    return (needed + rows.amax(1)).clamp(min=0) + (needed + columns.amax(1)).clamp(min=0)


def _easier(rival: Tensor, own: Tensor) -> Tensor:
    """(T, K), (T,) -> (T, K): the lowest number there is in place of rivals that reach the pair's score."""
    return rival.masked_fill(rival >= own[:, None], torch.finfo(rival.dtype).min)
