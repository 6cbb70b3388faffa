"""Tables of strangers: bounded in memory before they are decoded.

A parquet file of a hundred kilobytes may stand for twenty million equal rows, or one long caption repeated
a million times. Text is read as the file stores it, a dictionary and numbers, also inside lists and structs,
and its size is computed from those before any of it is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from pmpguard.data.parquet_footer import column_chunks
from pmpguard.errors import DataError

# What any file may hold, and how many times its own size: real captions shrink to a tenth, not a thousandth.
MIN_ROWS, ROWS_PER_BYTE = 1_000_000, 4
MIN_BYTES, BYTES_PER_BYTE = 1 << 30, 100
ROWS_AT_ONCE, WRITTEN_OUT_AT_ONCE = 1 << 16, 64
NUMBER, WIDEST = 4, 16  # bytes of a place in a dictionary or list, and of what is no text


def read_bounded(path: Path, columns: Sequence[str] | None = None, fix: str = "write it again") -> pa.Table:
    """Columns of a parquet file, all by default; an error names a file that cannot be read.

    So it does one that holds far more than its size lets expect.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema, described = file.schema_arrow, file.metadata
            names = list(schema.names if columns is None else columns)
            check_rows(path, described.num_rows)
            groups = [described.row_group(number) for number in range(described.num_row_groups)]
            check_bytes(path, sum(group.total_byte_size for group in groups))
            tops = {name.partition(".")[0] for name in names}
            found = chain(*column_chunks(path, [column.path for column in file.schema]))
            chunks = [chunk for chunk in found if chunk.path.partition(".")[0] in tops]
            check_bytes(path, NUMBER * sum(chunk.values for chunk in chunks))
        texts = [chunk for chunk in chunks if chunk.is_text]
        dictionaries, rows = sorted({chunk.path for chunk in texts}), ROWS_AT_ONCE
        if any(chunk.stores_changes for chunk in texts):  # there is no dictionary, and it may be far larger
            dictionaries, rows = [], WRITTEN_OUT_AT_ONCE
        parts, decoded = [], 0
        with pq.ParquetFile(path, metadata=described, read_dictionary=dictionaries) as file:
            for number in range(file.num_row_groups):  # a batch of two groups would have two dictionaries
                for batch in file.iter_batches(rows, [number], names):
                    batch.validate(full=True)
                    decoded += sum(map(decoded_bytes, batch.columns))
                    check_bytes(path, decoded)
                    parts.append(written_out(batch, schema))
        table = pa.Table.from_batches(parts) if parts else pq.read_table(path, columns=names)
        return table.replace_schema_metadata(schema.metadata)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})", fix=fix) from error


def column_names(path: Path) -> list[str]:
    """The names of a parquet file's columns."""
    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        fix = "restore it from a copy"
        raise DataError(f"{path}: not a readable parquet file ({error})", fix=fix) from error


def decoded_bytes(array: pa.Array) -> int:
    """How much memory an array takes once its dictionaries are written out."""
    if types.is_struct(array.type):
        return sum(map(decoded_bytes, array.flatten()))
    if types.is_map(array.type):
        return NUMBER * len(array) + decoded_bytes(array.keys) + decoded_bytes(array.items)
    if types.is_nested(array.type) and hasattr(array, "flatten"):
        return NUMBER * len(array) + decoded_bytes(array.flatten())
    if not types.is_dictionary(array.type):
        return int(array.nbytes)
    held = array.type.value_type
    if not (types.is_large_string(held) or types.is_string(held) or types.is_binary(held)):
        return WIDEST * len(array)
    lengths = pc.fill_null(pc.binary_length(array.dictionary), 0).to_numpy(zero_copy_only=False)
    chosen = array.indices.drop_null().to_numpy()
    return int(lengths[chosen].sum(dtype=np.int64)) + NUMBER * len(array)


def written_out(batch: pa.RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """The batch without dictionaries; of the schema's types, where those are large."""
    columns, stored_types = [], {} if schema is None else {field.name: field.type for field in schema}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        wanted = _written_type(field.type)
        stored = stored_types.get(field.name, wanted)
        large = types.is_large_string(stored) or types.is_large_binary(stored)
        columns.append(column.cast(stored if large else wanted))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _written_type(kind: pa.DataType) -> pa.DataType:
    """The type with every dictionary replaced by what it holds."""
    if types.is_dictionary(kind):
        return kind.value_type
    if types.is_struct(kind):
        return pa.struct([field.with_type(_written_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_written_type(kind.key_type), _written_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        of = pa.list_ if types.is_list(kind) else pa.large_list
        return of(kind.value_field.with_type(_written_type(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_written_type(kind.value_type)), kind.list_size)
    return kind


def check_rows(path: Path, found: int) -> None:
    _check(path, "rows", found, max(MIN_ROWS, ROWS_PER_BYTE * path.stat().st_size))


def check_bytes(path: Path, found: int) -> None:
    _check(path, "bytes", found, max(MIN_BYTES, BYTES_PER_BYTE * path.stat().st_size))


def _check(path: Path, what: str, found: int, most: int) -> None:
    if found > most:
        raise DataError(
            f"{path}: {found:,} {what} or more in a file of {path.stat().st_size:,} bytes, over {most:,}",
            fix="nearly all of it is the same: check where the file comes from, or split it",
        )
