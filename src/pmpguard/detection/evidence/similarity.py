"""Evidence that a pair matches: its cosine in a common space, standardised by its text's and its image's own.

Some captions ("many green trees") score high with every image and some images with every caption, so a raw
score says little. Standardising by what the same text scores on the images in general, and the same image on
the texts in general, takes that out (both-way score normalisation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pmpguard.detection.evidence.nearest import full

BLOCK_ROWS = 16_384
# (texts (P,), images (P,), rows left out (P,)) -> (P,): more of it speaks for a match
Measure = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ScoreStatistics:
    """What every text scores on images in general, and every image on texts in general."""

    text_mean: Tensor  # (C,)
    text_std: Tensor  # (C,)
    image_mean: Tensor  # (I,)
    image_std: Tensor  # (I,)

    def standardise(self, scores: Tensor, texts: Tensor, images: Tensor) -> Tensor:
        """Standardise scores whose text and image numbers broadcast against them.

        Pairs: all three (P,). A block: scores (T, I), texts (T, 1), images (1, I).
        """
        by_text = (scores - self.text_mean[texts]) / self.text_std[texts]
        by_image = (scores - self.image_mean[images]) / self.image_std[images]
        return (by_text + by_image) / 2**0.5


@torch.no_grad()
def pooled_statistics(texts: Tensor, images: Tensor) -> ScoreStatistics:
    """Mean and deviation of every text's cosines to all images and of every image's to all texts."""
    text_mean, text_variance = cosine_moments(texts, images)
    image_mean, image_variance = cosine_moments(images, texts)
    return ScoreStatistics(text_mean, _safe_std(text_variance), image_mean, _safe_std(image_variance))


def cosine_moments(queries: Tensor, gallery: Tensor, block: int = BLOCK_ROWS) -> tuple[Tensor, Tensor]:
    """Mean and variance (Q,) of each query's dot products with the whole gallery, without forming them.

    With the gallery's mean m and covariance C they are q·m and qᵀCq: O((Q + G) d²).
    """
    mean = gallery.mean(0, dtype=full(gallery[:0]).dtype)  # (d,)
    covariance = mean.new_zeros(len(mean), len(mean))
    for part in torch.split(gallery, block):
        deviation = full(part) - mean
        covariance += deviation.T @ deviation  # (d, d)
    covariance /= len(gallery)
    means, variances = [], []
    for part in map(full, torch.split(queries, block)):
        means.append(part @ mean)
        variances.append(((part @ covariance) * part).sum(-1))
    return torch.cat(means), torch.cat(variances).clamp(min=0)


def similarity_measure(texts: Tensor, images: Tensor) -> Measure:
    """Standardised cosines of unit vectors (C, d) and (I, d) of a common space; float16 stays that."""
    if texts.dtype != torch.float16:
        texts, images = texts.float(), images.float()
    statistics = pooled_statistics(texts, images)

    def measure(of_text: Tensor, of_image: Tensor, _: Tensor) -> Tensor:
        cosines = (texts[of_text].float() * images[of_image].float()).sum(1)
        return statistics.standardise(cosines, of_text, of_image)

    return measure


def _safe_std(variance: Tensor) -> Tensor:
    """Deviations, none smaller than a tenth of the typical one, so that no division explodes."""
    typical = variance.mean().sqrt().item()
    return variance.sqrt().clamp(min=0.1 * typical or 1.0)
