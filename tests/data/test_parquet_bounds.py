"""Small files that stand for huge tables are refused before they are decoded; others are read as they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pmpguard.data import parquet_bounds
from pmpguard.data.formats import read_pairs
from pmpguard.data.parquet_bounds import decoded_bytes, read_bounded
from pmpguard.errors import DataError


def repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def test_a_hundred_kilobytes_of_twenty_million_rows_are_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    with pq.ParquetWriter(path, pa.schema([("image", pa.string()), ("caption", pa.string())])) as file:
        block = pa.table(
            {name: repeated(f"{name}.png", 4_000_000).cast(pa.string()) for name in ("image", "caption")}
        )
        for _ in range(5):
            file.write_table(block, row_group_size=4_000_000)
    assert path.stat().st_size < 400_000
    with pytest.raises(DataError, match=r"rows\.parquet: 20,000,000 rows or more in a file of"):
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


@pytest.mark.parametrize("rows", [0, 3, 150_000])
def test_ordinary_tables_are_as_pyarrow_reads_them(tmp_path: Path, rows: int) -> None:
    table = pa.table({
        "image": [f"{row}.png" for row in range(rows)],
        "caption": pa.array([f"pond {row}" if row % 7 else None for row in range(rows)], pa.string()),
        "captions": pa.array([["a", "b"]] * rows, pa.list_(pa.string())),
        "lon": pa.array([1.5] * rows, pa.float64()),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_bounded(tmp_path / "a.parquet", table.column_names).equals(table)
    assert os.path.getsize(tmp_path / "a.parquet") > 0  # noqa: PTH202


def test_decoded_bytes_are_those_of_the_text():
    values = pa.array(["a", "bcd", None, "a", "a"]).dictionary_encode()
    assert decoded_bytes(values) == len("abcdaa") + 4 * 5
