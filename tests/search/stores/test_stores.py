"""One contract for every vector index: exact, FAISS HNSW and IVF, PostgreSQL, Qdrant."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.errors import ConfigError, DataError, MissingExtraError
from pmpguard.search.filters import FilterColumns
from pmpguard.search.query import Condition, Filters
from pmpguard.search.stores import IndexedItems, VectorIndex, load_index, new_index
from pmpguard.search.stores.exact import ExactIndex
from pmpguard.search.stores.faiss import LEAST_CELLS

DIM, COUNT = 16, 400
BACKENDS = ["exact", "hnsw", "ivf", "postgres", "qdrant", "qdrant-server"]
HALF_FLOATS = ("ivf", "postgres")
SERVER = os.environ.get("QDRANT_URL", "")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name = request.param
    if name in ("hnsw", "ivf") and importlib.util.find_spec("faiss") is None:
        pytest.skip("faiss is not installed")
    if name.startswith("qdrant") and importlib.util.find_spec("qdrant_client") is None:
        pytest.skip("qdrant-client is not installed")
    if name == "qdrant-server" and SERVER in ("", ":memory:"):
        pytest.skip("QDRANT_URL names no server")
    if name == "postgres":
        monkeypatch.setenv("PMPGUARD_STORE", request.getfixturevalue("postgres_database"))
    if name.startswith("qdrant"):
        monkeypatch.setenv("QDRANT_URL", ":memory:" if name == "qdrant" else SERVER)
    return "qdrant" if name == "qdrant-server" else name


def unit_vectors(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def names(count: int, first: int = 0) -> list[str]:
    return [f"image {number:05d}" for number in range(first, first + count)]


def filled(backend: str, count: int = COUNT, metadata: pa.Table | None = None) -> VectorIndex:
    index = new_index(backend, DIM)
    index.add(names(count), unit_vectors(count), metadata)
    return index


def naive(
    vectors: np.ndarray, queries: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> list[list[int]]:
    """Row numbers by loops in double precision."""
    answers = []
    for query in queries.astype(np.float64):
        scored = [
            (-sum(a * b for a, b in zip(query, vector, strict=True)), row)
            for row, vector in enumerate(vectors.astype(np.float64))
            if allowed is None or allowed[row]
        ]
        answers.append([row for _, row in sorted(scored)[:k]])
    return answers


def overlap(found: np.ndarray, wanted: list[list[int]]) -> float:
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), wanted, strict=True)])


def test_nearest_rows_best_first(backend):
    index, queries = filled(backend), unit_vectors(5, seed=1)
    found = index.search(queries, 10)
    assert found.rows.shape == found.scores.shape == (5, 10)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    expected = np.take_along_axis(queries @ unit_vectors(COUNT).T, found.rows, axis=1)
    assert np.allclose(found.scores, expected, atol=2e-4 if backend in HALF_FLOATS else 1e-5)
    wanted = naive(unit_vectors(COUNT), queries, 10)
    if backend in ("exact", "qdrant"):
        assert found.rows.tolist() == wanted
    assert overlap(found.rows, wanted) >= 0.9


def test_every_item_finds_itself(backend):
    vectors = unit_vectors(COUNT)
    assert filled(backend).search(vectors[::7], 1).rows[:, 0].tolist() == list(range(0, COUNT, 7))


def test_more_hits_than_items_leave_empty_places(backend):
    found = filled(backend, 3).search(unit_vectors(1, 2), 8)
    assert sorted(found.rows[0, :3].tolist()) == [0, 1, 2]
    assert found.rows[0, 3:].tolist() == [-1] * 5 and np.isneginf(found.scores[0, 3:]).all()
    assert len(found.of(0)[0]) == 3


def test_removed_rows_never_return(backend):
    index, vectors = filled(backend), unit_vectors(COUNT)
    index.remove([3, 50, 399])
    assert len(index) == COUNT - 3
    found = index.search(vectors[[3, 50, 399]], 20)
    assert not set(found.rows.ravel().tolist()) & {3, 50, 399}


def test_rows_added_later_are_found_and_numbered_on(backend):
    index, more = filled(backend), unit_vectors(30, seed=5)
    index.add(names(30, COUNT), more)
    assert len(index) == COUNT + 30
    assert index.search(more, 1).rows[:, 0].tolist() == list(range(COUNT, COUNT + 30))


@pytest.mark.parametrize("share", [0.5, 0.02])
def test_only_allowed_rows_are_found(backend, share):
    index, queries = filled(backend), unit_vectors(6, seed=3)
    allowed = np.random.default_rng(0).random(COUNT) < share
    index.remove([int(np.flatnonzero(allowed)[0])])
    expected = allowed.copy()
    expected[np.flatnonzero(allowed)[0]] = False
    found = index.search(queries, 4, allowed)
    assert expected[found.rows[found.rows >= 0]].all()
    assert overlap(found.rows, naive(unit_vectors(COUNT), queries, 4, expected)) >= 0.9


def test_nothing_allowed_is_an_empty_answer(backend):
    found = filled(backend).search(unit_vectors(2), 5, np.zeros(COUNT, bool))
    assert (found.rows == -1).all()


def test_equal_scores_come_in_the_order_of_ids(backend):
    index = new_index(backend, DIM)
    same = np.repeat(unit_vectors(1), 6, axis=0)
    index.add(["f", "b", "d", "a", "e", "c"], same)
    assert index.search(same[:1], 6).rows.tolist() == [[3, 1, 5, 2, 4, 0]]


def test_saved_and_loaded_it_answers_the_same(backend, tmp_path):
    index, vectors, queries = filled(backend), unit_vectors(COUNT), unit_vectors(5, seed=8)
    index.remove([7])
    index.save(tmp_path)
    index.settle()
    removed = np.zeros(COUNT, bool)
    removed[7] = True
    again = load_index(backend, tmp_path, IndexedItems(names(COUNT), removed, DIM, lambda: vectors))
    assert len(again) == COUNT - 1
    before, after = index.search(queries, 10), again.search(queries, 10)
    assert before.rows.tolist() == after.rows.tolist() and np.allclose(before.scores, after.scores, atol=1e-6)
    again.add(names(5, COUNT), unit_vectors(5, seed=9))
    assert again.search(unit_vectors(5, seed=9), 1).rows[:, 0].tolist() == list(range(COUNT, COUNT + 5))


def test_an_empty_index_answers_nothing_and_can_be_saved(backend, tmp_path):
    index = new_index(backend, DIM)
    assert len(index) == 0 and (index.search(unit_vectors(1), 3).rows == -1).all()
    index.save(tmp_path)
    items = IndexedItems([], np.zeros(0, bool), DIM, lambda: np.zeros((0, DIM), np.float32))
    assert len(load_index(backend, tmp_path, items)) == 0


def test_what_cannot_be_is_refused(backend):
    index = filled(backend, 5)
    with pytest.raises(DataError, match="dimension 16"):
        index.search(unit_vectors(1, dim=8), 3)
    with pytest.raises(ConfigError, match="k is 0"):
        index.search(unit_vectors(1), 0)
    with pytest.raises(DataError, match="mask of 3"):
        index.search(unit_vectors(1), 1, np.ones(3, bool))
    with pytest.raises(DataError, match="2 ids"):
        index.add(["a", "b"], unit_vectors(3))
    with pytest.raises(DataError, match="'bad' is not finite"):
        index.add(["bad"], np.full((1, DIM), np.nan, np.float32))
    assert len(index) == 5


FILTERS = [
    Filters(box=(0, 0, 30, 30)),
    Filters(box=(170, -90, -170, 90)),
    Filters(start="2021", stop="2022-06"),
    Filters(stop="2021-03-01"),
    Filters(columns={"label": ("port", "farm")}),
    Filters(conditions=(Condition("cover [%]", ">=", ("20",)), Condition("cover [%]", "<", ("60",)))),
    Filters(columns={"label": ("port",)}, conditions=(Condition("label", "=", ("port", "farm")),)),
    Filters(near=(175.0, 10.0, 175.0, 10.0), radius=3000.0),
    Filters(near=(-20.0, 60.0, 15.0, 89.0), radius=500.0, columns={"label": ("port", "farm", "city")}),
    Filters(near=(0.0, 0.0, 0.0, 0.0), radius=12_000.0, start="2021"),
    Filters(columns={"label": ("port",), "cloudy": ("true",)}, box=(-180, -90, 180, 90), start="2020"),
    Filters(conditions=(Condition("acquired", ">=", ("2021-02",)), Condition("acquired", "<", ("2021-07",)))),
    Filters(columns={"acquired": ("2021-03-04", "2022")}),
    Filters(conditions=(Condition("day", ">", ("2021-02-14",)), Condition("day", "<=", ("2021-08-30",)))),
]


FIRST, LAST = 1_583_020_800_000_000, 1_672_000_000_000_000  # microseconds


def places(count: int) -> pa.Table:
    generator = np.random.default_rng(4)
    west, south = generator.uniform(-180, 180, count), generator.uniform(-80, 70, count)
    east = np.where(west + 15 > 180, west + 15 - 360, west + 15)
    known = generator.random(count) < 0.8
    when = generator.integers(0, 48, count)
    return pa.table(
        {
            "id": names(count),
            "west": pa.array(west, mask=~known), "south": pa.array(south, mask=~known),
            "east": pa.array(east, mask=~known), "north": pa.array(south + 10, mask=~known),
            "time": [None if month > 40 else f"{2020 + month // 12}-{month % 12 + 1:02d}" for month in when],
            "label": [("port", "farm", "city", None)[place % 4] for place in range(count)],
            "cover [%]": pa.array(generator.integers(0, 80, count), mask=~known),
            "cloudy": generator.random(count) < 0.5,
            "acquired": pa.array(generator.integers(FIRST, LAST, count), pa.timestamp("us", "UTC")),
            "day": pa.array(generator.integers(18_600, 18_900, count, "i4"), mask=~known).cast(pa.date32()),
        }
    )  # fmt: skip


@pytest.mark.parametrize("filters", FILTERS)
def test_a_filter_means_the_same_whoever_applies_it(backend, filters):
    metadata, queries = places(COUNT), unit_vectors(4, seed=6)
    filters = FilterColumns(metadata).checked(filters)
    allowed = FilterColumns(metadata).mask(filters)
    assert 0 < allowed.sum() < COUNT
    index = filled(backend, metadata=metadata)
    if index.filters_itself:
        found = index.search(queries, 10, filters=filters)
    else:
        found = index.search(queries, 10, allowed)
    assert allowed[found.rows[found.rows >= 0]].all()
    wanted = naive(unit_vectors(COUNT), queries, 10, allowed)
    assert overlap(found.rows, wanted) >= 0.9


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 60), k=st.integers(1, 70), queries=st.integers(1, 4), chunk=st.integers(1, 100),
    levels=st.integers(1, 4), seed=st.integers(0, 1000),
)  # fmt: skip
def test_exact_search_does_not_depend_on_chunks_or_the_order_of_adding(
    count, k, queries, chunk, levels, seed
):
    generator = np.random.default_rng(seed)
    vectors = generator.integers(0, levels, (count, 3)).astype(np.float32)  # many ties, exact in float32
    asked = generator.integers(0, levels, (queries, 3)).astype(np.float32)
    ids = [f"{number:03d}" for number in generator.permutation(count)]
    allowed = generator.random(count) < 0.7
    expected = [
        sorted(
            (row for row in range(count) if allowed[row]),
            key=lambda row: (-float(vectors[row] @ q), ids[row]),
        )
        for q in asked
    ]
    index = ExactIndex(3, scores_at_once=chunk)
    index.add(ids, vectors)
    found = index.search(asked, k, allowed)
    for query, rows in enumerate(expected):
        assert found.of(query)[0].tolist() == rows[:k]


@dataclass(frozen=True)
class Many:
    """Topics and noise around them: rows, queries drawn like them, the topic of each row, and an index."""

    stored: np.ndarray  # (N, d)
    queries: np.ndarray  # (Q, d)
    topic: np.ndarray  # (N,)
    index: VectorIndex

    def recall(self, k: int, allowed: np.ndarray | None = None) -> float:
        cosines = self.queries.astype(np.float64) @ self.stored.T.astype(np.float64)
        if allowed is not None:
            cosines[:, ~allowed] = -2
        wanted = np.argsort(-cosines, axis=1)[:, :k]
        return overlap(self.index.search(self.queries, k, allowed).rows, wanted.tolist())


@pytest.fixture(scope="module", params=[pytest.param("hnsw", marks=pytest.mark.slow), "ivf"])
def many(request: pytest.FixtureRequest) -> Many:
    pytest.importorskip("faiss")
    generator = np.random.default_rng(0)
    topic = generator.integers(200, size=8_060)
    vectors = generator.standard_normal((200, 32))[topic] + generator.standard_normal((8_060, 32))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    stored, queries, alike = vectors[:8_000], vectors[8_000:8_020], vectors[8_020:]
    index = new_index(request.param, 32)
    index.add(names(len(stored)), stored)
    index.fit(alike)
    index.max_compared = 1000
    return Many(stored, queries, topic[:8_000], index)


def test_approximate_search_of_many_looks_at_few_and_misses_little(many):
    assert many.index.measured["recall_at_10"] >= 0.99
    if many.index.kind == "ivf":  # otherwise every cell is looked at and nothing is approximated
        assert LEAST_CELLS <= many.index.effort < many.index.index.nlist / 3
    assert many.recall(10) >= 0.97 and many.recall(100) >= 0.9


@pytest.mark.parametrize("share", [0.9, 0.3, 0.05, 0.003])
def test_approximate_search_among_some_misses_little(many, share):
    """Neither where rows pass evenly, nor where only topics pass that the queries are far from."""
    evenly = np.random.default_rng(1).random(len(many.stored)) < share
    assert many.recall(10, evenly) >= 0.97
    centres = np.stack([many.stored[many.topic == topic].mean(0) for topic in range(200)])
    far = np.argsort((many.queries @ centres.T).max(0))[: max(1, round(200 * share))]
    assert many.recall(10, np.isin(many.topic, far)) >= 0.97


def test_few_rows_that_pass_are_compared_in_bounded_blocks(many, monkeypatch):
    module = importlib.import_module(type(many.index).__module__)
    taken = []
    compare = module.cosines
    monkeypatch.setattr(
        module, "cosines", lambda queries, vectors: taken.append(len(vectors)) or compare(queries, vectors)
    )
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 700)
    allowed = np.arange(len(many.stored)) % 10 == 0
    assert many.recall(10, allowed) >= 0.99  # half floats may change places
    if many.index.kind == "hnsw":
        assert many.recall(10, allowed) == 1.0
        assert max(taken) <= 700 and sum(taken) == 2 * allowed.sum()


def test_how_far_an_approximate_index_looks_is_kept_and_measured_again_as_it_grows(many, tmp_path):
    many.index.save(tmp_path)
    items = IndexedItems(names(8_000), np.zeros(8_000, bool), 32, lambda: many.stored)
    loaded = load_index(many.index.kind, tmp_path, items)
    assert loaded.measured == many.index.measured
    assert loaded.search(many.queries, 10).rows.tolist() == many.index.search(many.queries, 10).rows.tolist()
    loaded.fit(many.queries[:1])  # of nearly as many rows
    assert loaded.measured["queries"] == 40
    (tmp_path / f"images.{many.index.kind}.json").unlink()
    before = load_index(many.index.kind, tmp_path, items)  # as indexes were written once
    assert not before.measured and before.effort > 0
    before.fit(many.queries)
    assert before.measured["queries"] == 20


def test_an_unknown_backend_and_a_missing_server_are_named(monkeypatch):
    with pytest.raises(ConfigError, match="'annoy' is unknown"):
        new_index("annoy", DIM)
    monkeypatch.delenv("QDRANT_URL", raising=False)
    if importlib.util.find_spec("qdrant_client"):
        with pytest.raises(ConfigError, match="QDRANT_URL"):
            new_index("qdrant", DIM)
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtraError, match="faiss"):
        new_index("hnsw", DIM)


def test_a_damaged_faiss_file_is_named(tmp_path: Path):
    pytest.importorskip("faiss")
    index = filled("hnsw", 20)
    index.save(tmp_path)
    path = tmp_path / "images.hnsw.faiss"
    path.write_bytes(path.read_bytes()[:100])
    items = IndexedItems(names(20), np.zeros(20, bool), DIM, lambda: unit_vectors(20))
    with pytest.raises(DataError, match=r"images\.hnsw\.faiss"):
        load_index("hnsw", tmp_path, items)
