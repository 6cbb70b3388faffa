"""OSA: every pair is weighed once, by what another model says of it.

Reference: Li, Gu, Song, Zhang and Gao, "One-step Noisy Label Mitigation", 2024. The published judge is a CLIP
as it was before training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pmpguard.detection.evidence.similarity import Measure
from pmpguard.detection.null_pairs import sample_null_pairs
from pmpguard.errors import ConfigError
from pmpguard.losses.infonce import infonce_terms
from pmpguard.methods.method import EncodedBatch, EpochPlan, Method, TrainingView, pooled_cosines
from pmpguard.models.retriever import Retriever


class Osa(Method):
    """InfoNCE whose pairs count as a judge from outside says.

    In high dimensions vectors of unrelated things are nearly orthogonal, so what a judge gives to random
    pairs is a boundary: below it a pair counts nothing. With x how far a pair stands above it, as a share of
    the largest, its weight is x^2 (1 - x^2).

    Differs from the original:
      * The judge is any model or folder of embeddings. Without one there is nothing to train by: encoders
        that were never trained together have no cosine to weigh with.
      * Its scores are standardised by what each caption and each image gets on average. The boundary is what
        it gives to captions put to other images of the training set, the largest that of the whole set.
        The original takes noise images and random tokens for the boundary, and the largest of each batch.
    """

    name = "osa"
    only_ranks = True

    weight: Tensor  # (N,)
    p_match: Tensor  # (N,) the shares

    def __init__(self, retriever: Retriever, settings: object, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.judge: Measure | None = None
        self.register_buffer("p_match", torch.ones(pairs))
        self.register_buffer("weight", torch.ones(pairs))

    def set_judge(self, judge: Measure) -> None:
        self.judge = judge

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        logits = pooled_cosines(batch) / self.temperature  # (T, I)
        return {"weighed": batch.pair_weights * infonce_terms(logits, batch.targets, batch.image_of)}

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        if self.judge is None:
            raise ConfigError(
                "osa weighs pairs by a model from outside",
                fix="give one with --judge FOLDER: embeddings, or a model directory",
            )
        if view.epoch == 0:
            null = sample_null_pairs(view.caption_of, view.image_of, view.seed)
            rows = torch.arange(len(view.caption_of), device=view.caption_of.device)
            boundary = self.judge(null.texts, null.images, null.rows).mean()
            share = share_above(self.judge(view.caption_of, view.image_of, rows), boundary)
            self.p_match.copy_(share)
            self.weight.copy_(pair_weight(share))
        return EpochPlan(self.weight, log={"mean_weight": float(self.weight.mean())})


def share_above(scores: Tensor, boundary: Tensor) -> Tensor:
    """(N,) in [0, 1]: how far each score stands above the boundary, as a share of the largest."""
    above = (scores - boundary).clamp(min=0)
    return above / above.amax().clamp(min=1e-12)


def pair_weight(share: Tensor) -> Tensor:
    """x^2 (1 - x^2): little near the boundary, and little where nothing is left to learn.

    >>> pair_weight(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0.0, 0.1875, 0.0]
    """
    return share**2 * (1 - share**2)
