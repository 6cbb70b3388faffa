"""NCR: pairs of low loss are believed, all pairs get a label corrected by the model's own prediction.

Reference: Huang et al., "Learning with Noisy Correspondence for Cross-modal Matching", NeurIPS 2021. The
split by a mixture of losses is that of Li, Socher and Hoi, "DivideMix", ICLR 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pmpguard.detection.gaussian_mixture import fit_gaussian_mixture
from pmpguard.losses.hinge import HardNegatives, hinge_terms
from pmpguard.methods.baselines.bicro import soft_margins
from pmpguard.methods.baselines.blocks import mean_hinges, measure_in_blocks
from pmpguard.methods.method import EncodedBatch, EpochPlan, JudgingMethod, TrainingView, pooled_cosines


@dataclass(frozen=True)
class NcrSettings:
    """Published values, but for `negatives`.

    Args:
        warmup_epochs: epochs of triplets averaged over all negatives, on all pairs.
        margin: of every hinge; the largest soft margin.
        threshold: a pair is clean when the mixture gives it more than this.
        sure_share: of a batch's predictions the largest, whose mean counts as certain.
        curve: the soft margin is margin * (curve^y - 1) / (curve - 1).
        wrong_after: epochs after the warm-up in which pairs judged wrong are left out.
        negatives: semi-hard, or the hardest of the original.
    """

    warmup_epochs: int = 5
    margin: float = 0.2
    threshold: float = 0.5
    sure_share: float = 0.1
    curve: float = 10.0
    wrong_after: int = 20
    negatives: HardNegatives = "semi-hard"


class Ncr(JudgingMethod):
    """Triplets whose margin follows a corrected label y of each pair.

    Once per epoch a mixture of two Gaussians over the pairs' mean hinges splits the training set. In each
    batch the model predicts how well every pair fits, from how far it stands above its negatives. A clean
    pair's label is w + (1 - w) * prediction, w its probability by the mixture; that of a pair judged wrong is
    the prediction alone.

    Differs from the original:
      * Negatives are semi-hard. The original's hardest ones meet a similarity network after a long warm-up;
        cosines after a short one, among look-alike scenes, collapse.
      * One network instead of two that split the data for each other and average their predictions.
      * Predictions are made of the batch that is trained, augmentation and dropout included.
      * Pairs judged clean and wrong share batches, because the loop deals them; negatives are the batch's.
      * Terms are means over all pairs of a batch; the original draws as many wrong as clean pairs.
      * Pairs judged wrong join after `wrong_after` epochs, where the original waits for half of its 40; it
        does not know how long a run will be. Shorter runs need smaller numbers.
    """

    name = "ncr"
    Settings = NcrSettings

    settings: NcrSettings

    def phase(self, epoch: int) -> int:
        trained = epoch - self.settings.warmup_epochs
        return 0 if trained < 0 else 1 if trained < self.settings.wrong_after else 2

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings, phase = self.settings, self.phase(batch.epoch)
        scores, positives = pooled_cosines(batch), batch.targets > 0  # (T, I)
        if phase == 0:
            return {"warmup_epochs": hinge_terms(scores, batch.image_of, positives, settings.margin, "mean")}
        predicted = predicted_match(
            scores.detach(), batch.image_of, positives, settings.margin, settings.sure_share
        )
        p_match = self.p_match[batch.rows]  # (T,)
        clean = p_match > settings.threshold
        labels = torch.where(clean, p_match + (1 - p_match) * predicted, predicted)
        margins = soft_margins(labels, settings.margin, settings.curve)  # (T,)
        terms = hinge_terms(scores, batch.image_of, positives, margins, settings.negatives)
        return {"triplet": terms * clean if phase == 1 else terms}

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        if view.epoch < self.settings.warmup_epochs:
            return EpochPlan()
        hinges = measure_in_blocks(view, lambda block: mean_hinges(block, self.settings.margin))  # (N,)
        mixture = fit_gaussian_mixture(hinges.double().cpu().numpy())
        self.p_match.copy_(torch.from_numpy(mixture.p_low))
        return EpochPlan(log={"mean_p_match": float(self.p_match.mean())})


def predicted_match(
    scores: Tensor, image_of: Tensor, positives: Tensor, margin: float, sure_share: float
) -> Tensor:
    """(T,) in [0, 1]: margin minus the pair's mean hinge, as a share of what the surest pairs have.

    scores (T, I), image_of (T,), positives (T, I) bool. Both directions' hinges are averaged. The surest
    pairs are one more than `sure_share` of the batch, rounded down.
    """
    hinges = hinge_terms(scores, image_of, positives, margin, "mean") / 2  # (T,)
    gap = (margin - hinges).clamp(0, margin)
    surest = gap.topk(min(len(gap), int(sure_share * len(gap)) + 1)).values.mean()
    return (gap / surest.clamp(min=1e-6)).clamp(max=1)
