"""Qdrant behind a searcher: filters are applied where it searches, and its errors become ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pmpguard.errors import PmpguardError
from pmpguard.search.filters import parse_where
from pmpguard.search.index.changes import build_index
from pmpguard.search.query import Filters, Query
from pmpguard.search.searcher import Searcher
from pmpguard.search.stores import qdrant as qdrant_index
from pmpguard.search.stores.qdrant import QdrantIndex, drop_collections

pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")


def test_filters_are_pushed_down_and_find_the_same(small_search, tmp_path, monkeypatch):
    monkeypatch.setenv("QDRANT_URL", ":memory:")
    build_index(tmp_path / "index", small_search.embedding, backend="qdrant")
    searcher, exact = Searcher.open(tmp_path / "index"), Searcher.open(small_search.index)
    asked: list[tuple[Any, Filters]] = []
    search = QdrantIndex.search

    def watched(self: QdrantIndex, queries: Any, k: int, allowed: Any = None, filters: Any = None) -> Any:
        asked.append((allowed, filters))
        return search(self, queries, k, allowed, filters)

    monkeypatch.setattr(QdrantIndex, "search", watched)
    labels = exact.columns["label"][:2]
    filters = Filters(columns={"label": labels}, conditions=parse_where(["split=train,split=test"]))
    for query in (Query("a green field"), Query("a green field", kind="caption")):
        found = searcher.search(query, k=200, filters=filters)
        wanted = exact.search(query, k=200, filters=filters)
        assert {hit.id for hit in found} == {hit.id for hit in wanted} and 0 < len(found) < 100
    assert [allowed for allowed, _ in asked] == [None, None]
    assert all(
        [(condition.column, condition.values) for condition in given.all_conditions]
        == [("label", labels), ("split", ("train", "test"))]
        for _, given in asked
    )


def test_removed_ids_do_not_travel_with_a_query_and_an_older_version_still_finds_them(monkeypatch):
    monkeypatch.setenv("QDRANT_URL", ":memory:")
    vectors = np.eye(64, dtype=np.float32)
    index = QdrantIndex(64)
    index.add([f"{row:02d}" for row in range(64)], vectors)
    before = index.known.live.copy()
    sizes = []
    for gone in ([0], list(range(1, 60))):
        index.remove(gone)
        sizes.append(len(index._condition(index.known.live, False, Filters()).model_dump_json()))
        assert not set(index.search(vectors[gone], 3).rows.ravel().tolist()) & set(gone)
    assert sizes[0] == sizes[1] and len(index) == 4
    assert set(index.search(vectors[:1], 64).of(0)[0].tolist()) == {60, 61, 62, 63}
    index.generation, index.known.live = 1, before  # as a reader of the version between
    assert set(index.search(vectors[:1], 64).of(0)[0].tolist()) == set(range(1, 64))
    index.remove([5])  # by a writer who knows nothing of the second removal, which was never saved
    assert set(index.search(vectors[:1], 64).of(0)[0].tolist()) == set(range(1, 64)) - {5}


class RefusingClient:
    """A server that fails at one call."""

    def __init__(self, failing: str) -> None:
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            if name == self.failing:
                raise TimeoutError(f"{name} timed out")
            return False if name == "collection_exists" else SimpleNamespace(count=0)

        return call


CALLS = ["collection_exists", "create_collection", "create_payload_index", "upsert", "query_batch_points"]


@pytest.mark.parametrize("failing", CALLS)
def test_whatever_fails_is_named_with_the_server(monkeypatch, failing):
    monkeypatch.setenv("QDRANT_URL", "http://search.example:6333")
    monkeypatch.setattr(qdrant_index, "open_client", lambda _: RefusingClient(failing))
    with pytest.raises(PmpguardError, match=f"search.example:6333: {failing} timed out") as flagged:
        index = QdrantIndex(4)
        index.add(["a"], np.eye(4, dtype=np.float32)[:1])
        index.search(np.eye(4, dtype=np.float32)[:1], 1)
    assert "QDRANT_URL" in flagged.value.fix


def test_old_collections_that_cannot_be_deleted_and_an_address_that_cannot_be(monkeypatch):
    monkeypatch.setenv("QDRANT_URL", "http://search.example:6333")
    with monkeypatch.context() as patch:
        patch.setattr(qdrant_index, "open_client", lambda _: RefusingClient("delete_collection"))
        with pytest.raises(PmpguardError, match="delete_collection timed out"):
            drop_collections(["old"])
    monkeypatch.setenv("QDRANT_URL", "http://[bad")
    with pytest.raises(PmpguardError, match=r"Qdrant at http://\[bad"):
        QdrantIndex(4)
