"""BiCro: soft labels from whether similar images have similar captions.

Reference: Yang et al., "BiCro: Noisy Correspondence Rectification for Multi-modality Data via Bi-directional
Cross-modal Similarity Consistency", CVPR 2023. The soft margin is that of Huang et al., "Learning with Noisy
Correspondence for Cross-modal Matching" (NCR), NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pmpguard.detection.beta_mixture import fit_beta_mixture
from pmpguard.detection.evidence.nearest import full
from pmpguard.losses.hinge import HardNegatives, hinge_terms
from pmpguard.methods.baselines.blocks import mean_hinges, measure_in_blocks
from pmpguard.methods.baselines.memory import nearest_remembered
from pmpguard.methods.method import EncodedBatch, EpochPlan, JudgingMethod, TrainingView, pooled_cosines
from pmpguard.models.retriever import Retriever

_PAIRS_AT_ONCE = 4096


@dataclass(frozen=True)
class BiCroSettings:
    """Published values, but for `negatives`.

    Args:
        warmup_epochs: epochs on the pairs of lowest loss in each batch.
        warmup_share: how many of them.
        margin: of every hinge; the largest soft margin.
        threshold: a pair is clean when the mixture gives it more than this.
        mixture_iterations: of EM.
        anchor_share: of the clean pairs, those of lowest loss that all others are compared to.
        least_label: softer labels of pairs judged wrong become 0.
        curve: the soft margin is margin * (curve^y - 1) / (curve - 1).
        wrong_after: epochs after the warm-up in which pairs judged wrong are left out.
        negatives: semi-hard, or the hardest of the original.
    """

    warmup_epochs: int = 10
    warmup_share: float = 0.3
    margin: float = 0.2
    threshold: float = 0.5
    mixture_iterations: int = 10
    anchor_share: float = 0.1
    least_label: float = 0.5
    curve: float = 10.0
    wrong_after: int = 20
    negatives: HardNegatives = "semi-hard"


class BiCro(JudgingMethod):
    """Triplets whose margin follows a soft label y of each pair.

    Once per epoch a beta mixture of the pairs' mean hinges splits the training set, and the best clean pairs
    become anchors (y = 1). For any other pair, the anchor with the most similar image is found: its caption
    should be as similar to the pair's caption. The ratio of the two similarities, and the same from caption
    to image, give y.

    Differs from the original:
      * Negatives are semi-hard. The original's hardest ones meet a similarity network after thousands of
        steps of warm-up. Cosines after a short one leave most pairs below their hardest negative, the more so
        among look-alike scenes with several captions an image, and collapse. Soft margins below the whole
        one make collapsing cheaper still, and a collapsed model finds every pair consistent.
      * One network instead of two that judge for each other: every peer here gets the same one model.
      * Anchors come from the whole training set, not from the batch, and labels are estimated once per epoch.
      * Pairs judged clean and wrong share batches, because the loop deals them; negatives are the batch's.
      * Terms are means over all pairs of a batch; the original draws as many wrong as clean pairs.
      * Pairs judged wrong join after `wrong_after` epochs, where the original waits for half of its 40; it
        does not know how long a run will be. Shorter runs need smaller numbers.
    """

    name = "bicro"
    Settings = BiCroSettings

    soft_labels: Tensor
    settings: BiCroSettings

    def __init__(self, retriever: Retriever, settings: BiCroSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.register_buffer("soft_labels", torch.ones(pairs))

    def phase(self, epoch: int) -> int:
        after = epoch - self.settings.warmup_epochs
        return 0 if after < 0 else 1 + (after >= self.settings.wrong_after)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings, phase = self.settings, self.phase(batch.epoch)
        if phase == 0:
            hinges = mean_hinges(batch, settings.margin)  # (T,)
            return {"warmup_epochs": hinges * lowest(hinges.detach(), settings.warmup_share)}
        margins = soft_margins(self.soft_labels[batch.rows], settings.margin, settings.curve)  # (T,)
        terms = hinge_terms(
            pooled_cosines(batch), batch.image_of, batch.targets > 0, margins, negatives=settings.negatives
        )
        if phase == 1:
            terms = terms * (self.p_match[batch.rows] > settings.threshold)
        return {"triplet": terms}

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        settings = self.settings
        if view.epoch < settings.warmup_epochs:
            return EpochPlan()
        hinges = measure_in_blocks(view, lambda block: mean_hinges(block, settings.margin))  # (N,)
        mixture = fit_beta_mixture(hinges.double().cpu().numpy(), settings.mixture_iterations)
        self.p_match.copy_(torch.from_numpy(mixture.p_low))
        clean = self.p_match > settings.threshold  # (N,)
        anchors = hinges.argsort()[: max(1, round(settings.anchor_share * int(clean.sum())))]  # (A,)
        agreement = consistency(
            view.captions.pooled, view.images.pooled, view.caption_of, view.image_of, anchors
        )  # (N,)
        wrong = torch.where(agreement > settings.least_label, agreement, 0.0)
        labels = torch.where(clean, (1 + agreement) / 2, wrong)
        labels[anchors] = 1.0
        self.soft_labels.copy_(labels)
        return EpochPlan(
            log={"mean_p_match": float(self.p_match.mean()), "mean_soft_label": float(labels.mean())}
        )


def lowest(losses: Tensor, share: float) -> Tensor:
    """(T,) of 0 and 1: the given share of the losses (T,), at least one, that is lowest."""
    count = max(1, int(share * len(losses)))
    limit = losses.topk(count, largest=False).values.amax()
    return (losses <= limit).to(losses.dtype)


def soft_margins(labels: Tensor, margin: float, curve: float) -> Tensor:
    """(T,): from 0 for a label 0 to the whole margin for a label 1, steeply towards the end."""
    return margin * (curve**labels - 1) / (curve - 1)


@torch.no_grad()
def consistency(
    captions: Tensor, images: Tensor, caption_of: Tensor, image_of: Tensor, anchors: Tensor
) -> Tensor:
    """(N,) in [0, 1]: how well each pair agrees with the anchors nearest to its image and to its caption.

    captions (C, d) and images (I, d) are unit vectors, caption_of and image_of (N,) the pairs, anchors (A,)
    the rows of pairs judged clean.
    """
    trusted_captions = captions[caption_of[anchors]]  # (A, d)
    trusted_images = images[image_of[anchors]]  # (A, d)
    by_image = nearest_remembered(images, trusted_images)[image_of]  # (N,) number of the anchor
    by_caption = nearest_remembered(captions, trusted_captions)[caption_of]  # (N,)

    def similarities(nearest: Tensor) -> tuple[Tensor, Tensor]:
        of_images = _paired_cosines(images, image_of, trusted_images, nearest)
        of_captions = _paired_cosines(captions, caption_of, trusted_captions, nearest)
        return of_images, of_captions

    return (_agreement(*similarities(by_image)) + _agreement(*similarities(by_caption))) / 2


def _paired_cosines(items: Tensor, item_of: Tensor, anchors: Tensor, anchor_of: Tensor) -> Tensor:
    """(N,): the similarity of each pair's item to the pair's anchor."""
    parts = zip(torch.split(item_of, _PAIRS_AT_ONCE), torch.split(anchor_of, _PAIRS_AT_ONCE), strict=True)
    return torch.cat([(full(items[item]) * full(anchors[anchor])).sum(1) for item, anchor in parts])


def _agreement(first: Tensor, second: Tensor) -> Tensor:
    """(N,): the smaller similarity over the larger; 0 where one of them is not positive."""
    small, large = torch.minimum(first, second), torch.maximum(first, second)
    return torch.where(small > 0, small / large.clamp(min=1e-6), 0.0).clamp(max=1)
