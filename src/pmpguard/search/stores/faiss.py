"""Approximate search with FAISS: a graph of neighbours (HNSW) or cells around centres (IVF)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pmpguard.errors import DataError, require
from pmpguard.search.query import NO_FILTERS, Filters
from pmpguard.search.stores import (
    NO_ROW,
    Floats,
    IndexedItems,
    KnownRows,
    Mask,
    Neighbours,
    as_neighbours,
    cosines,
)

NEIGHBOURS, BUILD_EFFORT, SEARCH_EFFORT = 32, 200, 128  # of HNSW: M, efConstruction, efSearch
VECTORS_PER_CELL = 100  # of IVF, at least
SHARE_OF_CELLS = 0.15  # of IVF, looked at for a query
FEW = 0.05  # share of allowed rows below which they are compared one by one: graphs lose their way there


class FaissIndex:
    """Cosines as inner products of unit vectors; removed rows stay inside and are passed over."""

    filters_itself = False

    def __init__(self, dim: int, kind: Literal["hnsw", "ivf"], name: str = "images") -> None:
        self.faiss: Any = require("faiss", "ann")
        self.known = KnownRows(dim)
        self.kind = kind
        self.name = name
        self.index: Any = None

    @classmethod
    def load(
        cls, kind: Literal["hnsw", "ivf"], folder: Path, items: IndexedItems, name: str = "images"
    ) -> FaissIndex:
        loaded = cls(items.dim, kind, name)
        loaded.known = KnownRows(items.dim, items.ids, items.removed)
        path = folder / loaded.file_name
        if len(items.ids):
            try:
                loaded.index = loaded.faiss.read_index(str(path))
            except RuntimeError as error:
                raise DataError(f"{path}: missing or damaged", fix="build the index again") from error
            if loaded.index.ntotal != len(items.ids) or loaded.index.d != items.dim:
                raise DataError(f"{path}: holds {loaded.index.ntotal} vectors for {len(items.ids)} items")
        return loaded

    @property
    def file_name(self) -> str:
        return f"{self.name}.{self.kind}.faiss"

    def add(self, ids: Sequence[str], vectors: Floats, metadata: pa.Table | None = None) -> None:
        self.known.add(ids, vectors)
        if not len(ids):
            return
        vectors = np.ascontiguousarray(vectors, np.float32)
        if self.index is None:
            self.index = self._new(vectors)
        self.index.add(vectors)

    def _new(self, vectors: Floats) -> Any:
        """An empty index; the cells of IVF are laid out for the first vectors that come."""
        dim, metric = vectors.shape[1], self.faiss.METRIC_INNER_PRODUCT
        if self.kind == "hnsw":
            index = self.faiss.IndexHNSWFlat(dim, NEIGHBOURS, metric)
            index.hnsw.efConstruction = BUILD_EFFORT
            return index
        cells = max(1, min(round(4 * len(vectors) ** 0.5), len(vectors) // VECTORS_PER_CELL))
        index = self.faiss.IndexIVFFlat(self.faiss.IndexFlatIP(dim), dim, cells, metric)
        index.train(vectors)
        index.set_direct_map_type(self.faiss.DirectMap.Array)  # so that single vectors can be fetched
        return index

    def remove(self, rows: npt.ArrayLike) -> None:
        self.known.remove(rows)

    def search(
        self, queries: Floats, k: int, allowed: Mask | None = None, filters: Filters = NO_FILTERS
    ) -> Neighbours:
        searchable = self.known.searchable(queries, k, allowed)
        count = int(searchable.sum())
        if not count:
            return as_neighbours([(np.zeros(0, np.int64), np.zeros(0, np.float32))] * len(queries), k)
        queries = np.ascontiguousarray(queries, np.float32)
        if count < FEW * len(searchable) or count <= k:
            rows = np.flatnonzero(searchable)
            scores = cosines(queries, self.index.reconstruct_batch(rows))  # (Q, R)
            return as_neighbours([self.known.sorted_best(rows, some, k) for some in scores], k)
        scores, rows = self.index.search(queries, k, params=self._parameters(searchable, k))
        found = [
            (some_rows[some_rows != NO_ROW], some[some_rows != NO_ROW])
            for some_rows, some in zip(rows, scores, strict=True)
        ]
        return as_neighbours([self.known.sorted_best(*some, k) for some in found], k)

    def _parameters(self, searchable: Mask, k: int) -> Any:
        selector = (
            None
            if searchable.all()
            else self.faiss.IDSelectorBitmap(np.packbits(searchable, bitorder="little"))
        )
        if self.kind == "hnsw":
            effort = max(SEARCH_EFFORT, 2 * k)
            return self.faiss.SearchParametersHNSW(sel=selector, efSearch=effort)
        cells = self.index.nlist
        return self.faiss.SearchParametersIVF(
            sel=selector, nprobe=min(cells, max(8, round(cells * SHARE_OF_CELLS)))
        )

    def __len__(self) -> int:
        return len(self.known)

    def save(self, folder: Path) -> None:
        if self.index is not None:
            self.faiss.write_index(self.index, str(folder / self.file_name))
