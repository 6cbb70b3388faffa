"""Images inside parquet files, as Hugging Face stores them: a column of `{bytes, path}`.

An image is referred to as `part.parquet#COLUMN/ROW`. A row is read with the others of its row group, of which
the last few stay in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmpguard.errors import DataError

PARQUET = ".parquet"
BYTES, PATH = "bytes", "path"
KEPT_ROW_GROUPS = 8


def image_structs(schema: pa.Schema) -> list[str]:
    """The columns that hold images."""
    return [
        field.name
        for field in schema
        if pa.types.is_struct(field.type) and {child.name for child in field.type} & {BYTES, PATH}
    ]


def image_reference(file: str, column: str, row: int) -> str:
    """
    >>> image_reference("data/train.parquet", "image", 17)
    'data/train.parquet#image/17'
    """
    return f"{file}#{column}/{row}"


def read_parquet_image(path: Path, member: str, max_bytes: int) -> bytes:
    """The bytes of one image, `member` being `COLUMN/ROW`."""
    column, _, number = member.rpartition("/")
    if not path.is_file():
        raise DataError(f"{path}: file not found", fix="check the path")
    status = path.stat()
    starts = _row_group_starts(path, status.st_mtime_ns, status.st_size)
    row = int(number) if number.isascii() and number.isdigit() else starts[-1]
    if row >= starts[-1]:
        raise DataError(f"{path}: no row {number!r}", fix="read the table again")
    group = bisect_right(starts, row) - 1
    data = _row_group(path, status.st_mtime_ns, status.st_size, column, group)[row - starts[group]].as_py()
    if data is None:
        raise DataError(f"{path} row {row}: {column} holds no bytes", fix="remove the row")
    if len(data) > max_bytes:
        raise DataError(f"{path} row {row}: {len(data):,} bytes, over {max_bytes:,}", fix="remove the row")
    return bytes(data)


@lru_cache(maxsize=256)
def _row_group_starts(path: Path, modified: int, size: int) -> list[int]:
    """The first row of every row group, then the number of rows."""
    try:
        described = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})", fix="write it again") from error
    counts = (described.row_group(number).num_rows for number in range(described.num_row_groups))
    return [0, *accumulate(counts)]


@lru_cache(maxsize=KEPT_ROW_GROUPS)
def _row_group(path: Path, modified: int, size: int, column: str, group: int) -> pa.ChunkedArray:
    try:
        with pq.ParquetFile(path) as file:
            table = file.read_row_group(group, columns=[f"{column}.{BYTES}"])
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})", fix="write it again") from error
    if column not in table.column_names:
        raise DataError(f"{path}: no column {column!r} of images", fix="read the table again")
    return pc.struct_field(table[column], BYTES)
