"""PostgreSQL behind an index: a live server is killed, cut off, shared by copies, searched meanwhile."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.search_examples import embed, only_images, was_killed

from pmpguard.errors import ConfigError, ModelError, PmpguardError
from pmpguard.files import read_json
from pmpguard.search.filters import FilterColumns, parse_where
from pmpguard.search.index import writer
from pmpguard.search.index.changes import Change, add_to_index, build_index, remove_from_index
from pmpguard.search.query import Filters, Query, SearchHit
from pmpguard.search.searcher import Searcher
from pmpguard.search.stores import IndexedItems, load_index, postgres_table
from pmpguard.search.stores import postgres as postgres_store
from pmpguard.search.stores.exact import ExactIndex
from pmpguard.search.stores.postgres import PostgresIndex

TEXT = Query("a large green field beside a road")
DATABASE = "test_postgres"


@pytest.fixture(autouse=True)
def store(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PMPGUARD_STORE", postgres_database)
    return postgres_database


@pytest.fixture(scope="module")
def more(small_search, tmp_path_factory) -> Path:
    """Twelve images without captions, embedded under names of their own."""
    folder = tmp_path_factory.mktemp("more")
    embed(only_images(small_search.world, folder / "images", 12), small_search.model, folder / "embedding")
    return folder / "embedding"


@pytest.fixture
def index(small_search, tmp_path) -> Path:
    build_index(tmp_path / "index", small_search.embedding, backend="postgres")
    return tmp_path / "index"


def hits(searcher: Searcher | Path, k: int = 60, filters: Filters | None = None) -> list[SearchHit]:
    found = Searcher.open(searcher) if isinstance(searcher, Path) else searcher
    return found.search(TEXT, k, 100, filters or Filters())


def saved(index: Path) -> dict[str, Any]:
    version = (index / "current").read_text().split()[0]
    return read_json(index / "versions" / version / "images.postgres.json")


def table(index: Path) -> str:
    return f'pmpguard."{saved(index)["collection"]}"'


def during_copy(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], after: int = 5) -> None:
    """Do something while the rows of an add are on their way."""
    rows_of = postgres_table.rows_of

    def watched(columns: FilterColumns) -> Iterator[Any]:
        for number, row in enumerate(rows_of(columns)):
            if number == after:
                act()
            yield row

    monkeypatch.setattr(postgres_table, "rows_of", watched)


def test_a_filter_is_applied_in_the_database_and_finds_the_same(small_search, index):
    exact, found = Searcher.open(small_search.index), Searcher.open(index)
    assert (found.backend, found.count, found.caption_count) == ("postgres", 40, 200)
    filters = Filters(
        columns={"label": exact.columns["label"][:2]}, conditions=parse_where(["split=train,split=test"])
    )
    for query in (TEXT, Query("a field", kind="caption")):
        wanted = [hit.id for hit in exact.search(query, 200, 200, filters)]
        assert [hit.id for hit in found.search(query, 200, 200, filters)] == wanted and 0 < len(wanted) < 100
    with pytest.raises(ConfigError, match="no metadata column 'colour'"):
        hits(found, filters=Filters(columns={"colour": ("red",)}))


def test_attributes_places_and_times_are_typed_columns_of_one_table(postgres, store):
    metadata = pa.table(
        {
            "id": ["a", "b"], "label": ["port", None], "cover [%]": [20, 30], "share": [0.5, float("nan")],
            "valid": [True, None], "west": [170.0, None], "south": [0.0, None], "east": [-170.0, None],
            "north": [5.0, None], "time": ["2024-05-01T12:00:00Z", None], "row": [7, 8], "x" * 80: ["1", "2"],
        }
    )  # fmt: skip
    stored = PostgresIndex(4)
    stored.add(["a", "b"], np.eye(4, dtype=np.float32)[:2], metadata)
    name = f"pmpguard.{stored.table.name}"
    columns = (
        "item, vector::text, label, share, valid, box_west, box_end, moment AT TIME ZONE 'UTC', removed, "
        "pg_typeof(vector)::text, pg_typeof(area)::text"
    )
    area = (
        "geometry"
        if postgres.run("SELECT 1 FROM pg_extension WHERE extname = 'postgis'", DATABASE)
        else "box"
    )
    first, second = postgres.run(f"SELECT {columns} FROM {name} ORDER BY row", DATABASE)
    assert first[:7] == ("a", "[1,0,0,0]", "port", 0.5, True, 170.0, 190.0)
    assert first[7].isoformat() == "2024-05-01T12:00:00" and first[8:] == (None, "halfvec", area)
    assert second[:9] == ("b", "[0,1,0,0]", None, None, None, None, None, None, None)
    query = np.eye(4, dtype=np.float32)[:1]
    for where, rows in [
        ("cover [%]<25", [0]), ("row>=8", [1]), ("row=7", [0]), (f"{'x' * 80}>1", [1]), ("label=no\0ne", []),
        ("share>0", [0]), ("valid=true", [0]), ("cover [%]=1e30", []), (f"{'x' * 80}<1e300", [0, 1]),
    ]:  # fmt: skip
        filters = FilterColumns(metadata).checked(Filters(conditions=parse_where([where])))
        assert sorted(stored.search(query, 5, filters=filters).of(0)[0].tolist()) == rows, where


def test_a_column_that_becomes_wider_keeps_what_it_held(postgres):
    stored = PostgresIndex(4)
    vectors = np.eye(4, dtype=np.float32)
    stored.add(["a"], vectors[:1], pa.table({"id": ["a"], "size": [3]}))
    stored.add(["b"], vectors[1:2], pa.table({"id": ["b"], "size": [0.5], "place": ["Bern"]}))
    stored.add(["c"], vectors[2:3], pa.table({"id": ["c"], "size": ["large"]}))
    found = postgres.run(f"SELECT size, place FROM pmpguard.{stored.table.name} ORDER BY row", DATABASE)
    assert found == [("3", None), ("0.5", "Bern"), ("large", None)]
    over = Filters(conditions=parse_where(["size>1"]))
    assert stored.search(vectors[:1], 5, filters=over).of(0)[0].tolist() == [0]


def test_a_reader_follows_when_a_writer_makes_a_column_wider(tmp_path):
    vectors, same = np.eye(4, dtype=np.float32), Filters(columns={"size": ("3",)})
    stored = PostgresIndex(4)
    stored.add(["a"], vectors[:1], pa.table({"id": ["a"], "size": [3]}))
    stored.save(tmp_path)
    stored.settle()
    reader = load_index("postgres", tmp_path, IndexedItems(["a"], np.zeros(1, bool), 4, lambda: vectors[:1]))
    assert reader.search(vectors[:1], 5, filters=same).of(0)[0].tolist() == [0]
    stored.add(["b"], vectors[1:2], pa.table({"id": ["b"], "size": ["3"]}))
    assert reader.search(vectors[:1], 5, filters=same).of(0)[0].tolist() == [0]
    assert sorted(stored.search(vectors[:1], 5, filters=same).of(0)[0].tolist()) == [0, 1]


def test_a_server_killed_in_the_middle_of_an_add_leaves_the_version_before(
    index, more, postgres, monkeypatch, tmp_path
):
    before, searcher = hits(index), Searcher.open(index)
    with monkeypatch.context() as patch:
        during_copy(patch, postgres.kill)
        with pytest.raises(PmpguardError, match=f"PostgreSQL database {DATABASE} at 127.0.0.1") as refused:
            add_to_index(index, more)
    assert "try again" in refused.value.fix and "s3cret" not in str(refused.value)
    with pytest.raises(PmpguardError, match="try again"):  # it is down: an error, and nothing else
        hits(searcher)
    postgres.start()
    assert hits(searcher) == before and not searcher.refresh()
    assert add_to_index(index, more).added == 12
    assert searcher.refresh() and len(hits(searcher)) == 52
    assert postgres.run(f"SELECT count(*) FROM {table(index)}", DATABASE) == [(52,)]


def test_a_connection_that_is_cut_is_made_anew_and_an_add_it_interrupts_can_be_given_again(
    index, more, postgres, monkeypatch
):
    searcher = Searcher.open(index)
    before = hits(searcher)
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = "
    )

    def cut_all() -> None:
        assert postgres.run(f"{cut}'{DATABASE}'")

    cut_all()
    assert hits(searcher) == before
    with monkeypatch.context() as patch:
        during_copy(patch, cut_all)
        with pytest.raises(PmpguardError, match="terminating connection"):
            add_to_index(index, more)
    assert hits(searcher) == before
    assert add_to_index(index, more).count == 52


@pytest.mark.parametrize("change", ["add", "remove"])
def test_what_a_killed_writer_left_in_the_database_is_found_by_nobody_and_taken_back(
    index, more, postgres, monkeypatch, change
):
    before = hits(index)
    gone = [hit.id for hit in before[:2]]

    def killed() -> None:
        writer.write_atomic = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        add_to_index(index, more) if change == "add" else remove_from_index(index, gone)

    assert was_killed(killed, 60)
    left = f"SELECT count(*) FROM {table(index)} WHERE row >= 40 OR removed IS NOT NULL"
    assert postgres.run(left, DATABASE) == [(12,) if change == "add" else (2,)]
    assert hits(index) == before
    assert remove_from_index(index, [before[5].id]).count == 39
    assert postgres.run(left, DATABASE) == [(1,)]
    assert hits(index) == before[:5] + before[6:]


def test_a_search_during_an_add_finds_what_was_there(index, more, monkeypatch):
    searcher, found = Searcher.open(index), []
    before = hits(searcher)
    during_copy(monkeypatch, lambda: found.extend([hits(searcher), hits(index)]))
    add_to_index(index, more)
    assert found == [before, before] == [hits(searcher)] * 2  # until it looks for the new version
    assert searcher.refresh() and len(hits(searcher)) == 52


def test_searches_go_on_while_an_add_brings_a_new_column(index, small_search, monkeypatch, tmp_path):
    """A column is added by itself, at once: whoever adds a million rows after that keeps nobody waiting."""
    images = only_images(small_search.world, tmp_path / "images", 12)
    rows = [f"{path.name},{place}" for place, path in enumerate(sorted(images.iterdir()))]
    (images / "places.csv").write_text("\n".join(["image,height", *rows]))
    embed(images, small_search.model, tmp_path / "vectors")
    searcher, found = Searcher.open(index), []
    before = hits(searcher)
    monkeypatch.setenv("PGOPTIONS", "-c statement_timeout=5s")
    during_copy(monkeypatch, lambda: found.extend([hits(searcher), hits(index)]))
    add_to_index(index, tmp_path / "vectors")
    assert found == [before, before]
    assert searcher.refresh()
    tall = hits(searcher, filters=Filters(conditions=parse_where(["height>=10"])))
    assert {hit.metadata["height"] for hit in tall} == {10, 11}


def test_servers_on_one_database_may_each_be_at_their_own_version(index, more):
    first, second = Searcher.open(index), Searcher.open(index)
    before = hits(first)
    assert add_to_index(index, more) == Change("000002", 52, added=12)
    assert first.refresh()
    gone = before[0].id
    remove_from_index(index, [gone])
    assert hits(second) == before and len(hits(first)) == 52 and gone in {hit.id for hit in hits(first)}
    assert second.refresh() and len(hits(second)) == 51 and gone not in {hit.id for hit in hits(second)}


def test_of_two_writers_one_is_refused(index, more, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(index, copy)
    other = Searcher.open(copy).opened.version.vector_index("image")
    other.remove([0])  # begun elsewhere, and not yet done
    with pytest.raises(PmpguardError, match="another process is changing"):
        remove_from_index(index, [hits(index)[0].id])
    other.close()  # it died: what it began is taken back
    before = hits(index)
    assert len(before) == 40
    assert remove_from_index(index, [before[0].id]).count == 39
    with pytest.raises(PmpguardError, match="changed by another copy of this index"):
        add_to_index(copy, more)
    assert hits(copy) == before and hits(index) == before[1:]


def test_replacing_is_one_change(index, small_search, postgres, tmp_path):
    before = hits(index)
    embed(small_search.world, small_search.model, tmp_path / "again")
    change = add_to_index(index, tmp_path / "again", update=True)
    assert (change.count, change.replaced) == (40, 40)
    assert [hit.id for hit in hits(index)] == [hit.id for hit in before]
    counts = "SELECT count(*), count(removed), count(DISTINCT removed)"
    assert postgres.run(f"{counts} FROM {table(index)}", DATABASE) == [(80, 40, 1)]


def test_tables_that_no_version_uses_are_dropped(index, small_search, postgres):
    old = saved(index)["collection"]
    listed = f"SELECT count(*) FROM pmpguard.collections WHERE name = '{old}'"
    assert postgres.run(listed, DATABASE) == [(1,)]
    for _ in range(2):
        build_index(index, small_search.embedding, backend="exact")
    build_index(index, small_search.embedding, backend="exact")
    assert postgres.run(f"SELECT to_regclass('pmpguard.{old}')", DATABASE) == [(None,)]
    assert postgres.run(listed, DATABASE) == [(0,)]


def test_tables_in_a_database_that_is_named_no_more_are_kept_and_told(
    index, small_search, postgres, monkeypatch, caplog
):
    old = saved(index)["collection"]
    monkeypatch.setenv("PMPGUARD_STORE", postgres.new_database("moved"))
    for _ in range(2):
        build_index(index, small_search.embedding, backend="exact")
    assert re.search(rf"pmpguard\.{old} in PostgreSQL database {DATABASE} at ", caplog.text)
    assert postgres.run(f"SELECT to_regclass('pmpguard.{old}')", DATABASE) != [(None,)]


def test_what_a_killed_build_left_is_dropped_by_the_next_writer(small_search, postgres, tmp_path):
    def killed() -> None:
        writer._mixture = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        build_index(tmp_path / "index", small_search.embedding, backend="postgres")

    count = "SELECT count(*) FROM pmpguard.collections"
    (before,) = postgres.run(count, DATABASE)
    assert was_killed(killed, 60) and postgres.run(count, DATABASE) == [(before[0] + 2,)]
    build_index(tmp_path / "index", small_search.embedding, backend="exact")
    assert postgres.run(count, DATABASE) == [before]


def test_the_wrong_database_another_model_and_an_older_copy_are_named(index, postgres, monkeypatch):
    monkeypatch.setenv("PMPGUARD_STORE", postgres.new_database("elsewhere"))
    with pytest.raises(PmpguardError, match=r"database elsewhere at .*: no collection images_\w+") as refused:
        hits(index)
    assert "build the index again" in refused.value.fix
    monkeypatch.setenv("PMPGUARD_STORE", postgres.url(DATABASE))
    name = saved(index)["collection"]
    postgres.run(f"UPDATE pmpguard.collections SET rows = 5 WHERE name = '{name}'", DATABASE)
    with pytest.raises(PmpguardError, match="an older copy of the database was restored"):
        hits(index)
    postgres.run(f"UPDATE pmpguard.collections SET model = 'another' WHERE name = '{name}'", DATABASE)
    with pytest.raises(ModelError, match=r"is of model another, the index of \w+"):
        hits(index)


def test_without_a_store_named_the_recorded_one_is_asked_and_holds_no_password(index, monkeypatch):
    before = hits(index)
    monkeypatch.delenv("PMPGUARD_STORE")
    address = saved(index)["address"]
    assert address["dbname"] == DATABASE and "password" not in address
    assert not [path for path in index.rglob("*.json") if "s3cret" in path.read_text()]
    with pytest.raises(PmpguardError, match="password") as refused:
        hits(index)
    assert "PGPASSWORD" in refused.value.fix
    monkeypatch.setenv("PGPASSWORD", "s3cret:with@signs")
    assert hits(index) == before


def test_a_filter_that_few_pass_is_walked_on_with_until_enough_are_found(postgres, monkeypatch):
    """The planner is kept from all but the graph, and what passes is far from the query."""
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((3000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[:8] + 0
    near = (vectors @ queries[0]).argsort()
    label = np.full(3000, "near", dtype=object)
    label[near[:40]] = "far"
    metadata = pa.table({"id": [str(row) for row in range(3000)], "label": label})
    stored, exact = PostgresIndex(16), ExactIndex(16)
    for one in (stored, exact):
        one.add(metadata["id"].to_pylist(), vectors, metadata)
    monkeypatch.setattr(postgres_store, "MAX_COMPARED_ROWS", 0)
    for setting in ("seqscan", "bitmapscan", "sort"):
        postgres.run(f"ALTER DATABASE {DATABASE} SET enable_{setting} = off")
    try:
        stored.close()
        for filters in (
            Filters(),
            Filters(columns={"label": ("far",)}),
            Filters(columns={"label": ("near",)}),
        ):
            wanted = exact.search(queries, 10, FilterColumns(metadata).mask(filters)).rows
            found = stored.search(queries, 10, filters=filters).rows
            shared = [len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), wanted.tolist(), strict=True)]
            assert np.mean(shared) >= 0.97
        assert not (
            stored.search(queries, 60, filters=Filters(columns={"label": ("far",)})).rows[:, 40:] + 1
        ).any()
    finally:
        postgres.run(f"ALTER DATABASE {DATABASE} RESET ALL")


@pytest.mark.parametrize(("most", "walks"), [(100, "on"), (1500, "off")])
def test_so_few_rows_that_pass_are_all_compared(monkeypatch, most, walks):
    """Those of a few kinds lie together, where a walk from the query may never come."""
    generator, asked = np.random.default_rng(0), []
    vectors = generator.standard_normal((3000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    metadata = pa.table({"id": [str(row) for row in range(3000)], "label": ["even", "odd"] * 1500})
    filters = Filters(columns={"label": ("odd",)})
    stored, exact = PostgresIndex(16), ExactIndex(16)
    for one in (stored, exact):
        one.add(metadata["id"].to_pylist(), vectors, metadata)
    settled = PostgresIndex._set
    monkeypatch.setattr(postgres_store, "MAX_COMPARED_ROWS", 1.1 * most)  # an estimate
    watched = staticmethod(lambda cursor, how: (asked.append(how), settled(cursor, how)))
    monkeypatch.setattr(PostgresIndex, "_set", watched)
    found = stored.search(vectors[:8], 10, filters=filters).rows
    assert [how["enable_indexscan"] for how in asked] == [walks]
    wanted = exact.search(vectors[:8], 10, FilterColumns(metadata).mask(filters)).rows
    assert (np.sort(found) == np.sort(wanted)).mean() >= 0.97
    stored.search(vectors[:1], 10)
    assert asked[-1]["enable_indexscan"] == "on"  # without filters


def test_a_collection_that_holds_fewer_rows_than_the_index_is_refused(tmp_path):
    stored = PostgresIndex(4)
    stored.add(["a"], np.eye(4, dtype=np.float32)[:1])
    stored.save(tmp_path)
    stored.settle()
    items = IndexedItems(["a", "b"], np.zeros(2, bool), 4, lambda: np.eye(4, dtype=np.float32)[:2])
    with pytest.raises(PmpguardError, match="holds 1 rows of 2"):
        load_index("postgres", tmp_path, items)
    with pytest.raises(ConfigError, match="4000 dimensions"):
        PostgresIndex(4001)


@pytest.mark.parametrize("changed", [False, True])
def test_a_backup_of_folder_and_schema(postgres, index, more, tmp_path, monkeypatch, changed):
    wanted, copy, restored = hits(index), tmp_path / "copy", postgres.new_database("restored")
    shutil.copytree(index, copy)
    if changed:  # between the copy and the dump, which then knows more than the folder
        add_to_index(index, more)
    command = [postgres.programs / "pg_dump", "--schema=pmpguard", postgres.url(DATABASE)]
    dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shutil.rmtree(index)
    postgres.run("CREATE EXTENSION vector", "restored")
    command = [postgres.programs / "psql", "--quiet", "--set=ON_ERROR_STOP=1", restored]
    subprocess.run(command, input=dump, capture_output=True, text=True, check=True)
    monkeypatch.setenv("PMPGUARD_STORE", restored)
    assert hits(copy) == wanted
    if changed:
        with pytest.raises(PmpguardError, match="changed by another copy"):
            add_to_index(copy, more)
        build_index(copy, copy / "segments" / "000001", backend="postgres")
        assert [hit.id for hit in hits(copy)] == [hit.id for hit in wanted]
    add_to_index(copy, more)
    assert Searcher.open(copy).count == 52
