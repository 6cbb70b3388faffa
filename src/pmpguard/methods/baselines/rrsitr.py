"""RRSITR: learn from easy pairs first, by self-paced weights.

Reference: Song, Xie, Sun, Dian and Kang, "Robust Remote Sensing Image-Text Retrieval with Noisy
Correspondence", CVPR 2026.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pmpguard.losses.hinge import own_and_negatives
from pmpguard.methods.method import EncodedBatch, JudgingMethod, pooled_cosines
from pmpguard.models.encoded import Encoded


@dataclass(frozen=True)
class RrsitrSettings:
    """Published values, but for `words` and `warmup_epochs`.

    Args:
        scale: similarities are multiplied by it before every softmax (a temperature of 0.05).
        clean_below: gamma 1; pairs of a lower loss are clean.
        noisy_from: gamma 2; pairs of at least this loss are noisy, those between ambiguous.
        ambiguous_weight: lambda 1.
        noisy_weight: lambda 2.
        margin: sigma, the least margin of the triplet loss on noisy pairs.
        words: fragments' similarities are multiplied by its root, as if those of so many words were added up.
        reference_batch: batch size both limits are meant for.
        warmup_epochs: epochs in which every pair counts fully; for encoders that do not start aligned.
    """

    scale: float = 20.0
    clean_below: float = 5.0
    noisy_from: float = 18.0
    ambiguous_weight: float = 0.8
    noisy_weight: float = 0.9
    margin: float = 0.6
    words: int = 6
    reference_batch: int = 100
    warmup_epochs: int = 0


class Rrsitr(JudgingMethod):
    """Cross-entropy l of pooled tokens plus that of fragments, weighted by how easy the pair is.

    Clean and ambiguous pairs have the weight cos(pi/2 l/limit) with their own limits; noisy ones train by a
    triplet loss whose margin grows with how far the hardest negative is ahead. `p_match` holds
    cos(pi/2 l/noisy_from) of the last batch that had the pair, 0 for noisy ones.

    Differs from the original:
      * Limits follow the batch: l of a guess grows with the logarithm of the batch size, and 18 is a little
        under that of a guess among the original's 100 pairs (18.4); a batch of 100 has exactly theirs.
      * The fragments' similarity is the root mean square of the cosines of a caption's words and an image's
        regions, times the root of `words`. Theirs is the root of the sum over 77 words, padding included, and
        49 regions: made for the tokens of an aligned CLIP, whose cosines hardly differ, it is far too sharp
        to start training with, while the plain mean is so flat that under heavy noise every pair looks noisy.
      * The self-paced regulariser is left out: it is a function of weights held fixed, and has no gradient.
      * Pairs that share an image or a caption string are not held against each other, nor for each other: a
        pair's loss is its own, or the wrong captions of an image would make its right one look wrong.
    """

    name = "rrsitr"
    Settings = RrsitrSettings

    settings: RrsitrSettings

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warmup_epochs)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings, targets, image_of = self.settings, batch.targets, batch.image_of
        scores = pooled_cosines(batch)  # (T, I)
        local = fragment_similarities(batch.texts, batch.images)  # (T, I)
        local_scale = settings.scale * math.sqrt(settings.words)
        losses = own_terms(settings.scale * scores, image_of, targets > 0) + own_terms(
            local_scale * local, image_of, targets > 0
        )  # (T,)
        factor = batch_factor(len(batch.texts), len(batch.images), settings.reference_batch)
        clean_below, noisy_from = factor * settings.clean_below, factor * settings.noisy_from
        level = losses.detach()
        reliability = paced_weights(level, noisy_from)  # (T,)
        self.p_match.index_copy_(0, batch.rows, reliability.to(self.p_match))
        if batch.epoch < settings.warmup_epochs:
            return {"paced": losses}
        weights = torch.where(
            level < clean_below, paced_weights(level, clean_below), settings.ambiguous_weight * reliability
        )
        triplets = growing_margin_terms(scores, image_of, targets > 0, settings.margin)
        return {
            "paced": weights * losses,
            "triplet": settings.noisy_weight * (level >= noisy_from) * triplets,
        }


def batch_factor(captions: int, images: int, reference: int) -> float:
    """The loss of a guess in this batch over that in the reference batch.

    >>> batch_factor(100, 100, 100), round(batch_factor(10, 10, 100), 3)
    (1.0, 0.5)
    """
    return math.log(max(captions, 2) * max(images, 2)) / (2 * math.log(reference))


def own_terms(logits: Tensor, image_of: Tensor, positives: Tensor) -> Tensor:
    """(T,): -log of the probability of each pair among it and its negatives, row and column added.

    Other positives of the caption or of the image take no part: a pair is judged by itself alone.
    """
    own, rows, _ = own_and_negatives(logits, image_of, positives)
    against_rows = rows.logsumexp(1)  # (T,) of each caption's negatives
    against_columns = rows.T.logsumexp(1)[image_of]  # (T,) of its image's
    return torch.logaddexp(own, against_rows) + torch.logaddexp(own, against_columns) - 2 * own


def paced_weights(losses: Tensor, limit: float) -> Tensor:
    """(T,): cos(pi/2 l/limit), from 1 at loss 0 to 0 at the limit and beyond."""
    return torch.cos(math.pi / 2 * (losses / limit).clamp(0, 1)).clamp(min=0)


def fragment_similarities(texts: Encoded, images: Encoded) -> Tensor:
    """(T, I): the root mean square of the cosines between a caption's words and an image's regions."""
    words = texts.fragments * texts.mask[:, :, None]  # (T, m, d)
    regions = images.fragments * images.mask[:, :, None]  # (I, n, d)
    cosines = words.flatten(0, 1) @ regions.flatten(0, 1).T  # (T m, I n)
    shape = (len(texts), words.shape[1], len(images), regions.shape[1])
    squares = cosines.square().view(shape).sum((1, 3))  # (T, I)
    counts = texts.mask.sum(1)[:, None] * images.mask.sum(1)[None, :]  # (T, I)
    return (squares / counts.clamp(min=1)).clamp(min=1e-12).sqrt()


def growing_margin_terms(scores: Tensor, image_of: Tensor, positives: Tensor, margin: float) -> Tensor:
    """(T,): [margin (1 + [negative - own]+) + negative - own]+ with the hardest negative, both ways."""
    own, rows, columns = own_and_negatives(scores, image_of, positives)
    terms = torch.zeros_like(own)
    for negative in (rows.amax(1), columns.amax(1)):  # (T,)
        ahead = negative - own
        terms = terms + (margin * (1 + ahead.clamp(min=0)) + ahead).clamp(min=0)
    return terms
