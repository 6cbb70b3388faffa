"""Nearest unit vectors by cosine, behind one protocol: exact, FAISS, PostgreSQL, Qdrant.

Rows are numbered in the order of adding and never renumbered; a removed row keeps its number and is never
found again. Among equal scores the smaller id comes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from pmpguard.errors import ConfigError, DataError
from pmpguard.search.query import NO_FILTERS, Filters

Backend = Literal["exact", "hnsw", "ivf", "postgres", "qdrant"]
SERVERS: tuple[Backend, ...] = ("postgres", "qdrant")  # which hold removals too
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NO_ROW = -1
DECIMALS = 6  # of a score; what differs by less counts as equal
FULL_TURN = 360.0  # degrees of longitude


@dataclass(frozen=True)
class Neighbours:
    """The k nearest rows of Q queries, best first; -1 and -inf where there are fewer."""

    rows: Rows  # (Q, k)
    scores: Floats  # (Q, k)

    def of(self, query: int) -> tuple[Rows, Floats]:
        """Rows and scores of one query, without the empty places."""
        found = self.rows[query] != NO_ROW
        return self.rows[query][found], self.scores[query][found]


@dataclass(frozen=True)
class IndexedItems:
    """What an index is loaded with: all rows ever added, and which of them were removed."""

    ids: Sequence[str]  # N
    removed: Mask  # (N,)
    dim: int
    vectors: Callable[[], Floats]  # reads them, (N, d)
    metadata: pa.Table | None = None  # N rows
    model: str = ""  # fingerprint of the model that made the vectors


class VectorIndex(Protocol):
    """Vectors to be searched. An index whose `filters_itself` is true applies `filters` where it searches."""

    filters_itself: bool

    def add(self, ids: Sequence[str], vectors: Floats, metadata: pa.Table | None = None) -> None:
        """Append rows; their numbers follow the last one's."""
        ...

    def remove(self, rows: npt.ArrayLike) -> None:
        """Never find these rows again."""
        ...

    def search(
        self, queries: Floats, k: int, allowed: Mask | None = None, filters: Filters = NO_FILTERS
    ) -> Neighbours:
        """The k best rows of every query (Q, d), of those `allowed` (N,) and not removed."""
        ...

    def __len__(self) -> int:
        """How many rows can be found."""
        ...

    def save(self, folder: Path) -> None:
        """Write into an existing folder what `load_index` cannot make again from the vectors in no time."""
        ...

    def fit(self, queries: Floats) -> None:
        """Learn from some queries (Q, d) how far to look; for those that look at everything, nothing."""
        ...

    def settle(self) -> None:
        """What was saved last is in use now: a server keeps it even if this process dies."""
        ...


class KnownRows:
    """Ids and removals of an index's rows, and the checks that all indexes share."""

    def __init__(self, dim: int, ids: Sequence[str] = (), removed: Mask | None = None) -> None:
        self.dim = dim
        self.ids: npt.NDArray[np.object_] = np.array(list(ids), dtype=object)
        self.live: Mask = np.ones(len(self.ids), bool) if removed is None else ~removed

    def add(self, ids: Sequence[str], vectors: Floats) -> None:
        if vectors.shape != (len(ids), self.dim):
            raise DataError(f"{len(ids)} ids with vectors of shape {vectors.shape}, dimension {self.dim}")
        bad = np.flatnonzero(~np.isfinite(vectors.sum(1)))  # a sum is finite where every number is
        if len(bad):
            raise DataError(f"vector of {ids[int(bad[0])]!r} is not finite", fix="embed it again")
        self.ids = np.concatenate([self.ids, np.array(list(ids), dtype=object)])
        self.live = np.concatenate([self.live, np.ones(len(ids), bool)])

    def remove(self, rows: npt.ArrayLike) -> None:
        self.live[np.asarray(rows, np.int64)] = False

    def __len__(self) -> int:
        return int(self.live.sum())

    def searchable(self, queries: Floats, k: int, allowed: Mask | None) -> Mask:
        """(N,) rows that may be found; queries, k and mask are checked."""
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise DataError(f"queries have shape {queries.shape}, the index has dimension {self.dim}")
        if k < 1:
            raise ConfigError(f"k is {k}", fix="ask for at least one hit")
        if allowed is None:
            return self.live
        if allowed.shape != self.live.shape:
            raise DataError(f"mask of {len(allowed)} for {len(self.live)} rows")
        return self.live & allowed

    def sorted_best(self, rows: Rows, scores: Floats, k: int) -> tuple[Rows, Floats]:
        """The k best of some rows, equal scores in the order of their ids.

        Scores are rounded: equal vectors may differ in the last bit, depending on where they lie in memory.
        """
        if len(rows) > k:
            least = np.partition(scores, len(scores) - k)[len(scores) - k]
            near = np.flatnonzero(scores >= least - 10.0**-DECIMALS)
            rows, scores = rows[near], scores[near]
        scores = scores.round(DECIMALS)
        order = np.lexsort((self.ids[rows].astype(str), -scores))[:k]
        return rows[order], scores[order]


