"""DOVE: scores oriented by an image's regions, text read both ways (Ma et al., TGRS 2024).

Q. Ma, J. Pan, C. Bai, "Direction-Oriented Visual-semantic Embedding Model for Remote Sensing Image-text
Retrieval", IEEE Transactions on Geoscience and Remote Sensing 62, 2024, arXiv 2310.08276.

Differs from the original:

* Encoders: those of this comparison instead of ResNet-50s and a bidirectional GRU. Regions are the encoder's
  grid, not the boxes of a detector, which would be a second network that no other method has.
* The two directions of text are attention to earlier and to later words instead of a GRU's, because the words
  come from a transformer already; the caption's pooled vector is added to what they give.
* A caption is guided by every image of the batch, never by its own alone.
* Captions and images that share an id or a sentence are never negatives of each other.
* Only the publication's abstract and others' summaries of it were at hand. The parts and the objective are
  theirs; how the attention layers are laid out, their heads and their dropout are ours, and `global_weight`
  is the value of a re-implementation, not checked against the publication.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pmpguard.losses.hinge import hinge_terms
from pmpguard.methods.method import EncodedBatch, Method, pooled_cosines, ungated
from pmpguard.models.config import HeadConfig, RetrieverConfig
from pmpguard.models.heads.dove import DoveHead


@dataclass(frozen=True)
class DoveSettings:
    """Not all of them are published values, see above.

    Args:
        margin: of both triplet losses.
        global_weight: lambda of the constraint on pooled vectors.
        attention_heads: of the fusion with regions.
        dropout: in the caption's flows.
        multi_scale: pooled vectors and regions hold earlier stages, too.
    """

    margin: float = 0.2
    global_weight: float = 10.0
    attention_heads: int = 8
    dropout: float = 0.2
    multi_scale: bool = True


class Dove(Method):
    """Hinges on the regional-oriented score, and on pooled vectors as a constraint. Trusts every label."""

    name = "dove"
    Settings = DoveSettings

    @classmethod
    def model_config(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        head = HeadConfig("dove", settings.attention_heads, settings.dropout)
        return ungated(replace(config, head=head, multi_scale=settings.multi_scale), "head")

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        head = self.retriever.head
        assert isinstance(head, DoveHead)
        constraint = self._hinges(pooled_cosines(batch), batch)
        return {
            "oriented": self._hinges(head.score(batch.texts, batch.images), batch),
            "global": self.settings.global_weight * constraint,
        }

    def _hinges(self, scores: Tensor, batch: EncodedBatch) -> Tensor:
        return hinge_terms(scores, batch.image_of, batch.targets > 0, self.settings.margin, "sum")
