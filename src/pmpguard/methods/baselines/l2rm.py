"""L2RM: rematch the pairs judged wrong by optimal transport.

References: Han, Zheng, Dai, Luo and Wang, "Learning to Rematch Mismatched Pairs for Robust Cross-Modal
Retrieval", CVPR 2024. The warm-up is Wang et al., "Symmetric Cross Entropy", ICCV 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pmpguard.detection.beta_mixture import fit_beta_mixture
from pmpguard.losses.hinge import HardNegatives, hinge_terms
from pmpguard.losses.infonce import infonce_terms
from pmpguard.losses.optimal_transport import partial_plan
from pmpguard.methods.baselines.blocks import mean_hinges, measure_in_blocks
from pmpguard.methods.method import (
    EncodedBatch,
    EpochPlan,
    JudgingMethod,
    TrainingView,
    labelled,
    pooled_cosines,
)
from pmpguard.models.retriever import Retriever

# Shares of the plan and labels are kept this far from 0, where their logarithms are taken.
_LEAST_SHARE, _LEAST_LABEL = 1e-10, 1e-7
_MASKED = -1e4


@dataclass(frozen=True)
class L2rmSettings:
    """Published values, but for `negatives` and `mixture_iterations`.

    Args:
        warmup_epochs: epochs of symmetric cross-entropy on all pairs.
        temperature: of every softmax.
        margin: of the triplet loss on clean pairs and of the loss pairs are judged by.
        threshold: a pair is clean when the mixture gives it more than this.
        mass: part of the mass that is transported.
        strength: of the entropy in the transport.
        iterations: of Sinkhorn's updates.
        mixture_iterations: of EM, enough to settle: the original fits on after its first 10.
        rematch_weight: of the loss on rematched pairs: the original averages it but adds up 128 triplets.
        cost_rate: how much slower than the rest of the model the cost function learns.
        oracle_diagonal: forbid the plan to give a pair its own label back. That is right only if every pair
            judged wrong is wrong, which nobody knows; the original switches it on when it injects noise.
        negatives: of the triplet loss: semi-hard, or the hardest of the original.
    """

    warmup_epochs: int = 5
    temperature: float = 0.05
    margin: float = 0.2
    threshold: float = 0.5
    mass: float = 0.1
    strength: float = 0.07
    iterations: int = 100
    mixture_iterations: int = 50
    rematch_weight: float = 1 / 128
    cost_rate: float = 0.01
    oracle_diagonal: bool = False
    negatives: HardNegatives = "semi-hard"


class L2rm(JudgingMethod):
    """Clean pairs train by triplets; the captions and images of the others are matched anew in each batch.

    After the warm-up a beta mixture of the pairs' mean hinges splits the training set once per epoch. Among
    the mismatched pairs of a batch, a partial transport plan says which caption goes with which image; the
    softmax of their similarities is drawn to it by a symmetric Kullback-Leibler divergence. The transport's
    cost is a learned function of the similarities, taught to be low on clean pairs.

    Differs from the original:
      * Negatives of the triplets are semi-hard. The original's hardest ones meet a similarity network after
        thousands of steps of warm-up; cosines after a short one, among look-alike scenes, collapse.
      * No knowledge that noise was injected: see `oracle_diagonal`.
      * Clean and mismatched pairs share batches, because the loop deals them; clean pairs have the whole
        batch as negatives, rematching happens among its mismatched pairs alone, without a queue of earlier
        images (which the original makes as long as its batch).
      * The cost layer. Theirs multiplies an image's similarities to the 128 captions of a batch by a
        128 x 128 matrix, started at ReLU(1 - s), although a place in a batch means nothing; ours has what is
        left of such a matrix if order must not matter: a weight on s, one on the image's mean similarity,
        and a bias. It learns from all clean pairs of a batch instead of a few planted among others.
      * The mixture is fitted by matched moments from a fixed start; theirs leaves the fit to a library.
      * Terms are means over pairs; `rematch_weight` keeps the ratio of the original's mean and sum.
    """

    name = "l2rm"
    Settings = L2rmSettings

    settings: L2rmSettings

    def __init__(self, retriever: Retriever, settings: L2rmSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        # Changes of the cost function: of the weight on s, of the weight on the mean of s, of the bias.
        self.cost_change = nn.Parameter(torch.zeros(3))

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warmup_epochs)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings = self.settings
        scores = pooled_cosines(batch)  # (T, I)
        logits = scores / settings.temperature
        if batch.epoch < settings.warmup_epochs:
            return {"warmup_epochs": symmetric_cross_entropy(logits, batch.targets, batch.image_of)}
        clean = (self.p_match[batch.rows] > settings.threshold).to(scores.dtype)  # (T,)
        triplets = hinge_terms(
            scores, batch.image_of, batch.targets > 0, settings.margin, negatives=settings.negatives
        )
        cost = transport_cost(scores.detach(), settings.cost_rate * self.cost_change)  # (T, I)
        wrong = 1 - clean
        wrong_images = torch.zeros_like(scores[0]).index_add(0, batch.image_of, wrong).clamp(max=1)  # (I,)
        plan = self._plan(cost.detach(), wrong, wrong_images, batch.image_of)
        rows, columns = symmetric_divergence(logits, plan, wrong, wrong_images)  # (T,), (I,)
        return {
            "triplet": triplets * clean,
            "rematch": settings.rematch_weight * wrong * (rows + columns[batch.image_of]),
            "cost": clean * labelled(cost, batch.image_of),
        }

    @torch.no_grad()
    def _plan(self, cost: Tensor, captions: Tensor, images: Tensor, image_of: Tensor) -> Tensor:
        """(T, I): who goes with whom; `captions` (T,) and `images` (I,) are 1 for those that take part."""
        settings, allowed = self.settings, None
        if settings.oracle_diagonal:
            allowed = torch.ones_like(cost, dtype=torch.bool).scatter(1, image_of[:, None], False)
        return partial_plan(
            cost, captions / captions.sum().clamp(min=1), images / images.sum().clamp(min=1),
            settings.mass, settings.strength, allowed=allowed, iterations=settings.iterations,
        )  # fmt: skip

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        if view.epoch < self.settings.warmup_epochs:
            return EpochPlan()
        hinges = measure_in_blocks(view, lambda block: mean_hinges(block, self.settings.margin))  # (N,)
        mixture = fit_beta_mixture(hinges.double().cpu().numpy(), self.settings.mixture_iterations)
        self.p_match.copy_(torch.from_numpy(mixture.p_low))
        return EpochPlan(log={"mean_p_match": float(self.p_match.mean())})


def symmetric_cross_entropy(logits: Tensor, targets: Tensor, image_of: Tensor) -> Tensor:
    """(T,): half of cross-entropy plus reverse cross-entropy -sum p log q, rows and columns added.

    With 0/1 labels the reverse part is the probability given to non-positives, times -log of what stands for
    a label 0; unlike cross-entropy it is bounded, which keeps wrong labels from taking over.
    """
    negatives = (targets <= 0).to(logits.dtype)  # (T, I)
    missed_rows = (logits.softmax(1) * negatives).sum(1)  # (T,)
    missed_columns = (logits.softmax(0) * negatives).sum(0)  # (I,)
    reverse = -math.log(_LEAST_LABEL) * (missed_rows + missed_columns[image_of]) / 2
    return infonce_terms(logits, targets, image_of) + reverse


def transport_cost(scores: Tensor, change: Tensor) -> Tensor:
    """(T, I): ReLU(1 - s), moved by `change` (3,) of the weight on s, of that on its mean, of the bias."""
    own, mean, bias = change.unbind()
    return (1 + bias - (1 + own) * scores - mean * scores.mean(0, keepdim=True)).clamp(min=0)


def symmetric_divergence(
    logits: Tensor, plan: Tensor, captions: Tensor, images: Tensor
) -> tuple[Tensor, Tensor]:
    """Half of KL(q, p) + KL(p, q) for each row (T,) and each column (I,).

    p is the softmax of logits (T, I), q the plan's share, both over the `captions` (T,) and `images` (I,)
    that are 1. Rows and columns that take no part hold a number without meaning.
    """
    rows = _divergence(logits, plan, images[None, :], 1)
    columns = _divergence(logits, plan, captions[:, None], 0)
    return rows, columns


def _divergence(logits: Tensor, plan: Tensor, present: Tensor, dim: int) -> Tensor:
    log_p = logits.masked_fill(present == 0, _MASKED).log_softmax(dim)  # (T, I)
    target = plan.clamp(min=_LEAST_SHARE) * present
    q = target / target.sum(dim, keepdim=True).clamp(min=_LEAST_SHARE)
    difference = (q - log_p.exp()) * (q.clamp(min=1e-30).log() - log_p)
    return (difference * present).sum(dim) / 2
