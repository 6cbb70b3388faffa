"""Learning from what a teacher believes: who belongs to whom in a batch, in degrees.

A pair whose label is not trusted has no positive to be pulled to. A teacher still tells which pictures of the
batch are more like its caption and which captions more like its picture.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def mean_beliefs(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean softmax of several scorings (T, I): over the pictures (T, I), and over the captions (I, T)."""
    rows = torch.stack([each.softmax(1) for each in logits]).mean(0)
    columns = torch.stack([each.T.contiguous().softmax(1) for each in logits]).mean(0)
    return rows, columns


def belief_terms(
    logits: Tensor, beliefs: tuple[Tensor, Tensor], caption_share: Tensor, picture_share: Tensor
) -> Tensor:
    """(T,): cross-entropy of each caption's row with its belief and the same of all columns, halved.

    logits (T, I); beliefs (T, I) and (I, T), each row summing to 1; captions count as `caption_share` (T,)
    says, pictures as `picture_share` (I,). Every pair carries the mean over pictures, so that both ways count
    alike in the mean over pairs.
    """
    rows, columns = beliefs
    row = -(rows * logits.log_softmax(1)).sum(1)  # (T,)
    column = -(columns * logits.T.contiguous().log_softmax(1)).sum(1)  # (I,)
    return (caption_share * row + (picture_share * column).mean()) / 2
