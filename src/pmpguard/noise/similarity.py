"""The similarity filter: a wrong caption should be unlike the image it is put to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from pmpguard.data.arrays import load_array
from pmpguard.data.images.decode import load_pair_image
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.progress import watched

ENCODED_AT_ONCE = 64

# Rows of embeddings compared at once, which bounds the memory.
PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class SimilarityFilter:
    """Keeps a replacement only when it scores under a low quantile of the clean pairs' scores.

    Args:
        score: (image rows (M,), caption rows (M,)) -> (M,) similarity of each image to each caption, where
            a row of the table stands for its image and for its caption.
        quantile: of the clean pairs' similarities; the threshold.
        draws: replacements tried for each target; the least similar is used if none is under the threshold.
    """

    score: Callable[[np.ndarray, np.ndarray], np.ndarray]
    quantile: float = 0.1
    draws: int = 50

    def __post_init__(self) -> None:
        if not 0.0 < self.quantile <= 1.0:
            raise ConfigError(f"quantile is {self.quantile}", fix="use a share over 0 and up to 1")
        if self.draws < 1:
            raise ConfigError(f"draws is {self.draws}", fix="use 1 or more")

    @classmethod
    def from_matrix(
        cls, scores: np.ndarray, image_codes: np.ndarray, quantile: float = 0.1, draws: int = 50
    ) -> SimilarityFilter:
        """From scores (captions, images): a row for each row of the table, a column for each image code."""
        expected = (len(image_codes), int(image_codes.max(initial=-1)) + 1)
        if scores.shape != expected:
            raise DataError(
                f"similarity scores have shape {scores.shape}, the table has {expected[0]} pairs of "
                f"{expected[1]} images",
                fix="give one row per caption and one column per image, in the table's order",
            )
        return cls(lambda images, captions: scores[captions, image_codes[images]], quantile, draws)

    @classmethod
    def from_embeddings(
        cls,
        images: np.ndarray,
        captions: np.ndarray,
        image_codes: np.ndarray,
        quantile: float = 0.1,
        draws: int = 50,
    ) -> SimilarityFilter:
        """From unit vectors: one for each image code (I, d) and one for each row of the table (N, d)."""
        expected = (int(image_codes.max(initial=-1)) + 1, len(image_codes))
        if (len(images), len(captions)) != expected or images.shape[1:] != captions.shape[1:]:
            raise DataError(
                f"embeddings have shapes {images.shape} and {captions.shape}, the table has {expected[0]} "
                f"images and {expected[1]} captions",
                fix="give one vector per image and one per caption, in the table's order",
            )

        def score(image_rows: np.ndarray, caption_rows: np.ndarray) -> np.ndarray:
            parts = [
                np.einsum(
                    "md,md->m",
                    images[image_codes[image_rows[start : start + PAIRS_AT_ONCE]]],
                    captions[caption_rows[start : start + PAIRS_AT_ONCE]],
                )
                for start in range(0, len(image_rows), PAIRS_AT_ONCE)
            ]
            return np.concatenate(parts)

        return cls(score, quantile, draws)

    def scores(self, image_rows: np.ndarray, caption_rows: np.ndarray) -> np.ndarray:
        """(M,) float64: checked similarities."""
        values = np.asarray(self.score(image_rows, caption_rows), dtype=np.float64)
        if values.shape != image_rows.shape:
            raise DataError(f"the similarity function gave shape {values.shape} for {image_rows.shape} pairs")
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError(
                f"similarity of image row {image_rows[bad]}, caption row {caption_rows[bad]}: {values[bad]}",
                fix="check the model or the file the scores come from",
            )
        return values

    def threshold(self, clean_rows: np.ndarray) -> float:
        """The quantile of the clean pairs' similarities."""
        return float(np.quantile(self.scores(clean_rows, clean_rows), self.quantile))


class Encoded(Protocol):
    """Unit vectors (N, d) of images or captions."""

    @property
    def pooled(self) -> Any: ...


class Encoder(Protocol):
    """A model that encodes images and captions into one space."""

    def encode_images(self, images: Sequence[Image.Image]) -> Encoded: ...
    def encode_texts(self, texts: Sequence[str]) -> Encoded: ...


def filter_by_scores(path: Path, table: PairTable) -> SimilarityFilter:
    """From a .npy file of scores (captions, images)."""
    scores = load_array(path, "save it with np.save(path, scores.astype('float32'))", mapped=True)
    return SimilarityFilter.from_matrix(scores, table.image_codes)


def filter_by_encoder(encoder: Encoder, table: PairTable) -> SimilarityFilter:
    """By the cosines of a model's embeddings."""
    images = [
        encoder.encode_images([load_pair_image(table, row) for row in part]).pooled.cpu().numpy()
        for part in _parts(table.first_rows.tolist(), "images")
    ]
    texts, caption_of = np.unique(np.array(table.captions, dtype=object), return_inverse=True)
    captions = [
        encoder.encode_texts(part).pooled.cpu().numpy() for part in _parts(texts.tolist(), "captions")
    ]
    return SimilarityFilter.from_embeddings(
        np.concatenate(images), np.concatenate(captions)[caption_of], table.image_codes
    )


def _parts(items: list[Any], name: str) -> Iterator[list[Any]]:
    """Short lists of items, with a progress bar on stderr."""
    starts = range(0, len(items), ENCODED_AT_ONCE)
    for start in watched(starts, len(starts), f"encoding {name}", unit="batch"):
        yield items[start : start + ENCODED_AT_ONCE]
