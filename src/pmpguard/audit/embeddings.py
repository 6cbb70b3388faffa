"""Evidence about every pair from two matrices of embeddings of one model.

* score: the cosine of caption and image, standardised by what both score in general;
* agreement: how well the caption agrees with the image's other captions, where images have several;
* neighbours: how well it says what is said of the images that look alike;
* mapped, said, shown: see `first_look.py`;
* anything else the caller measures pair by pair (`more`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.similarity import pair_numbers, pooled_statistics
from pmpguard.detection.evidence.witnesses import centred, neighbour_consensus
from pmpguard.detection.training_free import TrainingFreeEvidence, training_free_evidence
from pmpguard.detection.verdicts import (
    CAPTION_AGREEMENT,
    NEIGHBOUR_CONSENSUS,
    SIMILARITY,
    EmbeddingAudit,
    Measure,
    PairEvidence,
    caption_agreement_measure,
    judge_evidence,
    measured_evidence,
)
from pmpguard.errors import DataError


def audit_embeddings(
    images: npt.ArrayLike | Tensor,
    captions: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor | None = None,
    caption_of: npt.ArrayLike | Tensor | None = None,
    *,
    image_labels: npt.ArrayLike | None = None,
    bootstrap: int = 100,
    seed: int = 0,
) -> EmbeddingAudit:
    """Judge pairs by embeddings of any model with a common space, such as any CLIP.

    images (I, d) and captions (C, d); pair r is caption `caption_of[r]` with image `image_of[r]`, by default
    caption r with image r. Equal captions, and equal images, should share a number: two images of one
    number are never taken for a mismatched pair. `image_labels` (I,), where scene classes are known, are
    whole numbers, -1 for unknown: what mismatched pairs look like is then learned from pairs of different
    classes.
    """
    evidence = embedding_evidence(
        images, captions, image_of, caption_of, image_labels=image_labels, seed=seed
    )
    return judge_evidence([evidence], bootstrap=bootstrap, seed=seed)


@torch.no_grad()
def embedding_evidence(
    images: npt.ArrayLike | Tensor,
    captions: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor | None = None,
    caption_of: npt.ArrayLike | Tensor | None = None,
    *,
    image_labels: npt.ArrayLike | None = None,
    looked: TrainingFreeEvidence | None = None,
    more: Mapping[str, Measure] | None = None,
    mismatched_count: int | None = None,
    seed: int = 0,
) -> PairEvidence:
    """The parts of every labelled pair and of deliberately wrong ones; see `audit_embeddings`.

    `looked` is what is known before any training; by default what the embeddings themselves tell.
    """
    pixels, texts = unit_rows(images, "images"), unit_rows(captions, "captions")
    if pixels.shape[1] != texts.shape[1]:
        raise DataError(
            f"images have {pixels.shape[1]} dimensions but captions {texts.shape[1]}",
            fix="both must come from one model with a common space",
        )
    rows_given = np.arange(len(texts)) if caption_of is None else caption_of
    pairs = pair_numbers(
        rows_given, np.arange(len(texts)) if image_of is None else image_of, len(texts), len(pixels)
    )
    of_caption, of_image = (torch.from_numpy(numbers).to(texts.device) for numbers in pairs)  # (N,)
    labels = None if image_labels is None else np.asarray(image_labels)
    known = {**_measures(pixels, texts, of_caption, of_image), **(more or {})}
    if looked is None:
        looked = training_free_evidence(
            texts, pixels, of_caption, of_image, known, image_labels=labels, seed=seed
        )
    measures = {**known, **looked.measures}
    evidence = measured_evidence(measures, of_caption, of_image, labels, mismatched_count, seed)
    return replace(evidence, alike=looked.alike)


def _measures(pixels: Tensor, texts: Tensor, of_caption: Tensor, of_image: Tensor) -> dict[str, Measure]:
    """Score and neighbours always; agreement where an image has several captions."""
    statistics = pooled_statistics(texts, pixels)
    neighbour_text, looks = centred(texts), centred(pixels)  # (C, d), (I, d)
    consensus = neighbour_consensus(looks, neighbour_text, of_caption, of_image)  # (I, d)
    consensus_statistics = pooled_statistics(neighbour_text, consensus)

    def score(captions: Tensor, images: Tensor, _: Tensor) -> Tensor:
        cosines = (texts[captions] * pixels[images]).sum(-1)
        return statistics.standardise(cosines, captions, images)

    def neighbours(captions: Tensor, images: Tensor, _: Tensor) -> Tensor:
        cosines = (neighbour_text[captions] * consensus[images]).sum(-1)
        return consensus_statistics.standardise(cosines, captions, images)

    measures: dict[str, Measure] = {SIMILARITY: score, NEIGHBOUR_CONSENSUS: neighbours}
    agree = caption_agreement_measure(neighbour_text, of_caption, of_image)
    return measures if agree is None else {**measures, CAPTION_AGREEMENT: agree}


def unit_rows(values: npt.ArrayLike | Tensor, name: str) -> Tensor:
    """A float32 matrix of unit rows; an error names the first row that is not finite or has no length."""
    given = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float32))
    matrix: Tensor = given.float()
    if matrix.ndim != 2 or not matrix.numel():
        raise DataError(f"{name}: shape {tuple(matrix.shape)}, expected (number, dimensions)")
    lengths = matrix.norm(dim=1)  # (N,)
    bad = (~(lengths.isfinite() & (lengths > 0))).nonzero()
    if len(bad):
        raise DataError(
            f"{name} row {int(bad[0])}: not finite or all zero ({len(bad)} such rows)",
            fix="embed them again or leave their pairs out",
        )
    scaled: Tensor = matrix / lengths[:, None]
    return scaled
