"""The complementary loss (CCL of RCL): a pair only pushes its negatives away.

A wrong label then costs one missed negative instead of a false positive.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Penalty = Literal["log", "linear"]


def complementary_terms(
    logits: Tensor, positives: Tensor, image_of: Tensor, penalty: Penalty = "log"
) -> Tensor:
    """(T,): per pair, its caption's row and its image's column of penalties over the negatives, added.

    Every pair of a image carries its column, so that captions and images count alike however many
    captions a image has.
    """
    negatives = ~positives  # (T, I)
    rows = (_penalties(logits.log_softmax(1), penalty) * negatives).sum(1)  # (T,)
    columns = (_penalties(logits.log_softmax(0), penalty) * negatives).sum(0)  # (I,)
    return rows + columns[image_of]


def _penalties(log_p: Tensor, penalty: Penalty) -> Tensor:
    return log_p.exp() if penalty == "linear" else -log1m_exp(log_p)


def log1m_exp(log_p: Tensor) -> Tensor:
    """log(1 - exp(log_p)) for log_p <= 0, accurate near both ends."""
    log_p = log_p.clamp(max=-1e-6)
    near_zero = log_p > -0.6931472
    return torch.where(
        near_zero,
        torch.log(-torch.expm1(torch.where(near_zero, log_p, -1.0))),
        torch.log1p(-torch.exp(torch.where(near_zero, -1.0, log_p))),
    )
