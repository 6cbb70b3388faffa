"""Where a judge from outside has its vectors from: a folder of embeddings, a model, or a folder of one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.data.formats.embeddings import (
    ClipEmbeddings,
    is_clip_folder,
    match_names,
    read_clip_embeddings,
)
from pmpguard.data.images.framing import Framing
from pmpguard.data.images.sources import ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.detection.evidence.similarity import Measure, similarity_measure
from pmpguard.detection.vectors import unit_rows
from pmpguard.errors import DataError
from pmpguard.models.retriever import Retriever
from pmpguard.training.encode import Split

Judge = ClipEmbeddings | Retriever


@dataclass(frozen=True)
class JudgeVectors:
    """What another model makes of a table, in one space."""

    texts: Tensor  # (C, d) unit, of each distinct caption by code
    images: Tensor  # (I, d) unit, of each distinct image by code

    def measure(self) -> Measure:
        """The standardised cosine of any pair."""
        return similarity_measure(self.texts, self.images)

    @property
    def fingerprint(self) -> str:
        parts = [np.ascontiguousarray(part.cpu().numpy()) for part in (self.texts, self.images)]
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def read_judge(folder: Path) -> Judge:
    """A folder of embeddings as clip-retrieval and `pmpguard embed` write them, or a model directory."""
    return read_clip_embeddings(folder) if is_clip_folder(folder) else Retriever.load(folder)


def judge_vectors(
    judge: Judge, table: PairTable, open_images: Callable[[int, Framing], ImageSource], device: torch.device
) -> JudgeVectors:
    """The judge's vectors of a table; `open_images` opens its images as a model reads them."""
    if isinstance(judge, ClipEmbeddings):
        return stored_vectors(judge, table, device)
    judge = judge.to(device).eval()
    opened = open_images(judge.config.input_size, judge.framing)
    captions, images = Split.open(table, opened, judge).encode(judge)
    return JudgeVectors(
        unit_rows(captions.pooled, "judge's texts"), unit_rows(images.pooled, "judge's images")
    )


def stored_vectors(judge: ClipEmbeddings, table: PairTable, device: torch.device) -> JudgeVectors:
    """Vectors of captions by their text and of images by their name, whatever the folder pairs."""
    code_of = dict(zip(judge.table.captions, judge.table.caption_codes.tolist(), strict=True))
    firsts = np.unique(table.caption_codes, return_index=True)[1]
    captions = [table.captions[row] for row in firsts]
    of_captions = np.array([code_of.get(caption, -1) for caption in captions], np.int64)
    names, known = (part.column("image") for part in (table, judge.table))
    images = [names[row] for row in table.first_rows]
    of_images = match_names(images, [known[row] for row in judge.table.first_rows])
    texts = _found(judge.captions, of_captions, captions, "captions")
    pixels = _found(judge.images, of_images, images, "images")
    if texts.shape[1] != pixels.shape[1]:
        raise DataError(
            f"judge: texts have {texts.shape[1]} dimensions, images {pixels.shape[1]}",
            fix="a judge needs texts and images in one space, as a CLIP has them",
        )
    return JudgeVectors(
        unit_rows(texts, "judge's texts", device),
        unit_rows(pixels, "judge's images", device),
    )


def _found(
    vectors: npt.NDArray[np.floating[Any]], rows: npt.NDArray[np.int64], names: Sequence[str], what: str
) -> npt.NDArray[np.floating[Any]]:
    """(K, d); a pair without a vector could not be judged like the others."""
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise DataError(
            f"judge: {len(missing):,} of {len(rows):,} {what} have no vector, the first is "
            f"{names[missing[0]]!r}",
            fix="embed the whole dataset with the judge's model (pmpguard embed), or give the model",
        )
    return vectors[rows]
