"""PairTable: what is filled in and refused, shared memory, codes and the fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.data.formats import read_pairs
from pmpguard.data.pairs import PairTable, codes, first_repeated
from pmpguard.errors import DataError

strings = st.lists(st.text(st.characters(codec="utf-8"), max_size=6), max_size=30)


def table(count: int = 6, **columns: Any) -> PairTable:
    filled = {
        "image": [f"{row // 2}.png" for row in range(count)],
        "caption": [f"caption {row}" for row in range(count)],
        "split": ["train" if row < count - 2 else "test" for row in range(count)],
        **columns,
    }
    return PairTable.from_columns(filled, Path("/data"), "fake")


def chunked(values: list[str], size: int) -> pa.ChunkedArray:
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    return pa.chunked_array(parts, pa.string())


def buffers(pairs: PairTable, column: str) -> set[int]:
    return {chunk.buffers()[2].address for chunk in pairs.arrow[column].chunks}


def test_missing_columns_are_filled_in() -> None:
    pairs = PairTable.from_columns({"image": ["a.png", "a.png"], "caption": ["x", "y"]})
    assert pairs.column("pair_id") == ["0", "1"]
    assert pairs.column("image_id") == ["a.png", "a.png"]
    assert pairs.column("label") == [None, None]
    assert pairs.splits() == {"train": 2}
    assert table(gsd=[0.5] * 6).row(2).extra == {"gsd": 0.5}
    assert table().image_path(3) == Path("/data/1.png")


def test_ids_given_as_numbers_become_text() -> None:
    assert table(pair_id=list(range(6))).column("pair_id") == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"caption": ["x", None, "z", "", "", ""]}, "table row 1: caption is empty"),
        ({"pair_id": ["a", "b", "c", "b", "d", "a"]}, "table rows 1 and 3: both have pair_id 'b'"),
        ({"lon": [0, 1, 2, float("nan"), 4, 5]}, "table row 3: lon is nan, outside ±180"),
        ({"lat": [0, 1, None, 3, 4, -90.5]}, "table row 5: lat is -90.5, outside ±90"),
        ({"lat": ["north"] * 6}, "table: lat is not a number"),
        ({"lon": [float("inf")] * 6}, "table row 0: lon is inf"),
    ],
)
def test_bad_columns_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        table(**columns)


def test_required_columns() -> None:
    with pytest.raises(DataError, match=r"a\.csv: no column 'caption'"):
        PairTable.from_columns({"image": ["a.png"]}, source="a.csv")
    with pytest.raises(DataError, match="no column 'gsd'"):
        table().column("gsd")


def test_unknown_coordinates_are_allowed() -> None:
    assert table(lon=[None, 1.0, 2.0, 3.0, 4.0, 180.0]).column("lon")[0] is None


def test_slices_and_contiguous_splits_share_memory() -> None:
    pairs = table(1000)
    assert buffers(pairs.slice(10, 50), "caption") == buffers(pairs, "caption")
    assert buffers(pairs.split("train"), "caption") == buffers(pairs, "caption")
    assert buffers(pairs.with_column("gsd", [1.0] * 1000), "caption") == buffers(pairs, "caption")
    scattered = table(1000, split=["train", "test"] * 500)
    assert scattered.split("test").captions == scattered.captions[1::2]


def test_take_filter_and_split() -> None:
    pairs = table()
    assert pairs.take([4, 0]).captions == ["caption 4", "caption 0"]
    assert pairs.filter([row % 2 == 0 for row in range(6)]).captions == [
        "caption 0",
        "caption 2",
        "caption 4",
    ]
    assert pairs.split("test").captions == ["caption 4", "caption 5"]
    assert pairs.take([0]).root == pairs.root and pairs.take([0]).name == "fake"
    with pytest.raises(DataError, match=r"no split named 'val'\nFix: this dataset has train, test"):
        pairs.split("val")


def test_with_column_adds_or_replaces() -> None:
    pairs = table()
    assert pairs.with_column("caption", ["x"] * 6).captions == ["x"] * 6
    assert pairs.with_column("gsd", [1.0] * 6).column("gsd") == [1.0] * 6
    assert pairs.captions[0] == "caption 0"


@settings(max_examples=100, deadline=None)
@given(strings, st.integers(1, 7))
def test_codes_number_values_by_first_appearance(values: list[str], size: int) -> None:
    seen: dict[str, int] = {}
    expected = [seen.setdefault(value, len(seen)) for value in values]
    found = codes(chunked(values, size))
    assert found.dtype == np.int64
    assert found.tolist() == expected


def test_image_codes_and_first_rows() -> None:
    pairs = table(image=["b", "a", "b", "c", "a", "c"])
    assert pairs.image_codes.tolist() == [0, 1, 0, 2, 1, 2]
    assert pairs.first_rows.tolist() == [0, 1, 3]


@settings(max_examples=100, deadline=None)
@given(strings, st.integers(1, 7))
def test_first_repeated_equals_a_search_by_pairs(values: list[str], size: int) -> None:
    expected = next(
        ((values.index(value), row) for row, value in enumerate(values) if values.index(value) < row), None
    )
    assert first_repeated(chunked(values, size)) == expected


def test_equal_hashes_of_different_strings_are_no_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(first_repeated.__globals__, "hash", len)
    assert first_repeated(chunked(["aa", "bb", "c"], 2)) is None
    assert first_repeated(chunked(["aa", "bb", "c", "bb"], 2)) == (1, 3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=12), st.integers(1, 5)
)
def test_fingerprint_depends_on_content_alone(values: list[str], size: int) -> None:
    whole = {"image": chunked(values, 100), "caption": chunked(values[::-1], 100)}
    parts = {name: chunked(column.to_pylist(), size) for name, column in whole.items()}
    first = PairTable.from_columns(pa.table(whole))
    second = PairTable.from_columns(pa.table(parts), Path("/elsewhere"), "other")
    assert first.fingerprint == second.fingerprint
    padded = PairTable.from_columns({"image": ["-", *values], "caption": ["-", *values[::-1]]}, name="padded")
    sliced = padded.slice(1).with_column("pair_id", first.arrow["pair_id"])
    assert sliced.fingerprint == first.fingerprint


@pytest.mark.parametrize("column", ["pair_id", "image", "caption", "split", "image_id"])
def test_fingerprint_changes_with_each_column_and_order(column: str) -> None:
    pairs = table()
    changed = pairs.column(column)
    changed[3] += "x"
    assert pairs.with_column(column, changed).fingerprint != pairs.fingerprint
    assert pairs.take([1, 0, 2, 3, 4, 5]).fingerprint != pairs.fingerprint
    assert pairs.with_column("gsd", [1.0] * 6).fingerprint == pairs.fingerprint


def test_fingerprint_sees_where_one_string_ends() -> None:
    first = PairTable.from_columns({"image": ["a", "a"], "caption": ["xy", "z"]})
    second = PairTable.from_columns({"image": ["a", "a"], "caption": ["x", "yz"]})
    assert first.fingerprint != second.fingerprint
    assert len(first.slice(0, 0).fingerprint) == 64


def test_parquet_keeps_name_and_root(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    pairs = PairTable(table().arrow, tmp_path / "images", "fake")
    pairs.write_parquet(tmp_path / "tables" / "a.parquet")
    back = read_pairs(tmp_path / "tables" / "a.parquet")
    assert (back.name, back.root.resolve(), back.fingerprint) == ("fake", pairs.root, pairs.fingerprint)
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["a.parquet"]


def test_a_table_shows_itself_in_a_few_lines():
    table = PairTable.from_columns(
        {
            "image": ["a.png"] * 5,
            "caption": ["<b> pond"] * 5,
            "split": ["train"] * 4 + ["test"],
            "sensor": ["x"] * 5,
        }
    )
    assert repr(table).splitlines() == [
        "PairTable pairs: 5 pairs of 1 images (train 4, test 1)",
        "  further columns: sensor",
        *["  a.png: '<b> pond'"] * 3,
    ]
    assert "&lt;b&gt; pond" in table._repr_html_() and "<b>" not in table._repr_html_()
