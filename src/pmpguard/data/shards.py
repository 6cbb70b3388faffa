"""Tar shards: webdataset samples and RS5M's layout, read at random, never extracted or unpickled.

The tar headers are read here, not by a general tar reader, because a shard may come from anywhere: links,
devices, names that leave the folder, endless member lists and huge members are refused before any of their
bytes are read. Nothing is ever written to the names in a shard.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pmpguard.data.byte_ranges import ByteRanges, open_ranges
from pmpguard.data.member_positions import find_member, forget, keep_positions
from pmpguard.data.parquet_images import ARROW, PARQUET, read_table_image
from pmpguard.data.text_files import decode
from pmpguard.errors import DataError
from pmpguard.remote import is_remote, remote_files

BLOCK = 512
MAX_MEMBERS = 500_000
MAX_MEMBER_BYTES = 256 << 20
MAX_EXTENSION_BYTES = 1 << 16
IMAGE_ENDINGS = ("jpg", "jpeg", "png", "tif", "tiff", "webp", "bmp", "img_content")
SHARD_ENDINGS = (".tar", ".tar.gz", ".tgz")
_REFERENCE = re.compile(r"(.*?\.(?:tar|tar\.gz|tgz|parquet|arrow|npy))#", re.IGNORECASE | re.DOTALL)
_REGULAR = (b"0", b"\0")
_REFUSED = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a pipe"}


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in a shard: `start` is its first header block, `data` its first byte."""

    name: str
    start: int
    data: int
    size: int


def iter_members(
    stream: BinaryIO, shard: str, start: int = 0, max_bytes: int = MAX_MEMBER_BYTES
) -> Iterator[Member]:
    """The regular files of a plain tar from offset `start` on; anything unsafe is an error naming it."""
    length = stream.seek(0, os.SEEK_END)
    offset, first, long_name, attributes = start, start, "", dict[str, str]()
    for count in itertools.count():
        stream.seek(offset)
        header = stream.read(BLOCK)
        if not header.strip(b"\0"):
            return
        _check_header(header, shard, offset)
        kind, size = header[156:157], _number(header[124:136], shard, offset)
        name = long_name or attributes.get("path") or _short_name(header, shard, offset)
        size = int(attributes["size"]) if re.fullmatch(r"[0-9]{1,19}", attributes.get("size", "")) else size
        data = offset + BLOCK
        where = f"{shard} member {name!r}"
        if count >= MAX_MEMBERS:
            raise DataError(f"{where}: over {MAX_MEMBERS:,} members", fix="split it into smaller shards")
        if kind in _REFUSED or any(key.startswith("GNU.sparse") for key in attributes):
            raise DataError(
                f"{where}: is {_REFUSED.get(kind, 'a sparse file')}", fix="store regular files only"
            )
        limit = MAX_EXTENSION_BYTES if kind in (b"L", b"K", b"x", b"g") else max_bytes
        if size > limit:
            raise DataError(f"{where}: {size:,} bytes, over {limit:,}", fix="remove it from the shard")
        if data + size > length:
            raise DataError(f"{where}: cut off, the file ends too early", fix="download the shard again")
        offset = data + (size + BLOCK - 1) // BLOCK * BLOCK
        if kind == b"L":
            long_name = decode(stream.read(size).rstrip(b"\0"), where)
            continue
        if kind == b"x":
            attributes = _pax_attributes(stream.read(size), where)
            continue
        if kind not in (*_REGULAR, b"5", b"K", b"g"):
            raise DataError(f"{where}: is of the unknown type {kind!r}", fix="store regular files only")
        _check_name(name, shard)
        if kind in _REGULAR and not name.endswith("/"):
            yield Member(name, first, data, size)
        first, long_name, attributes = offset, "", {}


def _check_header(header: bytes, shard: str, offset: int) -> None:
    if _is_header(header):
        return
    fix = "name it .tar.gz" if header[:2] == b"\x1f\x8b" else "download the shard again"
    raise DataError(f"{shard}: not a plain tar file or damaged at byte {offset}", fix=fix)


def _is_header(header: bytes) -> bool:
    """Whether a block's checksum says that it is a header."""
    told = re.fullmatch(rb"[ \0]*([0-7]{1,7})[ \0]*", header[148:156])
    if len(header) != BLOCK or told is None:
        return False
    return sum(header) - sum(header[148:156]) + 8 * ord(" ") == int(told[1], 8)


def _number(digits: bytes, shard: str, offset: int) -> int:
    """A tar number: octal text, or base 256 when the first bit is set."""
    if digits[0] & 0x80:
        return int.from_bytes(digits, "big") & ((1 << (8 * len(digits) - 1)) - 1)
    text = digits.strip(b"\0 ")
    if not re.fullmatch(rb"[0-7]*", text):
        raise DataError(f"{shard}: not a plain tar file or damaged at byte {offset}", fix="download it again")
    return int(text or b"0", 8)


def _short_name(header: bytes, shard: str, offset: int) -> str:
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return decode(prefix + b"/" + name if prefix else name, f"{shard} member at byte {offset}")


