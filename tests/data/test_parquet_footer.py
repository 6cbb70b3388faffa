"""What a parquet file says of its columns: as pyarrow reads it, and an error of ours where it is damaged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pmpguard.data.parquet_footer import column_chunks, footer, read_struct
from pmpguard.errors import DataError


def written(path: Path) -> list[str]:
    columns = {
        "caption": ["a pond", None, "a park"] * 40,
        "words": [["a"], None, ["b", "c"]] * 40,
        "place": [{"lon": 1.5, "name": "here"}] * 120,
        "count": list(range(120)),
        "seen": [True, False, None] * 40,
    }
    pq.write_table(pa.table(columns), path, row_group_size=50)
    return [column.path for column in pq.ParquetFile(path).schema]


def test_it_is_what_pyarrow_reads(tmp_path):
    names = written(tmp_path / "a.parquet")
    described = pq.read_metadata(tmp_path / "a.parquet")
    found = column_chunks(tmp_path / "a.parquet", names)
    assert len(found) == described.num_row_groups == 3
    for number, group in enumerate(found):
        for place, chunk in enumerate(group):
            theirs = described.row_group(number).column(place)
            assert (chunk.path, chunk.values) == (theirs.path_in_schema, theirs.num_values)
            assert chunk.nulls == theirs.statistics.null_count
            assert chunk.is_text == (theirs.physical_type == "BYTE_ARRAY")
            assert chunk.stores_changes == any(name.startswith("DELTA_") for name in theirs.encodings)


def test_every_damaged_byte_gives_a_result_or_an_error_of_ours(tmp_path):
    path = tmp_path / "a.parquet"
    names = written(path)
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole) - len(footer(path)) - 8, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            column_chunks(path, names)
        except DataError as error:
            assert str(path) in error.message
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    "data",
    [b"\x1c" * 50, b"\x19\xfc" + b"\xff" * 9 + b"\x01", b"\x18\xff\xff\xff\x7f", b"\x16" + b"\xff" * 30],
)
def test_nesting_and_numbers_end(data):
    with pytest.raises((ValueError, IndexError)):
        read_struct(data)
