"""CCL: complementary contrastive learning (RCL; Hu et al., TPAMI 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pmpguard.methods.method import EncodedBatch, Method, log1m_exp, pooled_cosines

Penalty = Literal["log", "linear"]


@dataclass(frozen=True)
class CclSettings:
    """`temperature` is fixed, as published.

    `penalty` of a negative's probability p: -log(1 - p), the authors' choice, or p itself, another of the
    forms they release. The logarithm grows faster than p and so punishes a sure choice: where most labels are
    wrong and scenes look alike, having no opinion is cheaper than being right. With p, what wrong labels cost
    hardly depends on how sure one is.
    """

    temperature: float = 0.05
    penalty: Penalty = "log"


class Ccl(Method):
    """Only pushes negatives away: the sum of penalties over negatives, both ways.

    A wrong label then costs one missed negative instead of a false positive, which makes it robust.
    """

    name = "ccl"
    Settings = CclSettings

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        logits = pooled_cosines(batch).float() / self.settings.temperature  # (T, I)
        positives = batch.targets > 0  # (T, I)
        terms = complementary_terms(logits, positives, batch.image_of, self.settings.penalty)
        return {"complementary": terms}


def complementary_terms(
    logits: Tensor, positives: Tensor, image_of: Tensor, penalty: Penalty = "log"
) -> Tensor:
    """(T,): per pair, its caption's row and its picture's column of penalties over the negatives, added.

    Every pair of a picture carries its column, so that captions and pictures count alike however many
    captions a picture has.
    """
    negatives = ~positives  # (T, I)
    rows = (_penalties(logits.log_softmax(1), penalty) * negatives).sum(1)  # (T,)
    columns = (_penalties(logits.log_softmax(0), penalty) * negatives).sum(0)  # (I,)
    return rows + columns[image_of]


def _penalties(log_p: Tensor, penalty: Penalty) -> Tensor:
    return log_p.exp() if penalty == "linear" else -log1m_exp(log_p)
