"""What a parquet file says of its columns, read by ourselves.

Asked for a description that is damaged, pyarrow ends the whole process: an error in C++ that nobody catches.
The description is a struct of Apache Thrift's compact protocol at the end of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmpguard.errors import DataError

MAGIC, TAIL = b"PAR1", 8  # the length of the description and the magic bytes
MAX_DEPTH = 16
BYTE_ARRAY, DELTA_ENCODINGS = 6, (6, 7)  # numbers of parquet's own
# Fields of parquet's structs, by number.
ROW_GROUPS, COLUMNS, DESCRIPTION = 4, 1, 3
TYPE, ENCODINGS, VALUES, STATISTICS, NULLS = 1, 2, 5, 12, 3


@dataclass(frozen=True)
class ColumnChunk:
    """A column in one row group."""

    path: str
    is_text: bool  # or bytes
    stores_changes: bool  # each text as the change from the one before
    values: int  # entries of lists counted one by one
    nulls: int | None  # None where it is not said


def column_chunks(path: Path, names: Sequence[str]) -> list[list[ColumnChunk]]:
    """For each row group its columns, whose paths in the schema are `names`."""
    try:
        groups = read_struct(footer(path)).get(ROW_GROUPS, [])
        return [
            [_chunk(name, one[DESCRIPTION]) for name, one in zip(names, group[COLUMNS], strict=True)]
            for group in groups
        ]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise DataError(
            f"{path}: not a readable parquet file (what it says of its columns is damaged)",
            fix="write it again",
        ) from error


def footer(path: Path) -> bytes:
    """The description at the end of a file."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - TAIL))
        tail = stream.read(TAIL)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or length > size - TAIL:
            raise ValueError("no description")
        stream.seek(size - TAIL - length)
        return stream.read(length)


def _chunk(name: str, said: dict[int, Any]) -> ColumnChunk:
    return ColumnChunk(
        name,
        said[TYPE] == BYTE_ARRAY,
        any(encoding in DELTA_ENCODINGS for encoding in said[ENCODINGS]),
        max(0, int(said[VALUES])),
        said.get(STATISTICS, {}).get(NULLS),
    )


def read_struct(data: bytes) -> dict[int, Any]:
    """A struct of Thrift's compact protocol: values by the numbers of their fields.

    >>> read_struct(bytes([0x15, 14, 0x18, 2, 104, 105, 0x19, 0x25, 2, 4, 0]))
    {1: 7, 2: b'hi', 3: [1, 2]}
    """
    return _Reader(data).read_struct(0)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.place:
            raise ValueError("cut short")
        self.place += count
        return self.data[self.place - count : self.place]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            one = self.byte()
            value |= (one & 127) << shift
            shift += 7
            if one < 128:
                return value
            if shift > 63:
                raise ValueError("a number without end")

    def signed(self) -> int:
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

    def read_struct(self, depth: int) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise ValueError("nested without end")
        values: dict[int, Any] = {}
        field = 0
        while kind := self.byte():
            field = field + (kind >> 4) if kind >> 4 else self.signed()
            kind &= 15
            values[field] = kind == 1 if kind in (1, 2) else self.value(kind, depth)
        return values

    def value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):
            return self.signed()
        if kind == 8:
            return self.take(self.unsigned())
        if kind == 12:
            return self.read_struct(depth + 1)
        if kind in (9, 10):
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.unsigned()
            return [self.value(head & 15, depth + 1) for _ in range(self.most(count))]
        if kind == 11:
            count = self.unsigned()
            kinds = self.byte() if count else 0
            return [
                (self.value(kinds >> 4, depth), self.value(kinds & 15, depth))
                for _ in range(self.most(count))
            ]
        widths = {1: 1, 2: 1, 3: 1, 7: 8, 13: 16}  # truths in lists, small numbers, fractions, ids
        return self.take(widths[kind])

    def most(self, count: int) -> int:
        """So many elements cannot be more than the bytes that are left."""
        if count > len(self.data) - self.place:
            raise ValueError("cut short")
        return count
