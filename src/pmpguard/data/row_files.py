"""Tables as files that several processes map into memory: each reads the rows it works on, and no others."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from pmpguard.data.pairs import NAME, ROOT, PairTable
from pmpguard.errors import DataError
from pmpguard.files import atomic_output
from pmpguard.remote import full_path


def write_rows(table: PairTable, path: Path) -> None:
    """Write a table in Arrow's own layout, with its name and the full path of its root."""
    metadata = {NAME: table.name.encode(), ROOT: str(full_path(table.root)).encode()}
    arrow = table.arrow.replace_schema_metadata(metadata)
    with atomic_output(path) as stream, pa.ipc.new_file(stream, arrow.schema) as writer:
        writer.write_table(arrow)


def open_rows(path: Path, start: int, stop: int) -> PairTable:
    """Some rows of a table that `write_rows` wrote; the others are not read."""
    status = path.stat()
    return _mapped(path, status.st_mtime_ns, status.st_size).slice(start, stop - start)


@lru_cache(maxsize=4)
def _mapped(path: Path, modified: int, size: int) -> PairTable:
    try:
        arrow = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not a table of rows ({error})", fix="give the command again") from error
    metadata = arrow.schema.metadata
    return PairTable(arrow, Path(metadata[ROOT].decode()), metadata[NAME].decode())
