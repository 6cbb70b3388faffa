"""SWAN: scene-aware aggregation of multi-scale vision, phrase-enhanced text, triplet (Pan et al., ICMR 2023).

J. Pan, Q. Ma, C. Bai, "Reducing Semantic Confusion: Scene-aware Aggregation Network for Remote Sensing
Cross-modal Retrieval", ICMR 2023.

Differs from the original:

* Encoders: those of this comparison instead of a ResNet-50 and a bidirectional GRU on GloVe.
* Multi-scale fusion brings the stages (strides 4, 8, 16 and 32 of a convolutional net, stages of a windowed
  one, quarters of a plain transformer) to the last stage's grid, not the middle one's, and mixes them in the
  projection, so that all methods have the same number of regions.
* The fine-grained branch reads these regions, not the first layer's map alone; its tokens are places instead
  of channels, so a token's weight comes from its content instead of being learned per channel.
* Layer normalisation instead of batch normalisation: an embedding must not depend on its batch.
* Attention scores are not rounded down, and a caption is the mean of its words and phrases. The released code
  rounds, and reads the last word alone, so that phrases have no effect on it.
* Captions and images that share an id or a sentence are never negatives of each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pmpguard.losses.hinge import hinge_terms
from pmpguard.methods.method import EncodedBatch, Method, pooled_cosines, ungated
from pmpguard.models.config import HeadConfig, RetrieverConfig


@dataclass(frozen=True)
class SwanSettings:
    """Margin and heads as published, one dropout for several; without `multi_scale`, the last stage alone."""

    margin: float = 0.2
    attention_heads: int = 8
    dropout: float = 0.2
    multi_scale: bool = True


class Swan(Method):
    """Hinge between each pair and all of its negatives, summed, both ways. Trusts every label."""

    name = "swan"
    Settings = SwanSettings

    @classmethod
    def model_config(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        head = HeadConfig("swan", settings.attention_heads, settings.dropout)
        return ungated(replace(config, head=head, multi_scale=settings.multi_scale), "pooled")

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        terms = hinge_terms(
            pooled_cosines(batch), batch.image_of, batch.targets > 0, self.settings.margin, "sum"
        )
        return {"triplet": terms}
