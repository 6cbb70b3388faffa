"""Tables of strangers: bounded in memory before they are decoded.

A parquet file of a hundred kilobytes may stand for twenty million equal rows, or one long caption repeated
a million times. Text is read as the file stores it, a dictionary and numbers, and its size is computed from
those before any of it is written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmpguard.errors import DataError

# What any file may hold, and how many times its own size: real captions shrink to a tenth, not a thousandth.
MIN_ROWS, ROWS_PER_BYTE = 1_000_000, 4
MIN_BYTES, BYTES_PER_BYTE = 1 << 30, 100
ROWS_AT_ONCE = 1 << 16


def read_bounded(path: Path, columns: Sequence[str]) -> pa.Table:
    """The columns of a parquet file; an error names one that holds far more than its size lets expect."""
    with pq.ParquetFile(path) as file:
        check_rows(path, file.metadata.num_rows)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        check_bytes(path, sum(group.total_byte_size for group in groups))
        schema = file.schema_arrow
    texts = [field.name for field in schema if pa.types.is_string(field.type) and field.name in columns]
    parts, decoded = [], 0
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(columns)):
            decoded += sum(map(decoded_bytes, batch.columns))
            check_bytes(path, decoded)
            parts.append(written_out(batch))
    return pa.Table.from_batches(parts) if parts else pq.read_table(path, columns=list(columns))


def decoded_bytes(array: pa.Array) -> int:
    """How much memory an array takes once its dictionary is written out."""
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    lengths = pc.fill_null(pc.binary_length(array.dictionary), 0).to_numpy(zero_copy_only=False)
    chosen = array.indices.drop_null().to_numpy()
    return int(lengths[chosen].sum(dtype=np.int64)) + 4 * len(array)


def written_out(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without dictionaries."""
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


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
