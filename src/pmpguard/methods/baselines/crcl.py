"""CRCL: an active complementary loss, with correspondence labels that correct themselves.

Reference: Qin et al., "Cross-modal Active Complementary Learning with Self-refining Correspondence",
NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pmpguard.losses.hinge import own_and_negatives
from pmpguard.methods.method import EncodedBatch, EpochPlan, JudgingMethod, TrainingView, pooled_cosines


@dataclass(frozen=True)
class CrclSettings:
    """Published values.

    Args:
        warmup_epochs: epochs in which every label counts as 1; the last one's predictions are the first
            labels.
        temperature: of every softmax.
        momentum: share of a pair's former label that is kept.
        least_label: smaller labels become 0.
        complementary_weight: of the complementary part.
    """

    warmup_epochs: int = 2
    temperature: float = 0.05
    momentum: float = 0.8
    least_label: float = 0.1
    complementary_weight: float = 5.0


class Crcl(JudgingMethod):
    """Each pair is attracted as far as its label y says, and repels its negatives boundedly.

    With p the softmax over a batch, the active part is -y log p(own). The complementary part is the sum of
    tan p over the negatives, over the sum of tan p over all to the power 1 - y: near 1 - p for a pair that is
    disbelieved, which forgives a wrong label. A label is the moving average of what the model predicts for
    its pair.

    Differs from the original:
      * One training instead of several: the original begins anew three times, each time with the labels of
        the training before, so its runs are four trainings long.
      * Labels are refined once per batch as there, but of the augmented batch of the whole world.
      * Pairs that share an image or a caption string are not held against each other.
      * Scores are cosines of pooled tokens.
    """

    name = "crcl"
    Settings = CrclSettings

    settings: CrclSettings

    def phase(self, epoch: int) -> int:
        last = self.settings.warmup_epochs - 1
        return (epoch > last) + (epoch >= last)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings, phase = self.settings, self.phase(batch.epoch)
        scores = pooled_cosines(batch).float() / settings.temperature  # (T, I)
        own, rows, columns = own_and_negatives(scores, batch.image_of, batch.targets > 0)
        shares = [own_and_others(own, side) for side in (rows, columns)]
        predicted = torch.stack([log_own.exp() for log_own, _ in shares]).mean(0).detach()  # (T,)
        former = self.p_match[batch.rows]  # (T,)
        labels = former
        if phase == 2:
            labels = settings.momentum * former + (1 - settings.momentum) * predicted
            labels = torch.where(labels < settings.least_label, 0.0, labels)
        if self.training:
            self.p_match[batch.rows] = predicted if phase == 1 else labels
        active = [-log_own for log_own, _ in shares]
        bounded = [complementary_share(log_own, others, labels) for log_own, others in shares]
        return {
            "active": labels * (active[0] + active[1]),
            "complementary": settings.complementary_weight * (bounded[0] + bounded[1]),
        }

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        return EpochPlan(log={"mean_p_match": float(self.p_match.mean())})


def own_and_others(own: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Log-softmax of the pair's own logit (T,) and the negatives' softmax (T, K), one row a pair."""
    logits = torch.cat([own[:, None], negatives], dim=1).log_softmax(1)  # (T, 1 + K)
    return logits[:, 0], logits[:, 1:].exp()


def complementary_share(log_own: Tensor, others: Tensor, labels: Tensor) -> Tensor:
    """(T,): sum of tan p over the negatives (T, K) by the sum over all to the power 1 - label."""
    against = others.tan().sum(1)  # (T,)
    return against / (against + log_own.exp().tan()).clamp(min=1e-10) ** (1 - labels)
