"""Arrow streams of strangers, mapped into memory: they hold as much as the file is large, or are refused.

A compressed stream may hold a thousand times its size in one batch, and nothing checks that before it is
unpacked.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from pmpguard.data.parquet_bounds import check_bytes, check_rows, decoded_bytes, written_out
from pmpguard.errors import DataError

_HEADER, _COMPRESSION = 2, 3  # fields of the messages' tables


def map_arrow(path: Path) -> pa.Table:
    """The table of an Arrow stream; its columns lie in the file and are read when they are used."""
    status = path.stat()
    return _mapped(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _mapped(path: Path, modified: int, size: int) -> pa.Table:
    try:
        source = pa.memory_map(str(path))
        _refuse_compressed(source, path)
        source.seek(0)
        batches, rows, decoded = [], 0, 0
        with pa.ipc.open_stream(source) as reader:
            for batch in reader:
                rows += batch.num_rows
                check_rows(path, rows)
                decoded += sum(
                    map(decoded_bytes, (c for c in batch.columns if pa.types.is_dictionary(c.type)))
                )
                check_bytes(path, decoded)
                batches.append(written_out(batch))
            return pa.Table.from_batches(batches, None if batches else reader.schema)
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:
        fix = "save it again with datasets.save_to_disk, or write parquet"
        raise DataError(f"{path}: not a readable Arrow stream ({error})", fix=fix) from error


def _refuse_compressed(source: pa.NativeFile, path: Path) -> None:
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type == "record batch" and _is_compressed(bytes(message.metadata)):
            raise DataError(f"{path}: holds compressed columns", fix="write it as parquet")


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message's FlatBuffer names a compression: `Message.header.compression`."""
    (root,) = struct.unpack_from("<I", metadata)
    place = root + _offset(metadata, root, _HEADER)
    (step,) = struct.unpack_from("<I", metadata, place)
    return _offset(metadata, place + step, _COMPRESSION) != 0


def _offset(data: bytes, table: int, field: int) -> int:
    """Where a field of a FlatBuffer table lies within it, 0 where it is not there."""
    (back,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - back)
    place = 4 + 2 * field
    return int(struct.unpack_from("<H", data, table - back + place)[0]) if place < size else 0
