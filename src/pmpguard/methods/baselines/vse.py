"""VSE++: hardest-negative triplet ranking on pooled tokens (Faghri et al., BMVC 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pmpguard.losses.hinge import Negatives, hinge_terms
from pmpguard.methods.method import EncodedBatch, Method, pooled_cosines


@dataclass(frozen=True)
class VseSettings:
    """Until `warmup_epochs` the mean over negatives: from scratch the hardest ones collapse the embedding."""

    margin: float = 0.2
    warmup_epochs: int = 1


class Vse(Method):
    """Hinge between each pair and its hardest negative, both ways.

    Differs from the original: positives by image or equal string are never negatives, and the first epoch
    averages over the negatives.
    """

    name = "vse"
    Settings = VseSettings

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warmup_epochs)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        negatives: Negatives = "mean" if batch.epoch < self.settings.warmup_epochs else "hardest"
        terms = hinge_terms(
            pooled_cosines(batch), batch.image_of, batch.targets > 0, self.settings.margin, negatives
        )
        return {"triplet": terms}
