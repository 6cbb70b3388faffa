"""The second stage: the model's own score on the stored fragments of a shortlist.

A text and an image are compared by the model's ranking score (pooled cosine plus S, unless it was
configured otherwise). Two images, or two texts, are compared by the cosine of their pooled vectors: the
model has learned no finer score between things of one kind. A query of text and image scores w times the
one plus (1 - w) times the other, w being its text weight; its shortlist comes from the same weighted sum of
the pooled vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.projection import unit
from pmpguard.models.retriever import Retriever
from pmpguard.search.index.stored_vectors import StoredVectors
from pmpguard.search.query import Kind
from pmpguard.search.stores import DECIMALS

ITEMS_AT_ONCE = 512


@dataclass(frozen=True)
class EncodedQuery:
    """A query as vectors: a text, an image, or both (one item each)."""

    text: Encoded | None
    image: Encoded | None
    text_weight: float
    kind: Kind

    @property
    def weights(self) -> tuple[float, float]:
        """Of text and image, adding up to 1."""
        if self.text is None or self.image is None:
            return float(self.text is not None), float(self.image is not None)
        return self.text_weight, 1 - self.text_weight

    @property
    def vector(self) -> npt.NDArray[np.float32]:
        """(d,) what the first stage looks for."""
        parts = [
            weight * encoded.pooled[0].cpu()
            for weight, encoded in zip(self.weights, (self.text, self.image), strict=True)
            if encoded is not None
        ]
        vector: npt.NDArray[np.float32] = unit(torch.stack(parts).sum(0)).numpy()
        return vector

    def is_fine(self, model: Retriever) -> bool:
        """Whether the second stage adds anything to the cosine of pooled vectors."""
        is_mixed = self.text is not None and self.image is not None
        return is_mixed or (self.is_one_pair and model.config.ranking != "pooled")

    @property
    def is_one_pair(self) -> bool:
        """Whether its scores are those of a text with an image, which is what calibration knows."""
        other, same = (self.text, self.image) if self.kind == "image" else (self.image, self.text)
        return other is not None and same is None


@torch.no_grad()
def fine_scores(
    model: Retriever, query: EncodedQuery, vectors: StoredVectors, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """(R,) final scores of some rows; their fragments are read some at a time."""
    parts = [np.zeros(0)]
    for start in range(0, len(rows), ITEMS_AT_ONCE):
        items = vectors.take(rows[start : start + ITEMS_AT_ONCE]).to(model.device)
        parts.append(_weighted(model, query, items).double().cpu().numpy())
    return np.concatenate(parts).round(DECIMALS)


def _weighted(model: Retriever, query: EncodedQuery, items: Encoded) -> Tensor:
    scores = items.pooled.new_zeros(len(items))  # (I,)
    for weight, side, part in zip(
        query.weights, ("caption", "image"), (query.text, query.image), strict=True
    ):
        if part is None:
            continue
        if side == query.kind:
            found = items.pooled @ part.pooled[0]  # (I,)
        elif side == "caption":
            found = model.score(part, items)[0]  # (I,)
        else:
            found = model.score(items, part)[:, 0]  # (I,)
        scores += weight * found
    return scores
