"""The complementary loss (CCL of RCL): a pair only repels its negatives.

A wrong label then costs one missed negative instead of a false positive.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pmpguard.losses.pair_loss import PairLabels, PairLoss, Reduction

Penalty = Literal["log", "linear"]


class Complementary(PairLoss):
    """A pair repels what it does not belong to, and is never pulled together.

    Args:
        temperature: the scores are divided by it.
        penalty: -log(1 - p) of each negative, or p itself ("linear"), which forgives single high ones.
        reduction: "mean" over pairs, "sum", or "none" for one term per pair.

    Inputs: see `PairLoss`.

    References:
        Hu et al., "Cross-Modal Retrieval with Partially Mismatched Pairs", TPAMI 2023.

    Relations:
        `InfoNCE` attracts, too, and so learns wrong labels; here a wrong label costs one missed negative.

    Examples:
        >>> scores = torch.tensor([[0.9, 0.1], [0.1, 0.9]])  # (captions, images)
        >>> loss = Complementary(temperature=0.5)
        >>> loss(scores), loss(1 - scores)  # labelled right, labelled wrong
        (tensor(0.3678), tensor(3.5678))
    """

    def __init__(
        self, temperature: float = 0.05, penalty: Penalty = "log", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.temperature = temperature
        self.penalty: Penalty = penalty

    def terms(self, scores: Tensor, labels: PairLabels, weights: Tensor | None) -> Tensor:
        positives = labels.targets() > 0
        return complementary_terms(scores / self.temperature, positives, labels.image_of, self.penalty)


def complementary_terms(
    logits: Tensor, positives: Tensor, image_of: Tensor, penalty: Penalty = "log"
) -> Tensor:
    """(T,): per pair, its caption's row and its image's column of penalties over the negatives, added.

    Every pair of an image carries its column, so that captions and images count alike however many
    captions an image has.
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
