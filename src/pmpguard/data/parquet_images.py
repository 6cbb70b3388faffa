"""Images inside parquet and Arrow files: a column of bytes, or Hugging Face's `{bytes, path}`.

An image is referred to as `part.parquet#COLUMN/ROW`. A row of a parquet file is read with the others of its
row group, of which the last few stay in memory; an Arrow file is mapped.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmpguard.data.arrow_files import map_arrow
from pmpguard.errors import DataError

PARQUET, ARROW = ".parquet", ".arrow"
BYTES, PATH = "bytes", "path"
KEPT_ROW_GROUPS = 8


def image_columns(schema: pa.Schema) -> list[str]:
    """The columns that hold images."""
    return [field.name for field in schema if is_bytes(field.type) or _is_image_struct(field.type)]


def is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_image_struct(kind: pa.DataType) -> bool:
    inside = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
    return is_bytes(inside.get(BYTES, pa.null())) or (PATH in inside and set(inside) <= {BYTES, PATH})


def image_data(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The bytes of a column that holds images; nulls where it has paths only."""
    if not pa.types.is_struct(column.type):
        return column
    inside = [field.name for field in column.type]
    return pc.struct_field(column, BYTES) if BYTES in inside else pa.nulls(len(column), pa.binary())


def image_reference(file: str, column: str, row: int) -> str:
    """
    >>> image_reference("data/train.parquet", "image", 17)
    'data/train.parquet#image/17'
    """
    return f"{file}#{column}/{row}"


def read_table_image(path: Path, member: str, max_bytes: int) -> bytes:
    """The bytes of one image, `member` being `COLUMN/ROW`."""
    column, _, number = member.rpartition("/")
    if not path.is_file():
        raise DataError(f"{path}: file not found", fix="check the path")
    status = path.stat()
    if path.suffix.lower() == ARROW:
        data = _arrow_row(path, member, status.st_mtime_ns, status.st_size)
        return _checked(data, f"{path} {member}", max_bytes)
    starts = _row_group_starts(path, status.st_mtime_ns, status.st_size)
    row = int(number) if number.isascii() and number.isdigit() else starts[-1]
    if row >= starts[-1]:
        raise DataError(f"{path}: no row {number!r}", fix="read the table again")
    group = bisect_right(starts, row) - 1
    data = _row_group(path, status.st_mtime_ns, status.st_size, column, group)[row - starts[group]].as_py()
    return _checked(data, f"{path} {member}", max_bytes)


def _checked(data: bytes | None, where: str, max_bytes: int) -> bytes:
    if data is None:
        raise DataError(f"{where}: holds no bytes", fix="remove the row")
    if len(data) > max_bytes:
        raise DataError(f"{where}: {len(data):,} bytes, over {max_bytes:,}", fix="remove the row")
    return bytes(data)


def _arrow_row(path: Path, member: str, modified: int, size: int) -> bytes | None:
    name, _, number = member.rpartition("/")
    column = _arrow_column(path, name, modified, size)
    row = int(number) if number.isascii() and number.isdigit() else len(column)
    if row >= len(column):
        raise DataError(f"{path}: no row {number!r}", fix="read the table again")
    data: bytes | None = column[row].as_py()
    return data


@lru_cache(maxsize=64)
def _arrow_column(path: Path, name: str, modified: int, size: int) -> pa.ChunkedArray:
    table = map_arrow(path)
    if name not in image_columns(table.schema):
        raise DataError(f"{path}: no column {name!r} of images", fix="read the table again")
    try:
        table[name].validate(full=True)
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable Arrow file ({error})", fix="save it again") from error
    return image_data(table[name])


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
            described, held = file.metadata, column in image_columns(file.schema_arrow)
            whole = held and is_bytes(file.schema_arrow.field(column).type)
            name = column if whole else f"{column}.{BYTES}"
            held = held and name in [one.path for one in file.schema]
        if not held:
            raise DataError(f"{path}: no column {column!r} of images", fix="read the table again")
        # one image a million times is one image in a dictionary
        with pq.ParquetFile(path, metadata=described, read_dictionary=[name]) as file:
            table = file.read_row_group(group, columns=[name])
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})", fix="write it again") from error
    return image_data(table[column])
