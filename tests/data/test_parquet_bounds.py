"""Small files that stand for huge tables are refused before they are decoded; others are read as they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.arrow_memory import counted_memory

from pmpguard.data import parquet_bounds
from pmpguard.data.formats import read_pairs
from pmpguard.data.parquet_bounds import decoded_bytes, read_bounded
from pmpguard.errors import DataError

WORDS = pa.list_(pa.struct([("word", pa.string()), ("places", pa.list_(pa.int64()))]))


def repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def test_a_few_kilobytes_of_two_million_rows_are_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    with pq.ParquetWriter(path, pa.schema([("image", pa.string()), ("caption", pa.string())])) as file:
        block = pa.table(
            {name: repeated(f"{name}.png", 400_000).cast(pa.string()) for name in ("image", "caption")}
        )
        for _ in range(5):
            file.write_table(block, row_group_size=400_000)
    assert path.stat().st_size < 40_000
    with pytest.raises(DataError, match=r"rows\.parquet: 2,000,000 rows or more in a file of"):
        read_pairs(path)


def test_a_long_caption_a_million_times_is_refused_before_it_is_written_out(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_bounds, "MIN_BYTES", 1 << 26)
    names = pa.array([f"{row}.png" for row in range(100_000)])
    pq.write_table(
        pa.table({"image": names, "caption": repeated("x" * 9_000, 100_000)}), tmp_path / "a.parquet"
    )
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match=r"a\.parquet: [\d,]+ bytes or more"):
        read_bounded(tmp_path / "a.parquet", ["image", "caption"])
    assert pa.total_allocated_bytes() - before < 1 << 20


REPEATED = repeated("x" * 3_000, 10_000)
TEN = range(0, 10_001, 1_000)


@pytest.mark.parametrize(
    "column",
    [
        REPEATED.cast(pa.large_string()),
        pa.ListArray.from_arrays(pa.array(TEN, pa.int32()), REPEATED),
        pa.LargeListArray.from_arrays(pa.array(TEN, pa.int64()), REPEATED),
        pa.StructArray.from_arrays([REPEATED], ["text"]),
        pa.ListArray.from_arrays(pa.array(TEN, pa.int32()), pa.StructArray.from_arrays([REPEATED], ["text"])),
        REPEATED.cast(pa.string()).cast(pa.binary()),
    ],
    ids=lambda column: str(column.type)[:20],
)
def test_repeated_text_is_refused_before_it_is_written_out_wherever_it_lies(tmp_path, monkeypatch, column):
    monkeypatch.setattr(parquet_bounds, "MIN_BYTES", 1 << 22)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"caption": column}), path)
    with counted_memory() as counting, pytest.raises(DataError, match=r"a\.parquet: [\d,]+ bytes or more"):
        read_bounded(path)
    assert path.stat().st_size < 40_000 and 0 < counting.max_memory() < 1 << 21


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_stored_as_changes_are_read(tmp_path: Path, encoding: str) -> None:
    table = pa.table({"caption": [f"pond {row}" for row in range(200)], "captions": [["a", "b"]] * 200})
    columns = {"caption": encoding, "captions.list.element": encoding}
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, column_encoding=columns)
    assert read_bounded(tmp_path / "a.parquet").equals(table)


@pytest.mark.parametrize("rows", [0, 3, 150_000])
def test_ordinary_tables_are_as_pyarrow_reads_them(tmp_path: Path, rows: int) -> None:
    table = pa.table({
        "image": [f"{row}.png" for row in range(rows)],
        "caption": pa.array([f"pond {row}" if row % 7 else None for row in range(rows)], pa.string()),
        "captions": pa.array([["a", "b"]] * rows, pa.list_(pa.string())),
        "words": pa.array([[{"word": "a", "places": [1, 2]}]] * rows, WORDS),
        "tags": pa.array([[("key", "value")]] * rows, pa.map_(pa.string(), pa.string())),
        "note": pa.array(["long"] * rows, pa.large_string()),
        "class": pa.array([3] * rows, pa.int64()),
        "lon": pa.array([1.5] * rows, pa.float64()),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=70_000)
    assert read_bounded(tmp_path / "a.parquet", table.column_names).equals(table)
    assert os.path.getsize(tmp_path / "a.parquet") > 0  # noqa: PTH202


def test_decoded_bytes_are_those_of_the_text():
    values = pa.array(["a", "bcd", None, "a", "a"]).dictionary_encode()
    assert decoded_bytes(values) == len("abcdaa") + 4 * 5
