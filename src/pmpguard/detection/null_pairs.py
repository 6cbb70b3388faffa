"""What one look at the training set says about every pair: its evidence, and that of deliberately wrong ones.

The mismatched pairs are drawn once per run: each is a random caption in the place of a labelled one. Every
part of the evidence is measured on them exactly as on the labelled pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pmpguard.detection.evidence.caption_agreement import caption_agreement, rows_of_images
from pmpguard.detection.evidence.similarity import (
    MISMATCHED_AT_LEAST,
    MISMATCHED_AT_MOST,
    ScoreStatistics,
    pair_numbers,
    pooled_statistics,
    sample_null_numbers,
)
from pmpguard.detection.evidence.witnesses import centred

MOST_COMPARED = 100_000  # images among which nearest ones are looked for: the work grows with the square


@dataclass(frozen=True)
class Part:
    """One kind of evidence; more of it speaks for a match."""

    labelled: Tensor  # (N,)
    wrong: Tensor  # (M,)


@dataclass(frozen=True)
class NullPairs:
    """Deliberately mismatched pairs, each in the place of a labelled row."""

    captions: Tensor  # (M,)
    images: Tensor  # (M,)
    rows: Tensor  # (M,)


def null_pair_count(pairs: int) -> int:
    """How many null pairs are drawn: as many as labelled ones, but enough for a smooth density."""
    return min(max(pairs, MISMATCHED_AT_LEAST), MISMATCHED_AT_MOST)


def sample_null_pairs(
    caption_of: Tensor, image_of: Tensor, seed: int, image_labels: Tensor | None = None
) -> NullPairs:
    """`null_pair_count` of them; where too few combinations exist, some come up twice.

    With scene classes (images,) known, they are of different ones.
    """
    pairs = pair_numbers(caption_of, image_of)
    count = null_pair_count(len(pairs[0]))
    labels = None if image_labels is None else image_labels.cpu().numpy()
    captions, images = (
        torch.from_numpy(np.resize(numbers, count)).to(image_of.device)
        for numbers in sample_null_numbers(*pairs, count, seed, labels)
    )
    draws = torch.from_numpy(np.random.default_rng([seed, 2]).random(count))
    return NullPairs(captions, images, rows_of_images(image_of, images, draws))


@torch.no_grad()
def caption_agreement_evidence(
    captions: Tensor, caption_of: Tensor, image_of: Tensor, wrong: NullPairs
) -> Part:
    """How well each caption agrees with the other captions of its image, by embeddings (C, d)."""
    neighbour_text = centred(captions.float())
    rows = torch.arange(len(caption_of), device=caption_of.device)
    silent = 0.0  # of an image without other captions, right or wrong
    return Part(
        caption_agreement(neighbour_text, caption_of, image_of, caption_of, image_of, rows, silent),
        caption_agreement(
            neighbour_text, caption_of, image_of, wrong.captions, wrong.images, wrong.rows, silent
        ),
    )


@torch.no_grad()
def similarity_evidence(
    captions: Tensor, images: Tensor, caption_of: Tensor, image_of: Tensor, wrong: NullPairs
) -> tuple[Part, ScoreStatistics]:
    """The model's own score: cosines of pooled embeddings, standardised by caption and by image."""
    captions, images = captions.float(), images.float()
    statistics = pooled_statistics(captions, images)

    def score(of_caption: Tensor, of_image: Tensor) -> Tensor:
        cosines = (captions[of_caption] * images[of_image]).sum(1)
        return statistics.standardise(cosines, of_caption, of_image)

    return Part(score(caption_of, image_of), score(wrong.captions, wrong.images)), statistics
