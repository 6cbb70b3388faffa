"""Approximate search with FAISS: a graph of neighbours (HNSW) or cells around centres (IVF).

The work of a query grows with the root of the number of rows (IVF) or slower (HNSW). How far to look is
measured when the index is made: until `RECALL` of the ten nearest are found, for queries like those it will
answer. From there a query looks twice as far again and again until its first hits stay the same. With a
filter it counts only rows that pass; where few pass, they are compared one by one.

IVF holds half floats: its scores are those of vectors rounded so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pmpguard.errors import DataError, require
from pmpguard.files import full_disk_named, read_json, write_json
from pmpguard.search.query import NO_FILTERS, Filters
from pmpguard.search.stores import (
    NO_ROW,
    Floats,
    IndexedItems,
    KnownRows,
    Mask,
    Neighbours,
    Rows,
    as_neighbours,
    cosines,
)

NEIGHBOURS, BUILD_EFFORT = 32, 200  # of HNSW: M, efConstruction
VECTORS_PER_CELL = 100  # of IVF, at least
TRAINED_PER_CELL, TRAINING_ROUNDS = 40, 8  # of k-means
RECALL, HITS = 0.99, 10  # of the ten nearest, to be reached
LEAST_CELLS = 8  # looked at, even where images need fewer: a text lies further from what it tells of
MAX_QUERIES = 100  # that it is measured with
GROWTH = 1.5  # times the rows it was measured with, before it is measured again
USUAL_GRAPH, USUAL_CELLS = 128, 0.15  # efSearch, share of cells: of an index that was never measured
MAX_COMPARED = 20_000  # rows that pass, up to which they are compared one by one
ROWS_AT_ONCE = 8192


class FaissIndex:
    """Cosines as inner products of unit vectors; removed rows stay inside and are passed over."""

    filters_itself = False

    def __init__(self, dim: int, kind: Literal["hnsw", "ivf"], name: str = "images") -> None:
        self.faiss: Any = require("faiss", "ann")
        self.known = KnownRows(dim)
        self.kind = kind
        self.name = name
        self.index: Any = None
        self.max_compared = MAX_COMPARED
        self.measured: dict[str, float] = {}  # effort, its recall, the rows and queries of the measurement

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
            if path.with_suffix(".json").is_file():
                loaded.measured = read_json(path.with_suffix(".json"))
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
        self.__dict__.pop("cell_of", None)

    def _new(self, vectors: Floats) -> Any:
        """An empty index; the cells of IVF are laid out for the first vectors that come."""
        dim, metric = vectors.shape[1], self.faiss.METRIC_INNER_PRODUCT
        if self.kind == "hnsw":
            index = self.faiss.IndexHNSWFlat(dim, NEIGHBOURS, metric)
            index.hnsw.efConstruction = BUILD_EFFORT
            return index
        cells = max(1, min(round(4 * len(vectors) ** 0.5), len(vectors) // VECTORS_PER_CELL))
        halves = self.faiss.ScalarQuantizer.QT_fp16
        index = self.faiss.IndexIVFScalarQuantizer(
            self.faiss.IndexFlatIP(dim), dim, cells, halves, metric, False
        )
        index.cp.spherical = True
        index.cp.niter, index.cp.max_points_per_centroid = TRAINING_ROUNDS, TRAINED_PER_CELL
        index.train(vectors)
        index.set_direct_map_type(self.faiss.DirectMap.Array)  # so that single vectors can be fetched
        return index

    def fit(self, queries: Floats) -> None:
        """Measure how far to look for `RECALL`, unless that was done for nearly as many rows."""
        rows = len(self.known.live)
        if not len(queries) or rows < GROWTH * self.measured.get("rows", 1):
            return
        queries = np.ascontiguousarray(queries[:MAX_QUERIES], np.float32)
        truth = self._compared(queries, np.arange(rows), HITS)
        effort, recall = min(LEAST_CELLS, self.most) if self.kind == "ivf" else HITS, 0.0
        while True:
            found = self._searched(queries, HITS, np.ones(rows, bool), effort)
            pairs = zip(found, truth, strict=True)
            recall = float(np.mean([len(np.intersect1d(a, b)) / max(1, len(b)) for (a, _), (b, _) in pairs]))
            if recall >= RECALL or effort >= self.most:
                break
            effort = min(self.most, math.ceil(1.3 * effort))
        self.measured = {"effort": effort, "recall_at_10": recall, "rows": rows, "queries": len(queries)}

    def remove(self, rows: npt.ArrayLike) -> None:
        self.known.remove(rows)

    @property
    def effort(self) -> float:
        """Cells looked at, or candidates kept while walking the graph."""
        usual = USUAL_GRAPH if self.kind == "hnsw" else max(LEAST_CELLS, USUAL_CELLS * self.index.nlist)
        return self.measured.get("effort", usual)

    @property
    def most(self) -> int:
        """The effort that looks at everything."""
        return int(self.index.nlist) if self.kind == "ivf" else len(self.known.live)

    def search(
        self, queries: Floats, k: int, allowed: Mask | None = None, filters: Filters = NO_FILTERS
    ) -> Neighbours:
        searchable = self.known.searchable(queries, k, allowed)
        queries, count = np.ascontiguousarray(queries, np.float32), int(searchable.sum())
        is_few = count < len(searchable) and count <= self.max_compared
        if self.kind == "hnsw" and (count <= k or is_few):
            return as_neighbours(self._compared(queries, np.flatnonzero(searchable), k), k)
        if not count:
            found = self._compared(queries, np.zeros(0, np.int64), k)
        elif count <= k or is_few:  # cells are quick to go through, and slow to fetch vectors from
            found = self._searched(queries, k, searchable, self.most)
        else:
            found = self._settled(queries, k, searchable)
        return as_neighbours([self.known.sorted_best(*some, k) for some in found], k)

    def _settled(self, queries: Floats, k: int, searchable: Mask) -> list[tuple[Rows, Floats]]:
        """Look twice as far until the first hits stay the same: a query may be unlike those measured."""
        found = self._searched(queries, k, searchable, self.effort)
        left, effort = list(range(len(queries))), self.effort
        while left and effort < self.most:
            effort *= 2
            again = dict(zip(left, self._searched(queries[left], k, searchable, effort), strict=True))
            left = [query for query in left if set(found[query][0][:HITS]) != set(again[query][0][:HITS])]
            for query, better in again.items():
                found[query] = better
        return found

    def _compared(self, queries: Floats, rows: Rows, k: int) -> list[tuple[Rows, Floats]]:
        """The k best of some rows for every query, compared one by one."""
        best = [(np.zeros(0, np.int64), np.zeros(0, np.float32))] * len(queries)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            scores = cosines(queries, self.index.reconstruct_batch(some))  # (Q, R)
            for query, (old, high) in enumerate(best):
                joined = np.concatenate([old, some]), np.concatenate([high, scores[query]])
                best[query] = self.known.sorted_best(*joined, k)
        return best

    def _searched(
        self, queries: Floats, k: int, searchable: Mask, effort: float
    ) -> list[tuple[Rows, Floats]]:
        """What FAISS finds for every query: rows that pass and their scores."""
        share = searchable.mean()
        every = np.packbits(searchable, bitorder="little")  # FAISS reads it where it lies
        selector = None if searchable.all() else self.faiss.IDSelectorBitmap(every)
        parameters: Any
        if self.kind == "hnsw":
            ef = math.ceil(max(effort, 2 * k) / share)
            parameters = self.faiss.SearchParametersHNSW(sel=selector, efSearch=ef)
        else:
            probes = self._probes(queries, searchable, effort * len(searchable) / self.index.nlist)
            parameters = self.faiss.SearchParametersIVF(sel=selector, nprobe=probes)
        scores, rows = self.index.search(queries, k, params=parameters)
        return [
            (some_rows[some_rows != NO_ROW], some[some_rows != NO_ROW])
            for some_rows, some in zip(rows, scores, strict=True)
        ]

    def _probes(self, queries: Floats, searchable: Mask, wanted: float) -> int:
        """Cells to look at until so many rows that may be found have been seen, for all of the queries."""
        passing = np.bincount(self.cell_of[searchable], minlength=self.index.nlist)
        _, cells = self.index.quantizer.search(queries, self.index.nlist)  # (Q, cells), nearest first
        seen = passing[cells].cumsum(1)
        cells_needed = int((seen < wanted).sum(1).max()) + 1
        return min(int(self.index.nlist), cells_needed)

    @cached_property
    def cell_of(self) -> npt.NDArray[np.int64]:
        """(N,) of IVF."""
        places: npt.NDArray[np.int64] = self.faiss.vector_to_array(self.index.direct_map.array)
        return places >> 32

    def __len__(self) -> int:
        return len(self.known)

    def save(self, folder: Path) -> None:
        if self.index is not None:
            path = folder / self.file_name
            with full_disk_named(path), path.open("wb") as stream:
                # FAISS's own files lose their end on a full disk and say nothing
                self.faiss.write_index(self.index, self.faiss.PyCallbackIOWriter(stream.write))
            if self.measured:
                write_json(path.with_suffix(".json"), self.measured)

    def settle(self) -> None:
        """Nothing: the file is all there is."""
