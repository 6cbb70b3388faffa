"""HarMA: adapters in frozen towers, contrastive and adaptive triplet loss (Huang, ICLR workshop 2024).

T. Huang, "Efficient Remote Sensing with Harmonized Transfer Learning and Modality Alignment", ICLR 2024
workshop on Machine Learning for Remote Sensing, arXiv 2404.18253.

Differs from the original:

* It adapts every layer of a CLIP. Here any transformer tower is adapted in the same way; a convolutional or
  windowed tower gets one adapter on its output tokens, because all methods share the same encoders. Towers
  of different depth share their adapters' cores counted from the last layer.
* The adapters' attention leaves padding out; the original lets captions attend to it.
* The shared core applies its GELU; the released code computes it and drops the result.
* The last linear layer and the temperature are trained too: only CLIP brings a pretrained linear layer.
* A tower without pretrained weights (`tiny`) is not frozen: there would be nothing to keep.
* Captions and images that share an id or a sentence are never negatives of each other in the triplet loss
  (the original excludes the diagonal only), and it is a mean over pairs of sums over negatives, so that its
  weight does not grow with the square of the batch.
* The model is selected on the validation split; the original selects on the test split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from pmpguard.losses.infonce import infonce_terms
from pmpguard.methods.method import EncodedBatch, Method, labelled, pooled_cosines, ungated
from pmpguard.models.config import AdapterConfig, RetrieverConfig


@dataclass(frozen=True)
class HarmaSettings:
    """Published values.

    Args:
        adapter_width: what the adapters narrow to.
        attention_heads: of the adapters.
        gate: of the adapters at the start, before the sigmoid.
        place: `layers` adapts every layer, as published; `output` adapts each frozen tower's output tokens
            alone, which can then be computed once and kept.
        margin: of the triplet loss.
        focus: exponent gamma of the triplet loss's weights; 0 gives the plain triplet loss.
        triplet_weight: of the triplet loss beside the contrastive one.
    """

    adapter_width: int = 128
    attention_heads: int = 8
    gate: float = 0.6
    place: Literal["layers", "output"] = "layers"
    margin: float = 0.2
    focus: float = 2.0
    triplet_weight: float = 1.0


class Harma(Method):
    """Trains adapters, last layers and temperature only. Trusts every label."""

    name = "harma"
    Settings = HarmaSettings

    @classmethod
    def model_config(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        adapters = AdapterConfig(
            "harma", settings.adapter_width, settings.attention_heads, settings.gate, settings.place
        )
        return replace(
            ungated(config, "pooled"),
            adapters=adapters,
            vision_options=replace(config.vision_options, frozen=config.vision != "tiny"),
            text_options=replace(config.text_options, frozen=config.text != "tiny"),
        )

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings, cosines = self.settings, pooled_cosines(batch)  # (T, I)
        triplet = adaptive_triplet_terms(
            cosines, batch.image_of, batch.targets > 0, settings.margin, settings.focus
        )
        return {
            "infonce": infonce_terms(cosines / self.temperature, batch.targets, batch.image_of),
            "triplet": settings.triplet_weight * triplet,
        }


def adaptive_triplet_terms(
    scores: Tensor, image_of: Tensor, positives: Tensor, margin: float, focus: float
) -> Tensor:
    """(T,): half the sum over negatives, both ways, of h (1 - exp(-h))^focus, h = [margin + s- - s+]+.

    The factor is small where the hinge is, so that easy negatives, however many, do not drown the hard ones.
    scores (T, I), image_of (T,), positives (T, I) bool.
    """
    own = labelled(scores, image_of)[:, None]  # (T, 1)
    negative = ~positives.scatter(1, image_of[:, None], True)  # (T, I)

    def focused(negatives: Tensor, allowed: Tensor) -> Tensor:
        hinge = (margin + negatives - own).clamp(min=0) * allowed  # (T, K)
        return (hinge * (1 - (-hinge).exp()) ** focus).sum(1)

    return (focused(scores, negative) + focused(scores.T[image_of], negative.T[image_of])) / 2
