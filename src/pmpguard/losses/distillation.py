"""Learning from what a teacher believes: who belongs to whom in a batch, in degrees.

A pair whose label is not trusted has no positive to be pulled to. A teacher still tells which images of the
batch are more like its caption and which captions more like its image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def soft_targets(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean softmax of several scorings (T, I): over the images (T, I), and over the captions (I, T)."""
    rows = torch.stack([each.softmax(1) for each in logits]).mean(0)
    columns = torch.stack([each.T.contiguous().softmax(1) for each in logits]).mean(0)
    return rows, columns


def distillation_terms(
    logits: Tensor, soft: tuple[Tensor, Tensor], caption_share: Tensor, image_share: Tensor
) -> Tensor:
    """(T,): cross-entropy of each caption's row with its belief and the same of all columns, halved.

    logits (T, I); beliefs (T, I) and (I, T), each row summing to 1; captions count as `caption_share` (T,)
    says, images as `image_share` (I,). Every pair carries the mean over images, so that both ways count
    alike in the mean over pairs.
    """
    rows, columns = soft
    row = -(rows * logits.log_softmax(1)).sum(1)  # (T,)
    column = -(columns * logits.T.contiguous().log_softmax(1)).sum(1)  # (I,)
    return (caption_share * row + (image_share * column).mean()) / 2
