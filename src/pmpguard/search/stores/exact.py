"""Every vector compared with every query: one matrix product, in chunks. The default.

Nothing is approximated, nothing has to be built, and up to some hundred thousand items it is also fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pmpguard.search.query import NO_FILTERS, Filters
from pmpguard.search.stores import (
    Floats,
    IndexedItems,
    KnownRows,
    Mask,
    Neighbours,
    Rows,
    as_neighbours,
    cosines,
)

SCORES_AT_ONCE = 1 << 24  # 64 MB of float32
FEW = 0.2  # share of allowed rows below which they are gathered first


class ExactIndex:
    """Vectors in memory; the one index whose answers do not depend on how it came to hold them."""

    filters_itself = False

    def __init__(self, dim: int, scores_at_once: int = SCORES_AT_ONCE) -> None:
        self.known = KnownRows(dim)
        self.vectors: Floats = np.zeros((0, dim), np.float32)  # (N, d)
        self.scores_at_once = scores_at_once

    @classmethod
    def load(cls, items: IndexedItems) -> ExactIndex:
        index = cls(items.dim)
        index.known = KnownRows(items.dim, items.ids, items.removed)
        index.vectors = items.vectors()
        return index

    def add(self, ids: Sequence[str], vectors: Floats, metadata: pa.Table | None = None) -> None:
        self.known.add(ids, vectors)
        self.vectors = np.concatenate([self.vectors, vectors.astype(np.float32)])

    def remove(self, rows: npt.ArrayLike) -> None:
        self.known.remove(rows)

    def search(
        self, queries: Floats, k: int, allowed: Mask | None = None, filters: Filters = NO_FILTERS
    ) -> Neighbours:
        searchable = self.known.searchable(queries, k, allowed)
        step = max(1, self.scores_at_once // max(1, len(queries)))
        best: list[list[tuple[Rows, Floats]]] = [[] for _ in queries]
        for start in range(0, len(self.vectors), step):
            rows = start + np.flatnonzero(searchable[start : start + step])
            scores = self._scores(queries, rows, slice(start, start + step))  # (Q, R)
            for query, row_scores in enumerate(scores):
                best[query].append(self.known.sorted_best(rows, row_scores, k))
        return as_neighbours([self._merged(parts, k) for parts in best], k)

    def _scores(self, queries: Floats, rows: Rows, chunk: slice) -> Floats:
        """(Q, R) cosines with some rows of a chunk; many are computed with the rest, few are gathered."""
        vectors = self.vectors[chunk]
        if len(rows) < FEW * len(vectors):
            return cosines(queries, self.vectors[rows])
        scores = cosines(queries, vectors)  # (Q, chunk)
        return scores if len(rows) == len(vectors) else scores[:, rows - chunk.start]

    def _merged(self, parts: Sequence[tuple[Rows, Floats]], k: int) -> tuple[Rows, Floats]:
        if len(parts) == 1:
            return parts[0]
        rows = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in parts)])
        scores = np.concatenate([np.zeros(0, np.float32), *(scores for _, scores in parts)])
        return self.known.sorted_best(rows, scores, k)

    def __len__(self) -> int:
        return len(self.known)

    def save(self, folder: Path) -> None:
        """Nothing: ids, vectors and removals are all there is."""

    def fit(self, queries: Floats) -> None:
        """Nothing: everything is compared."""

    def settle(self) -> None:
        """Nothing: all is in memory."""
