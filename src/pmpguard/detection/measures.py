"""Measures: evidence that can be asked of any pair of a text and an image, not of labelled ones alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pmpguard.detection.evidence.similarity import Measure
from pmpguard.detection.null_pairs import Array, Evidence, NullPairs

QUERIES_AT_ONCE = 65_536


@dataclass(frozen=True)
class PairEvidence:
    """Evidence of the labelled and the null pairs, and the same measured on any other pair."""

    evidence: dict[str, Evidence]
    measures: dict[str, Measure]

    def measure(self, texts: Tensor, images: Tensor, rows: Tensor) -> Array:
        """(P, K) of any pairs, as `Verdicts.judge` takes it; `rows` (P,) are those whose place they take."""
        values = measured(self.measures, texts, images, rows)
        null = np.stack([self.evidence[name].arrays()[1] for name in self.measures], axis=1)
        scale = null.std(0)
        scaled: Array = (values - null.mean(0)) / np.where(scale > 1e-12, scale, 1.0)
        return scaled


def measured_evidence(
    measures: Mapping[str, Measure], text_of: Tensor, image_of: Tensor, null: NullPairs
) -> PairEvidence:
    """What `measures` say of the labelled and the null pairs."""
    rows = torch.arange(len(text_of), device=text_of.device)
    evidence = {
        name: Evidence(
            asked(measure, text_of, image_of, rows), asked(measure, null.texts, null.images, null.rows)
        )
        for name, measure in measures.items()
    }
    return PairEvidence(evidence, dict(measures))


def measured(measures: Mapping[str, Measure], texts: Tensor, images: Tensor, rows: Tensor) -> Array:
    """(P, K): what each of the measures says of any pairs."""
    if not measures:
        return np.empty((len(texts), 0))
    columns = [asked(measure, texts, images, rows).double().cpu().numpy() for measure in measures.values()]
    return np.stack(columns, axis=1)


def asked(measure: Measure, texts: Tensor, images: Tensor, rows: Tensor) -> Tensor:
    """(P,) float32, some pairs at a time."""
    some = zip(*(torch.split(each, QUERIES_AT_ONCE) for each in (texts, images, rows)), strict=True)
    parts = [measure(*each).float() for each in some]
    return torch.cat(parts) if parts else torch.zeros(0, device=texts.device)


def by_fold(fold_of: Tensor, measures: Sequence[Measure]) -> Measure:
    """Of every pair what the measure of its image's fold says; fold_of (I,)."""

    def measure(texts: Tensor, images: Tensor, rows: Tensor) -> Tensor:
        folds = fold_of[images]
        values = torch.zeros(len(texts), dtype=torch.float32, device=texts.device)
        for fold, each in enumerate(measures):
            places = (folds == fold).nonzero()[:, 0]
            if len(places):
                values[places] = each(texts[places], images[places], rows[places]).float()
        return values

    return measure


def ask_fold(
    found: dict[str, Tensor],
    measures: Mapping[str, Measure],
    fold_of: Tensor,
    fold: int,
    texts: Tensor,
    images: Tensor,
    rows: Tensor,
) -> None:
    """Write what the fold's measures say of the pairs of its images into (P,) by name; fold_of (I,)."""
    here = (fold_of[images] == fold).nonzero()[:, 0]
    for name, measure in measures.items():
        values = found.setdefault(name, torch.zeros(len(texts), dtype=torch.float32, device=texts.device))
        values[here] = asked(measure, texts[here], images[here], rows[here])


@dataclass
class FoldMeasures:
    """The measures of one fold, built again when first asked for where they are not kept."""

    build: Callable[[], dict[str, Measure]]
    measures: dict[str, Measure] | None = None

    def of(self, name: str) -> Measure:
        def measure(texts: Tensor, images: Tensor, rows: Tensor) -> Tensor:
            if self.measures is None:
                self.measures = self.build()
            return self.measures[name](texts, images, rows)

        return measure
