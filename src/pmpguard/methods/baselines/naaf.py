"""NAAF: awareness attention without cross-gated attention (Zhang et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pmpguard.losses.hinge import Negatives, hinge_terms
from pmpguard.methods.method import EncodedBatch, Method, boundary_progress, trained_awareness, ungated
from pmpguard.models.config import RetrieverConfig


@dataclass(frozen=True)
class NaafSettings:
    """`warmup_epochs` epochs use the mean over negatives instead of the hardest one."""

    margin: float = 0.2
    warmup_epochs: int = 1


class Naaf(Method):
    """Hardest-negative triplet on the awareness score S with the learned boundary. Trusts every label.

    Differs from the original: the boundary is the exact minimiser, padding is masked everywhere, norms come
    from Gram matrices, and the encoders are the ones of this comparison.
    """

    name = "naaf"
    Settings = NaafSettings

    @classmethod
    def model_config(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        return ungated(config, "awareness")

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warmup_epochs)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        scores = trained_awareness(batch, self.retriever.boundary)  # (T, I)
        negatives: Negatives = "mean" if batch.epoch < self.settings.warmup_epochs else "hardest"
        return {
            "awareness": hinge_terms(
                scores, batch.image_of, batch.targets > 0, self.settings.margin, negatives
            )
        }

    def progress(self) -> dict[str, Tensor]:
        return boundary_progress(self.retriever.boundary)
