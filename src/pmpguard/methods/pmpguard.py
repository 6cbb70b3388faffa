"""PMPGuard: cross-gated attention, awareness attention, and training that detects its own mismatched pairs.

`paper` runs the equations as printed, trusting every label. `recommended` ranks by pooled cosine plus S and
weights each pair's positive terms by the probability that it is a true match, learned without any labels (see
`pmpguard.detection`). Gates (`cga`) and letting flagged captions find a better image (`rematch`) lost on
validation and are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pmpguard.kernels.caption_blocks import LongerThan
from pmpguard.kernels.cross_gated.fused import fits_gated_kernel, gated_cosines_fused
from pmpguard.kernels.pair_scoring import all_pairs_with_gradient
from pmpguard.losses.complementary import complementary_terms
from pmpguard.losses.distillation import distillation_terms, soft_targets
from pmpguard.losses.hinge import Negatives, hinge_terms
from pmpguard.losses.infonce import infonce_terms
from pmpguard.methods.detecting import DetectingMethod
from pmpguard.methods.method import (
    EncodedBatch,
    awareness_of,
    boundary_progress,
    pooled_cosines,
    trained_awareness,
)
from pmpguard.methods.pmpguard_settings import PmpGuardSettings
from pmpguard.models.config import CrossGatedConfig, Ranking, RetrieverConfig
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever

GATED_AT_ONCE = 64  # captions and images gated at once: every pair has gated fragments of its own


class PmpGuard(DetectingMethod):
    """The paper's objective L_IA + lambda L_PA with detection, suppressing and, if asked, rematching."""

    name = "pmpguard"
    can_distill = True
    Settings = PmpGuardSettings
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "recommended": {},
        "paper": {
            "cga": True,
            "suppress": False,
            "rematch": False,
            "clean_oversampling": 1.0,
            "form": "joint",
            "awareness_loss": "hinge",
            "pooled_weight": 0.0,
            "attention_scale": 1.0,
            "gate_bias": 0.0,
            "ranking": "awareness",
        },
    }

    @classmethod
    def model_config(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        ranking: Ranking = settings.ranking if settings.pnaa else ("gated" if settings.cga else "pooled")
        gates = CrossGatedConfig(settings.cga, settings.attention_scale, settings.gate_bias)
        return replace(config, cross_gated=gates, ranking=ranking)

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warmup_epochs)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings = self.settings
        weights = batch.pair_weights  # (T,)
        targets = batch.weighted_targets(weights)  # (T, I)
        share = {"pooled": settings.pooled_weight or 1.0, "awareness": settings.awareness_weight}
        logits = self._logits(batch)
        terms = {name: self._aggregate(each, targets, batch) for name, each in logits.items()}
        if settings.pnaa and settings.awareness_loss == "hinge":
            negatives: Negatives = "mean" if batch.epoch < settings.warmup_epochs else "hardest"
            scores = trained_awareness(batch, self.retriever.boundary)  # (T, I)
            terms["awareness"] = hinge_terms(
                scores, batch.image_of, batch.targets > 0, settings.margin, negatives
            )
        losses = {name: share.get(name, 1.0) * term * weights for name, term in terms.items()}
        if self.kept_back is not None:
            losses["complementary"] = self._push(batch) * ~self.kept_back[batch.rows]
        if batch.teacher_scores is not None:
            losses |= self._distillation(batch, batch.teacher_scores, weights, logits)
        return losses

    def teacher_scores(self, teacher: Retriever, batch: EncodedBatch) -> list[Tensor]:
        scores = [pooled_cosines(batch) / teacher.temperature]
        if self.settings.pnaa:
            boundary = teacher.boundary.value(train=False)
            aware = awareness_of(batch.texts, batch.images, boundary, batch.longer_than)
            scores.append(aware / self.settings.awareness_temperature)
        return scores

    def _distillation(
        self, batch: EncodedBatch, scores: Sequence[Tensor], weights: Tensor, logits: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """(T,) each: pairs learn a teacher's soft targets as far as they are judged mismatched."""
        strength = self.settings.distill_weight
        with torch.no_grad():
            soft = soft_targets(scores)
            best = weights.new_zeros(len(batch.image_keys))  # (I,)
            best = best.scatter_reduce(0, batch.image_of, weights, "amax")
        return {
            f"taught {name}": strength * distillation_terms(each, soft, 1 - weights, 1 - best)
            for name, each in logits.items()
        }

    def _push(self, batch: EncodedBatch) -> Tensor:
        """(T,): what a pair teaches even if it was flagged: where it does not belong."""
        logits = pooled_cosines(batch) / self.settings.complementary_temperature  # (T, I)
        terms = complementary_terms(logits, batch.targets > 0, batch.image_of, "linear")
        return self.settings.complementary / 2 * terms

    def _logits(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """(T, I) of everything that is trained by cross-entropy over the batch."""
        settings, logits = self.settings, {}
        if settings.pooled_weight > 0 or not settings.cga:  # without gates, L_IA is on pooled tokens
            logits["pooled"] = pooled_cosines(batch) / self.temperature
        if settings.cga:
            cosines = self._gated_cosines(batch.texts, batch.images, batch.longer_than)
            logits["aggregation"] = cosines / self.temperature
        if settings.pnaa and settings.awareness_loss == "softmax":
            scores = trained_awareness(batch, self.retriever.boundary)
            logits["awareness"] = scores / settings.awareness_temperature
        return logits

    def _gated_cosines(
        self, texts: Encoded, images: Encoded, longer_than: LongerThan | None = None
    ) -> Tensor:
        """(T, I): cosines of gated fragments, in chunks that are computed again on the way back."""
        attention = self.retriever.cross_gated_attention
        assert attention is not None

        def score(some_texts: Encoded, some_images: Encoded) -> Tensor:
            return attention.forward(
                some_texts.fragments, some_texts.mask, some_images.fragments, some_images.mask
            )

        if fits_gated_kernel(texts.fragments, texts.mask, images.fragments, images.mask):
            return gated_cosines_fused(
                attention, texts.fragments, texts.mask, images.fragments, images.mask, longer_than
            )
        if len(texts) * len(images) <= GATED_AT_ONCE**2:
            return score(texts, images)
        return all_pairs_with_gradient(
            score, texts, images, text_chunk=GATED_AT_ONCE, image_chunk=GATED_AT_ONCE
        )

    def _aggregate(self, logits: Tensor, targets: Tensor, batch: EncodedBatch) -> Tensor:
        return infonce_terms(logits, targets, batch.image_of, self.settings.form)

    def progress(self) -> dict[str, Tensor]:
        return {**boundary_progress(self.retriever.boundary), "mismatch": 1 - self.weight.mean()}