def _pax_attributes(data: bytes, where: str) -> dict[str, str]:
    """The `length key=value` records of an extended header."""
    attributes = {}
    while data.strip(b"\0"):
        digits, _, _ = data.partition(b" ")
        length = int(digits) if re.fullmatch(rb"[0-9]{1,6}", digits) else 0
        key, equals, value = data[len(digits) + 1 : length].partition(b"=")
        if not equals or length > len(data):
            raise DataError(f"{where}: damaged extended header", fix="download the shard again")
        attributes[decode(key, where)] = value.removesuffix(b"\n").decode("utf-8", "replace")
        data = data[length:]
    return attributes


def _check_name(name: str, shard: str) -> None:
    if name.startswith("/") or ".." in PurePosixPath(name).parts or "\\" in name or "\0" in name:
        raise DataError(f"{shard} member {name!r}: the name leaves the folder", fix="rename it in the shard")


@contextmanager
def open_shard(path: Path) -> Iterator[tuple[BinaryIO, Iterator[Member]]]:
    """A shard as a stream of a plain tar file, and its members.

    Where those of a shard at an address lie is kept, if all of them are asked for: it need not be read again.
    """
    with open_ranges(path) as source, source.stream() as stream:
        places: list[tuple[str, int, int]] = []
        is_whole = False

        def members() -> Iterator[Member]:
            nonlocal is_whole
            for member in iter_members(stream, str(path)):
                if is_remote(path):
                    places.append((member.name, member.start, member.data + member.size))
                yield member
            is_whole = True

        yield stream, members()
        if is_whole:
            source.require_unchanged()
            if is_remote(path):
                keep_positions(source.name, source.version, places)


def is_shard(path: Path) -> bool:
    """Whether a name is that of a tar file, compressed by gzip or not."""
    return path.name.lower().endswith(SHARD_ENDINGS)


def read_member(path: Path, member: str, max_bytes: int = MAX_MEMBER_BYTES) -> bytes:
    """The bytes of one member of a shard, or of one row of a table's file; over `max_bytes` is an error."""
    if path.suffix.lower() in (PARQUET, ARROW):
        return read_table_image(path, member, max_bytes)
    if path.suffix.lower() == ".npy":
        raise DataError(f"{path}: holds no images", fix="it has features; audit with given embeddings")
    for _ in range(2):
        with open_ranges(path) as source:
            data = _find(source, member, max_bytes)
            if data is not None:
                source.require_unchanged()
                return data
            if source.name in _read_again:
                break
            _read_again.add(source.name)  # positions may be of another content, or damaged
            source.forget()
            forget(source.name)
    raise DataError(f"{path}: no member {member!r}", fix="rebuild the table from the shards")


_read_again: set[str] = set()  # shards whose positions were wrong


def _find(source: ByteRanges, member: str, max_bytes: int) -> bytes | None:
    """A member by its positions; None where they lead to something else."""

    def scan() -> Iterator[tuple[str, int, int]]:
        with source.stream() as stream:
            for each in iter_members(stream, source.name):
                yield each.name, each.start, each.data + each.size
        source.require_unchanged()

    for start, end in find_member(source.name, source.version, member, scan):
        most = min(end - start, max_bytes + 4 * MAX_EXTENSION_BYTES)
        stream = io.BytesIO(source.read(start, start + most))
        if not _is_header(stream.getvalue()[:BLOCK]):
            return None
        found = next(iter_members(stream, source.name, max_bytes=max_bytes), None)
        if found is not None and found.name == member:
            return _read(stream, found)
    return None


def _read(stream: BinaryIO, member: Member) -> bytes:
    stream.seek(member.data)
    return stream.read(member.size)


def split_reference(image: str) -> tuple[str, str | None]:
    """`shard.tar#member` or `part.parquet#image/row` as its two parts; a plain path has no member.

    >>> split_reference("train-0.tar#17.jpg"), split_reference("a.jpg")
    (('train-0.tar', '17.jpg'), ('a.jpg', None))
    """
    found = _REFERENCE.match(image)
    return (found[1], image[found.end() :]) if found else (image, None)


def expand_pattern(pattern: str) -> list[Path]:
    """The shards meant by `{pub11,rs3}-train-{0000..0031}.tar` or `train-*.tar`, in order; all must exist.

    >>> [str(path) for path in _expand_braces("a-{08..10}-{x,y}")][:3]
    ['a-08-x', 'a-08-y', 'a-09-x']
    """
    paths = [Path(name) for name in _expand_braces(pattern)]
    if is_remote(pattern):
        return [found for path in paths for found in remote_files(path)]
    if any(symbol in pattern for symbol in "*?["):
        paths = [found for path in paths for found in sorted(path.parent.glob(path.name))]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        named = missing[0] if missing else pattern
        raise DataError(
            f"{named}: shard not found ({len(missing)} of {len(paths)} missing)", fix="check the pattern"
        )
    return paths


def _expand_braces(pattern: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if not 0 <= last - first < 100_000:
            raise DataError(
                f"{pattern}: {found[0]} is no range of at most 100,000 shards", fix="check the pattern"
            )
        choices = [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]
    else:
        choices = found[1].split(",")
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [f"{before}{choice}{rest}" for choice in choices for rest in _expand_braces(after)]
