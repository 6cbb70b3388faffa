"""DECL: similarities as evidence, with the uncertainty that comes with it.

Reference: Qin, Peng, Peng, Wang and Hu, "Deep Evidential Learning with Noisy Correspondence for Cross-modal
Retrieval", ACM MM 2022. The evidential loss is Sensoy, Kaplan and Kandemir, "Evidential Deep Learning to
Quantify Classification Uncertainty", NeurIPS 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pmpguard.losses.hinge import hinge_terms
from pmpguard.methods.baselines.blocks import measure_in_blocks
from pmpguard.methods.method import EncodedBatch, EpochPlan, Method, TrainingView, labelled, pooled_cosines
from pmpguard.models.retriever import Retriever


@dataclass(frozen=True)
class DeclSettings:
    """Published values, but for `slope` and `offset`.

    Args:
        warmup_epochs: epochs in which every label is believed.
        slope: similarities are s = tanh(slope * cosine + offset).
        offset: what an unrelated pair has before tanh.
        temperature: evidence is exp(s / temperature).
        divergence_weight: of the divergence of wrong evidence from none.
        hinge_weight: of the hinge: 0.8, times the 128 pairs whose hinges the original adds up, not averages.
        margin: of the hinge.
        fewest_negatives: hardest negatives the hinge averages over in the end.
        harder_for: epochs over which it comes down to them from all negatives.
    """

    warmup_epochs: int = 5
    slope: float = 2.0
    offset: float = -0.5
    temperature: float = 0.1
    divergence_weight: float = 0.1
    hinge_weight: float = 0.8 * 128
    margin: float = 0.2
    fewest_negatives: int = 5
    harder_for: int = 5


class Decl(Method):
    """Each caption's evidence for the images of a batch makes a Dirichlet distribution, and the reverse.

    Its expected squared error to the label is minimised, and evidence for anything else is drawn to none. A
    hinge over ever harder negatives is added. From the end of the warm-up on, a pair whose own evidence is
    not the largest among 128 pairs is disbelieved for an epoch: no label, only evidence drawn to none, and no
    hinge.

    Differs from the original:
      * tanh acts on a line through cosines of pooled tokens instead of the output of a similarity network,
        whose last layer can move and stretch similarities. Of bare cosines, those of all pairs would have to
        go to -1 to leave no evidence, where all embeddings are one.
      * Negatives become harder by epoch (all count in the first, the fewest after `harder_for`), not by step:
        0.025 fewer per step, as theirs, takes about five epochs of Flickr30K, and would mean another schedule
        on every dataset.
      * Pairs that share an image or a caption string are not held against each other.
      * Terms are means over pairs; `hinge_weight` keeps the ratio of the original's sum and mean.
    """

    name = "decl"
    Settings = DeclSettings

    p_match: Tensor
    settings: DeclSettings

    def __init__(self, retriever: Retriever, settings: DeclSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.register_buffer("p_match", torch.ones(pairs))

    def phase(self, epoch: int) -> int:
        return min(epoch, self.settings.harder_for)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings = self.settings
        scores = self._similarities(batch)  # (T, I)
        believed = (self.p_match[batch.rows] > 0.5).to(scores.dtype)  # (T,), all 1 in the warm-up
        evidence = (scores / settings.temperature).double().exp()  # (T, I)
        targets = batch.weighted_targets(believed).double()  # (T, I)
        rows = evidential_terms(evidence, targets, settings.divergence_weight)  # (T,)
        columns = evidential_terms(evidence.T, targets.T, settings.divergence_weight)  # (I,)
        hinges = hinge_terms(
            scores, batch.image_of, batch.targets > 0, settings.margin,
            hardest=negatives_used(
                batch.epoch, len(batch.rows), settings.fewest_negatives, settings.harder_for
            ),
        )  # fmt: skip
        return {
            "evidence": (rows + columns[batch.image_of]).to(scores.dtype),
            "hinge": settings.hinge_weight * hinges * believed,
        }

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        if view.epoch < self.settings.warmup_epochs:
            return EpochPlan()
        self.p_match.copy_(measure_in_blocks(view, self._share_of_own))
        return EpochPlan(log={"believed": float((self.p_match > 0.5).float().mean())})

    def _similarities(self, batch: EncodedBatch) -> Tensor:
        """(T, I) in (-1, 1)."""
        return (self.settings.slope * pooled_cosines(batch) + self.settings.offset).tanh()

    def _share_of_own(self, block: EncodedBatch) -> Tensor:
        evidence = (self._similarities(block) / self.settings.temperature).double().exp()
        return own_share(evidence, block.image_of, block.targets > 0)

    def progress(self) -> dict[str, Tensor]:
        return {"believed": (self.p_match > 0.5).float().mean()}


def negatives_used(epoch: int, batch: int, fewest: int, harder_for: int) -> int:
    """How many of the hardest negatives count: all of a batch at first, `fewest` from epoch `harder_for` on.

    >>> [negatives_used(epoch, 105, 5, 4) for epoch in range(6)]
    [105, 80, 55, 30, 5, 5]
    """
    left = max(0.0, 1 - epoch / harder_for) if harder_for > 0 else 0.0
    return max(fewest, round(fewest + (batch - fewest) * left))


def evidential_terms(evidence: Tensor, targets: Tensor, divergence_weight: float) -> Tensor:
    """(Q,): for each query, the expected squared error of its Dirichlet distribution, and the divergence.

    evidence (Q, K) >= 0; targets (Q, K), above 0 at what belongs to the query, shared equally by weight; a
    query without target should find nothing. Dirichlet parameters are evidence + 1. The divergence is
    KL(Dir(evidence for the wrong + 1), Dir(1)). Wants float64: log-gammas of the sums are large.
    """
    alpha = evidence + 1
    total = alpha.sum(1, keepdim=True)  # (Q, 1)
    mean = alpha / total
    labels = targets / targets.sum(1, keepdim=True).clamp(min=1e-12)
    error = ((labels - mean) ** 2).sum(1)  # (Q,)
    variance = (mean * (1 - mean) / (total + 1)).sum(1)
    wrong = torch.where(targets > 0, 1.0, alpha)  # (Q, K)
    return error + variance + divergence_weight * divergence_from_uniform(wrong)


def divergence_from_uniform(alpha: Tensor) -> Tensor:
    """(Q,): KL(Dir(alpha), Dir(1)) of each row of alpha (Q, K)."""
    total = alpha.sum(1, keepdim=True)  # (Q, 1)
    count = torch.full_like(total, alpha.shape[1])
    constants = (total.lgamma() - count.lgamma()).squeeze(1) - alpha.lgamma().sum(1)
    return constants + ((alpha - 1) * (alpha.digamma() - total.digamma())).sum(1)


def own_share(evidence: Tensor, image_of: Tensor, positives: Tensor) -> Tensor:
    """(T,): a pair's own evidence over its sum with the strongest negative's; above 1/2 when it is larger.

    Two pairs support each other's change of partners by the evidence of each one's caption with the other's
    image, added; so a pair's own evidence counts twice.
    """
    own = 2 * labelled(evidence, image_of)  # (T,)
    crossed = evidence[:, image_of]  # (T, T): caption of one pair, image of another
    allied = positives[:, image_of]
    negative = (crossed + crossed.T).masked_fill(allied | allied.T, 0.0).amax(1)  # (T,)
    return own / (own + negative)
