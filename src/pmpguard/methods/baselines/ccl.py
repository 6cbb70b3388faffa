"""CCL: complementary contrastive learning (RCL; Hu et al., TPAMI 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pmpguard.losses.complementary import Penalty, complementary_terms
from pmpguard.methods.method import EncodedBatch, Method, pooled_cosines


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

    Differs from the original: similarities are cosines of pooled tokens, not the output of a similarity
    network, and positives by image or equal string are never negatives.
    """

    name = "ccl"
    Settings = CclSettings

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        logits = pooled_cosines(batch).float() / self.settings.temperature  # (T, I)
        positives = batch.targets > 0  # (T, I)
        terms = complementary_terms(logits, positives, batch.image_of, self.settings.penalty)
        return {"complementary": terms}
