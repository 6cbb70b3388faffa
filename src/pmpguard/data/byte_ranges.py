"""Shards as bytes that are read from anywhere: a file, the unpacked copy of a compressed one, an address."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pmpguard.data.member_positions import Version
from pmpguard.errors import DataError
from pmpguard.remote import Source, forget_versions, is_remote, remote_version, require_version, url_of

MAX_UNPACKED_BYTES = 16 << 30  # of a compressed shard


class ByteRanges(Protocol):
    """An open file: parts of it, and all of it as a stream."""

    name: str  # its full path or address
    version: Version

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, fewer where the file ends."""
        ...

    def stream(self) -> AbstractContextManager[BinaryIO]: ...

    def require_unchanged(self) -> None:
        """Stop where the file is no longer what it was when it was opened."""
        ...

    def forget(self) -> None:
        """Ask for its size and time anew when it is opened next."""
        ...


class LocalFile:
    """A file of this machine; `content` is where its bytes lie unpacked."""

    def __init__(self, path: Path, descriptor: int, content: int | None = None) -> None:
        self.name = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
        self.descriptor = descriptor
        self.content = descriptor if content is None else content
        self.version = Version.of(os.fstat(descriptor))

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self.content, stop - start, start)

    @contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        with os.fdopen(os.dup(self.content), "rb") as stream:
            stream.seek(0)
            yield stream

    def require_unchanged(self) -> None:
        if Version.of(os.fstat(self.descriptor)) != self.version:
            raise DataError(
                f"{self.name}: changed while it was read", fix="wait until it is whole, then run this again"
            )

    def forget(self) -> None:
        """Every opening asks."""


class RemoteFile:
    """A file at an address."""

    def __init__(self, path: Path) -> None:
        self.name = url_of(path)
        self.version = Version(*remote_version(self.name))
        self.source = Source(self.name)
        self.was_read_whole = False

    def read(self, start: int, stop: int) -> bytes:
        return self.source.read_range(start, stop)

    @contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        self.was_read_whole = True
        with self.source.stream() as stream:
            yield stream

    def require_unchanged(self) -> None:
        """Asked after a whole shard; after one member of it that would take as long as reading it."""
        if self.was_read_whole:
            require_version(self.name, (self.version.size, self.version.modified))
            self.was_read_whole = False

    def forget(self) -> None:
        forget_versions()


@contextmanager
def open_ranges(path: Path) -> Iterator[ByteRanges]:
    """A shard, open for reading from anywhere."""
    if is_remote(path):
        yield RemoteFile(path)
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"{path}: shard not found", fix="check the path") from error
    try:
        packed = not path.name.lower().endswith(".tar")
        status = os.fstat(descriptor)
        copy = _unpacked(path, status.st_mtime_ns, status.st_size).fileno() if packed else None
        yield LocalFile(path, descriptor, copy)
    finally:
        os.close(descriptor)


def file_version(path: Path) -> tuple[int, int]:
    """The size of a file and a number that changes with its content; zeros where it is not there."""
    if is_remote(path):
        return remote_version(url_of(path))
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


@cache
def _unpacked(path: Path, modified: int, size: int) -> Any:
    """A file that is deleted when the process ends."""
    copy = tempfile.NamedTemporaryFile(prefix="pmpguard-", suffix=".tar")  # noqa: SIM115 - open to the end
    try:
        with gzip.open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                copy.write(block)
                if copy.tell() > MAX_UNPACKED_BYTES:
                    raise DataError(
                        f"{path}: over {MAX_UNPACKED_BYTES:,} bytes unpacked", fix="gunzip it first"
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error})", fix="download the shard again") from error
    copy.flush()
    return copy
