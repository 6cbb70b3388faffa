"""Evidence that a labelled pair matches: its score, standardised by its caption's and its image's own scores.

Some captions ("many green trees") score high with every image and some images with every caption, so a raw
score says little. Standardising by what the same caption scores on the images in general, and the same image
on the captions in general, takes that out. Deliberately mismatched pairs go through exactly the same steps;
they are the sample of f- that `mixture.py` holds fixed.

A pair is a row: caption number `caption_of[row]` with image number `image_of[row]`. Equal captions share a
number, and so do equal images. All draws come from numpy generators on the CPU, so every rank and every
device sees the same mismatched pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.errors import DataError

Numbers = npt.NDArray[np.int64]
# (caption numbers (P,), image numbers (P,)) -> (P,) scores
PairScores = Callable[[Tensor, Tensor], Tensor]

MISMATCHED_AT_LEAST, MISMATCHED_AT_MOST = 20_000, 1_000_000
CHUNK = 65_536


@dataclass(frozen=True)
class ScoreStatistics:
    """What every caption scores on images in general, and every image on captions in general."""

    caption_mean: Tensor  # (C,)
    caption_std: Tensor  # (C,)
    image_mean: Tensor  # (I,)
    image_std: Tensor  # (I,)

    def standardise(self, scores: Tensor, captions: Tensor, images: Tensor) -> Tensor:
        """Standardise scores whose caption and image numbers broadcast against them.

        Pairs: all three (P,). A block: scores (T, I), captions (T, 1), images (1, I).
        """
        by_caption = (scores - self.caption_mean[captions]) / self.caption_std[captions]
        by_image = (scores - self.image_mean[images]) / self.image_std[images]
        return (by_caption + by_image) / 2**0.5


@dataclass(frozen=True)
class Evidence:
    """Standardised scores of the labelled pairs and of deliberately wrong ones, ready for the mixture."""

    scores: npt.NDArray[np.float64]  # (N,)
    mismatched: npt.NDArray[np.float64]  # (M,)
    statistics: ScoreStatistics


@torch.no_grad()
def pooled_evidence(
    captions: Tensor,
    images: Tensor,
    caption_of: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor,
    *,
    mismatched_count: int | None = None,
    seed: int = 0,
) -> Evidence:
    """Evidence from the cosines of pooled embeddings; the statistics are exact and cost O((C + I) d²).

    captions (C, d) and images (I, d) are unit vectors, `caption_of` and `image_of` (N,) the labelled pairs.
    """
    captions, images = captions.float(), images.float()

    def cosines(caption_numbers: Tensor, image_numbers: Tensor) -> Tensor:
        return (captions[caption_numbers] * images[image_numbers]).sum(-1)  # (P,)

    pairs = pair_numbers(caption_of, image_of, len(captions), len(images))
    wrong = sample_null_numbers(*pairs, mismatched_count, seed)
    return _collect(cosines, pooled_statistics(captions, images), pairs, wrong, captions.device)


@torch.no_grad()
def sampled_evidence(
    score_pairs: PairScores,
    caption_of: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor,
    *,
    samples: int = 64,
    mismatched_count: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    chunk: int = CHUNK,
) -> Evidence:
    """Evidence from any score; statistics are over `samples` random partners of each caption and image."""
    pairs = pair_numbers(caption_of, image_of)
    caption_count, image_count = (int(numbers.max()) + 1 for numbers in pairs)
    generator = np.random.default_rng([seed, 1])
    drawn_images = generator.integers(image_count, size=caption_count * samples)
    drawn_captions = generator.integers(caption_count, size=image_count * samples)
    each_caption = np.repeat(np.arange(caption_count), samples)
    each_image = np.repeat(np.arange(image_count), samples)
    by_caption = _score_in_chunks(score_pairs, each_caption, drawn_images, device, chunk).view(-1, samples)
    by_image = _score_in_chunks(score_pairs, drawn_captions, each_image, device, chunk).view(-1, samples)
    statistics = ScoreStatistics(
        by_caption.mean(1),
        _safe_std(by_caption.var(1, correction=0)),
        by_image.mean(1),
        _safe_std(by_image.var(1, correction=0)),
    )
    wrong = sample_null_numbers(*pairs, mismatched_count, seed)
    return _collect(score_pairs, statistics, pairs, wrong, device, chunk)


@torch.no_grad()
def pooled_statistics(captions: Tensor, images: Tensor) -> ScoreStatistics:
    """Mean and deviation of every caption's cosines to all images and of every image's to all captions."""
    caption_mean, caption_variance = cosine_moments(captions, images)
    image_mean, image_variance = cosine_moments(images, captions)
    return ScoreStatistics(caption_mean, _safe_std(caption_variance), image_mean, _safe_std(image_variance))


def cosine_moments(queries: Tensor, gallery: Tensor, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """Mean and variance (Q,) of each query's dot products with the whole gallery, without forming them.

    With the gallery's mean m and covariance C they are q·m and qᵀCq.
    """
    mean = gallery.mean(0)  # (d,)
    covariance = torch.zeros(gallery.shape[1], gallery.shape[1], dtype=gallery.dtype, device=gallery.device)
    for part in torch.split(gallery, chunk):
        centred = part - mean
        covariance += centred.T @ centred  # (d, d)
    covariance /= len(gallery)
    variance = [((part @ covariance) * part).sum(-1) for part in torch.split(queries, chunk)]
    return queries @ mean, torch.cat(variance).clamp(min=0)


def sample_null_numbers(
    caption_of: Numbers,
    image_of: Numbers,
    count: int | None = None,
    seed: int = 0,
    image_labels: Numbers | None = None,
) -> tuple[Numbers, Numbers]:
    """The caption of one random pair with the image of another, never a combination that is labelled.

    Since equal captions share a number, an image never meets a caption equal to one of its own. `count` is by
    default the number of pairs, but at least 20,000: the density of mismatched pairs should not be the noisy
    part. It may come out smaller where almost every draw is refused.

    Where scene classes are known (`image_labels` (images,), -1 for unknown) the two pairs are of different
    ones: a caption of the same class often fits, and pairs that fit are no sample of wrong ones.
    """
    pairs, images = len(caption_of), int(image_of.max()) + 1
    wanted = count or min(max(pairs, MISMATCHED_AT_LEAST), MISMATCHED_AT_MOST)
    labelled = np.unique(caption_of * images + image_of)
    labels = np.full(pairs, -1) if image_labels is None else image_labels[image_of]  # (N,)
    generator = np.random.default_rng([seed, 0])
    kept: list[Numbers] = []
    for _ in range(20):
        first, second = (generator.integers(pairs, size=wanted) for _ in range(2))
        combined = caption_of[first] * images + image_of[second]
        alike = (labels[first] == labels[second]) & (labels[first] >= 0)
        kept.append(combined[~np.isin(combined, labelled) & ~alike])
        if sum(map(len, kept)) >= wanted:
            break
    wrong = np.concatenate(kept)[:wanted]
    if not len(wrong) and image_labels is not None:
        return sample_null_numbers(caption_of, image_of, count, seed)
    if not len(wrong):
        raise DataError(
            f"no mismatched pair can be formed: each of the {images} images carries every caption",
            fix="detection needs at least two images with different captions",
        )
    return wrong // images, wrong % images


def pair_numbers(
    caption_of: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor,
    captions: int | None = None,
    images: int | None = None,
) -> tuple[Numbers, Numbers]:
    """Both as (N,) int64 on the CPU, or an error naming the first row that is out of range."""
    numbers = []
    for name, values, count in (("caption_of", caption_of, captions), ("image_of", image_of, images)):
        array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        array = array.astype(np.int64, copy=False)
        if array.ndim != 1 or not len(array):
            raise DataError(f"{name} has shape {array.shape}, expected one number per pair")
        outside = np.flatnonzero((array < 0) | (array >= (np.inf if count is None else count)))
        if len(outside):
            raise DataError(
                f"{name} row {outside[0]}: {array[outside[0]]} is not one of the {count} embedded"
            )
        numbers.append(array)
    if len(numbers[0]) != len(numbers[1]):
        raise DataError(f"caption_of has {len(numbers[0])} rows but image_of {len(numbers[1])}")
    return numbers[0], numbers[1]


def _safe_std(variance: Tensor) -> Tensor:
    """Deviations, none smaller than a tenth of the typical one, so that no division explodes."""
    typical = variance.mean().sqrt().item()
    return variance.sqrt().clamp(min=0.1 * typical or 1.0)


def _collect(
    score_pairs: PairScores,
    statistics: ScoreStatistics,
    pairs: tuple[Numbers, Numbers],
    wrong: tuple[Numbers, Numbers],
    device: torch.device | str,
    chunk: int = CHUNK,
) -> Evidence:
    """Score and standardise the labelled and the mismatched pairs the same way."""

    def standardised(captions: Tensor, images: Tensor) -> Tensor:
        return statistics.standardise(score_pairs(captions, images), captions, images)

    labelled = _score_in_chunks(standardised, *pairs, device, chunk)
    mismatched = _score_in_chunks(standardised, *wrong, device, chunk)
    return Evidence(labelled.double().cpu().numpy(), mismatched.double().cpu().numpy(), statistics)


def _score_in_chunks(
    score_pairs: PairScores, captions: Numbers, images: Numbers, device: torch.device | str, chunk: int
) -> Tensor:
    """(P,) scores of the pairs, `chunk` at a time."""
    parts = []
    for start in range(0, len(captions), chunk):
        part = slice(start, start + chunk)
        numbers = torch.from_numpy(captions[part]).to(device), torch.from_numpy(images[part]).to(device)
        parts.append(score_pairs(*numbers).float())
    return torch.cat(parts)