def cosines(queries: Floats, vectors: Floats) -> Floats:
    """(Q, N) products of unit vectors. By torch: numpy's threads would fight with those of the encoders."""
    product: Floats = (torch.from_numpy(queries) @ torch.from_numpy(vectors).T).numpy()
    return product


def as_neighbours(found: Sequence[tuple[Rows, Floats]], k: int) -> Neighbours:
    """Lists of different length as one table."""
    rows = np.full((len(found), k), NO_ROW, np.int64)
    scores = np.full((len(found), k), -np.inf, np.float32)
    for query, (some_rows, some_scores) in enumerate(found):
        rows[query, : len(some_rows)] = some_rows
        scores[query, : len(some_scores)] = some_scores
    return Neighbours(rows, scores)


def usual_backend() -> Backend:
    """PostgreSQL where PMPGUARD_STORE names a database, else exact."""
    return "postgres" if os.environ.get("PMPGUARD_STORE") else "exact"


def new_index(backend: Backend, dim: int, name: str = "images", model: str = "") -> VectorIndex:
    """An empty index; `name` tells apart the several indexes of one search index."""
    if backend == "exact":
        from pmpguard.search.stores.exact import ExactIndex

        return ExactIndex(dim)
    if backend in ("hnsw", "ivf"):
        from pmpguard.search.stores.faiss import FaissIndex

        return FaissIndex(dim, backend, name)
    if backend == "postgres":
        from pmpguard.search.stores.postgres import PostgresIndex

        return PostgresIndex(dim, name, model)
    if backend == "qdrant":
        from pmpguard.search.stores.qdrant import QdrantIndex

        return QdrantIndex(dim, name)
    raise ConfigError(f"backend {backend!r} is unknown", fix="one of exact, hnsw, ivf, postgres, qdrant")


def load_index(backend: Backend, folder: Path, items: IndexedItems, name: str = "images") -> VectorIndex:
    """What `save` wrote into `folder`, for the same items."""
    if backend == "exact":
        from pmpguard.search.stores.exact import ExactIndex

        return ExactIndex.load(items)
    if backend in ("hnsw", "ivf"):
        from pmpguard.search.stores.faiss import FaissIndex

        return FaissIndex.load(backend, folder, items, name)
    if backend == "postgres":
        from pmpguard.search.stores.postgres import PostgresIndex

        return PostgresIndex.load(folder, items, name)
    if backend == "qdrant":
        from pmpguard.search.stores.qdrant import QdrantIndex

        return QdrantIndex.load(folder, items, name)
    raise ConfigError(f"backend {backend!r} is unknown", fix="one of exact, hnsw, ivf, postgres, qdrant")


def drop_saved(store: Backend, saved: Sequence[Mapping[str, Any]]) -> None:
    """Delete collections from a server: those that `save` named in these files."""
    if not saved:
        return
    if store == "postgres":
        from pmpguard.search.stores.postgres import drop_tables

        drop_tables(saved)
    else:
        from pmpguard.search.stores.qdrant import drop_collections

        drop_collections([stored["collection"] for stored in saved])
