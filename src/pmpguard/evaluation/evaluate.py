"""Recall of a retriever on one split of a dataset, exhaustive or by shortlist and re-ranking."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pmpguard.data.images.sources import ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.evaluation.recall import RetrievalRecall, retrieval_recall
from pmpguard.models.config import Ranking
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.posix import peak_resident_bytes
from pmpguard.training.encode import BATCH, Split

SMALL_GALLERY = 300  # images; those of published test splits are 210 (UCM) to 1,093 (RSICD)


@dataclass(frozen=True)
class Gallery:
    """A split to retrieve in: its pairs and its images."""

    table: PairTable
    images: ImageSource

    def __post_init__(self) -> None:
        if len(self.images) < 2:
            raise DataError(
                f"{self.table.name}: retrieval needs at least two images", fix="use a larger split"
            )


def encode_gallery(
    retriever: Retriever, gallery: Gallery, batch: int = BATCH, precision: str = "fp32"
) -> tuple[Encoded, Encoded]:
    """Captions (one per pair, in table order) and images (in order of image codes), float32."""
    split = Split.open(gallery.table, gallery.images, retriever, batch=batch, precision=precision)
    texts, images = split.encode(retriever)
    return texts[split.caption_of], images


def evaluate_scores(scores: Tensor, table: PairTable, bootstrap: int = 0) -> RetrievalRecall:
    """Recalls of a (captions, images) score matrix: one row per pair of the table, one column per image."""
    return retrieval_recall(
        scores.float(),
        table.image_codes,
        caption_strings=table.caption_codes,
        bootstrap=bootstrap,
    )


def shortlist_scores(
    texts: Encoded, images: Encoded, shortlist: int, score: Callable[[Encoded, Encoded], Tensor]
) -> Tensor:
    """(T, I): the fine score where either side's pooled shortlist holds the pair, below all of it elsewhere.

    A pair is re-ranked when the image is among the caption's `shortlist` nearest images or the caption
    among the image's nearest captions; the rest keep their pooled order underneath.
    """
    pooled = texts.pooled @ images.pooled.T  # (T, I)
    if shortlist >= max(pooled.shape):
        return score(texts, images)
    chosen = torch.zeros_like(pooled, dtype=torch.bool)
    chosen.scatter_(1, pooled.topk(min(shortlist, pooled.shape[1]), dim=1).indices, True)
    chosen.scatter_(0, pooled.topk(min(shortlist, pooled.shape[0]), dim=0).indices, True)
    fine = torch.empty_like(pooled)
    for row in range(len(texts)):  # each caption against its own shortlist
        columns = chosen[row].nonzero()[:, 0]
        fine[row, columns] = score(texts[row : row + 1], images[columns])[0]
    lowest = fine[chosen].min() - 4.0  # pooled cosines span at most 2
    return torch.where(chosen, fine, lowest + pooled)


@dataclass(frozen=True)
class EvaluationReport:
    """Recalls by every ranking the model offers, with what they cost."""

    dataset: str
    split: str
    images: int
    captions: int
    ranking: str  # the model's own
    rankings: dict[str, RetrievalRecall]
    seconds: float
    peak_memory_gb: float | None
    shortlist: int | None = None

    @property
    def recall(self) -> RetrievalRecall:
        return self.rankings[self.ranking]

    def as_dict(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset, "split": self.split, "images": self.images, "captions": self.captions,
            "ranking": self.ranking, "shortlist": self.shortlist, "seconds": round(self.seconds, 3),
            "peak_memory_gb": None if self.peak_memory_gb is None else round(self.peak_memory_gb, 3),
            "rankings": {name: recall.as_dict() for name, recall in self.rankings.items()},
            "intervals": {name: list(bounds) for name, bounds in self.recall.intervals.items()},
        }  # fmt: skip

    def as_text(self) -> str:
        scored = "all pairs" if self.shortlist is None else f"the {self.shortlist} nearest by pooled vectors"
        peak = "memory unknown" if self.peak_memory_gb is None else f"{self.peak_memory_gb:.1f} GB peak"
        heads = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "mR")
        width = max(map(len, ("ranking", *self.rankings)))
        lines = [
            f"{self.dataset} {self.split}: {self.images} images, {self.captions} captions, scored {scored}, "
            f"{self.seconds:.1f} s, {peak}",
            f"{'ranking':<{width}} {' '.join(f'{head:>8}' for head in heads)}",
        ]
        for name, recall in self.rankings.items():
            values = (*recall.i2t, *recall.t2i, recall.mr)
            mark = " *" if name == self.ranking else ""
            lines.append(f"{name:<{width}} {' '.join(f'{value:8.2f}' for value in values)}{mark}")
        lines.append("* the model's own ranking")
        if "mr" in self.recall.intervals:
            low, high = self.recall.intervals["mr"]
            lines[-1] += f"; 95 % of resampled images give an mR from {low:.2f} to {high:.2f}"
        if self.recall.string_aware is not None:
            lines.append(f"with equal captions counted as hits its mR is {self.recall.string_aware.mr:.2f}")
        lines.append("R@K: % of queries with a hit among the first K; images ask in i2t, captions in t2i")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes())])

    def notes(self) -> list[str]:
        """What a reader should know before comparing the recalls."""
        return [small_gallery_note(self.images)] if self.images < SMALL_GALLERY else []


def small_gallery_note(images: int) -> str:
    """What recalls among few images do not tell."""
    return (
        f"among {images} images recalls are high by themselves; do not compare them with those of larger "
        "galleries"
    )


def evaluate_retriever(
    retriever: Retriever,
    gallery: Gallery,
    *,
    split: str,
    rankings: Sequence[Ranking] | None = None,
    shortlist: int | None = None,
    bootstrap: int = 1000,
    batch: int = BATCH,
    device: torch.device | None = None,
    precision: str = "fp32",
) -> EvaluationReport:
    """Encode a gallery once and measure every wanted ranking (by default the model's own)."""
    device = device or next(retriever.parameters()).device
    own = retriever.config.ranking
    wanted = list(dict.fromkeys([own, *(rankings or ())]))
    if shortlist is not None and shortlist < 1:
        raise ConfigError(f"shortlist: {shortlist} is not positive")
    started = time.perf_counter()
    retriever.eval()
    texts, images = encode_gallery(retriever.to(device), gallery, batch, precision)
    measured: dict[str, RetrievalRecall] = {}
    with torch.no_grad():
        for ranking in wanted:

            def score(captions: Encoded, pixels: Encoded, ranking: Ranking = ranking) -> Tensor:
                return retriever.score(captions, pixels, ranking=ranking)

            matrix = (
                score(texts, images)
                if shortlist is None
                else shortlist_scores(texts, images, shortlist, score)
            )
            measured[ranking] = evaluate_scores(matrix, gallery.table, bootstrap if ranking == own else 0)
    return EvaluationReport(
        gallery.table.name, split, len(images), len(texts), own, measured,
        time.perf_counter() - started, peak_memory_gb(device), shortlist,
    )  # fmt: skip


def peak_memory_gb(device: torch.device) -> float | None:
    """Peak memory of this process so far: the device's on CUDA, else the resident set's, None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    peak = peak_resident_bytes()
    return None if peak is None else peak / 1e9
