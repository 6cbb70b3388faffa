"""VSE++: hardest-negative triplet ranking on pooled tokens (Faghri et al., BMVC 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pmpguard.losses.hinge import Negatives, awareness_terms
from pmpguard.methods.method import EncodedBatch, Method, pooled_cosines


@dataclass(frozen=True)
class VseSettings:
    """`warm_up` epochs use the mean over negatives; from scratch the hardest ones collapse the embedding."""

    margin: float = 0.2
    warm_up: int = 1


class Vse(Method):
    """Hinge between each pair and its hardest negative, both ways.

    Differs from the original: positives by picture or equal string are never negatives, and the first epoch
    averages over the negatives.
    """

    name = "vse"
    Settings = VseSettings

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warm_up)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        negatives: Negatives = "mean" if batch.epoch < self.settings.warm_up else "hardest"
        terms = awareness_terms(
            pooled_cosines(batch), batch.image_of, batch.targets > 0, self.settings.margin, negatives
        )
        return {"triplet": terms}
