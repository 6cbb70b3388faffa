"""CCL: complementary contrastive learning (RCL; Hu et al., TPAMI 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pmpguard.methods.method import EncodedBatch, Method, log1m_exp, pooled_cosines


@dataclass(frozen=True)
class CclSettings:
    """`temperature` is fixed, as published."""

    temperature: float = 0.05


class Ccl(Method):
    """Only pushes negatives away: -sum over negatives of log(1 - p), both ways.

    A wrong label then costs one missed negative instead of a false positive, which makes it robust.
    """

    name = "ccl"
    Settings = CclSettings

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        logits = pooled_cosines(batch).float() / self.settings.temperature  # (T, I)
        return {"complementary": complementary_terms(logits, batch.targets > 0, batch.image_of)}


def complementary_terms(logits: Tensor, positives: Tensor, image_of: Tensor) -> Tensor:
    """(T,): per pair, its caption's row and its picture's column of -log(1 - p) over the negatives.

    Several captions of one picture share the column term, so that the mean over pairs counts it once.
    """
    negatives = ~positives  # (T, I)
    rows = -(log1m_exp(logits.log_softmax(1)) * negatives).sum(1)  # (T,)
    columns = -(log1m_exp(logits.log_softmax(0)) * negatives).sum(0)  # (I,)
    sharing = torch.zeros_like(columns).index_add_(0, image_of, torch.ones_like(columns[image_of]))  # (I,)
    per_pair = (columns / sharing.clamp(min=1))[image_of]  # (T,)
    return rows + per_pair
