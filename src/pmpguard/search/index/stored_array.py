"""Arrays that stay on disk and whose files may be cut short or replaced by anyone at any time.

Touching a memory map of a file that has been truncated kills the process. Rows are read here by the system
call that says how much there was: a file that is shorter than it was, or another one by now, is an error.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from pmpguard.errors import DataError, PmpguardError
from pmpguard.posix import READ, read_into

READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


MAX_KEPT_DESCRIPTORS = 256  # of the process; the files of further arrays are opened for every read
_kept: set[int] = set()
_keeping = threading.Lock()


class StoredArray:
    """The rows of a `.npy` file. Nothing but its header is read.

    The file stays open where few are, so that an index that is deleted can still be read to the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_lost = False  # found changed: whoever has opened the array must open it again
        try:
            with path.open("rb") as stream:
                version = np.lib.format.read_magic(stream)
                self.shape, by_columns, self.dtype = READERS[version](stream)
                self._offset = stream.tell()
                self._identity = _identity(stream.fileno())
                self._kept = _keep(self, stream.fileno())
        except (OSError, ValueError, EOFError, KeyError, TypeError, SyntaxError, TokenError) as error:
            raise DataError(
                f"{path}: not a plain .npy array, or missing ({error})", fix="restore it, or embed again"
            ) from error
        if by_columns or self.dtype.hasobject or not self.shape:
            raise DataError(f"{path}: not an array of plain rows", fix="restore it, or embed again")
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        if self._offset + self.row_bytes * len(self) > path.stat().st_size:
            raise DataError(f"{path}: is cut off", fix="restore it, or embed again")

    def __len__(self) -> int:
        return int(self.shape[0])

    def rows(self, wanted: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """(R, ...) some rows, in the given order."""
        found = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        with self._opened() as descriptor:
            for place in np.argsort(wanted, kind="stable"):  # in the order of the disk
                self._read(descriptor, found[place : place + 1], int(wanted[place]))
        return found

    def will_need(self, wanted: npt.NDArray[np.int64]) -> None:
        """Have some rows brought into memory, without waiting for it: a disk reads many faster together."""
        if not hasattr(os, "posix_fadvise"):  # macOS
            return
        with self._opened() as descriptor:
            for row in wanted.tolist():
                offset = self._offset + row * self.row_bytes
                os.posix_fadvise(descriptor, offset, self.row_bytes, os.POSIX_FADV_WILLNEED)

    def rows_from(self, first: int) -> npt.NDArray[Any]:
        """(N - first, ...) the rows from `first` on."""
        found = np.empty((max(0, len(self) - first), *self.shape[1:]), self.dtype)
        with self._opened() as descriptor:
            self._read(descriptor, found, first)
        return found

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            descriptor = os.open(self.path, READ) if self._kept is None else self._kept
        except OSError as error:
            raise self._lost(error.strerror or "it cannot be opened") from error
        try:
            if _identity(descriptor) != self._identity:
                raise self._lost("it is not what it was")
            yield descriptor
        finally:
            if self._kept is None:
                os.close(descriptor)

    def _read(self, descriptor: int, into: npt.NDArray[Any], first: int) -> None:
        left = memoryview(into.reshape(-1).view(np.uint8).data)
        offset = self._offset + first * self.row_bytes
        while len(left):
            count = read_into(descriptor, left, offset)
            if not count:
                raise self._lost("it has been cut short")
            left, offset = left[count:], offset + count

    def _lost(self, why: str) -> PmpguardError:
        self.is_lost = True
        return PmpguardError(
            f"{self.path}: {why}, while the index was in use",
            fix="restore it, or build the index again; pmpguard index verify names what is damaged",
        )


def _identity(descriptor: int) -> tuple[int, ...]:
    """What changes when a file is written to or replaced."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _keep(array: StoredArray, descriptor: int) -> int | None:
    """A descriptor of its own for as long as the array lives, None where there are many."""
    with _keeping:
        if len(_kept) >= MAX_KEPT_DESCRIPTORS:
            return None
        kept = os.dup(descriptor)
        _kept.add(kept)
    weakref.finalize(array, _let_go, kept)
    return kept


def _let_go(descriptor: int) -> None:
    _kept.discard(descriptor)
    os.close(descriptor)
