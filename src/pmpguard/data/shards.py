"""Tar shards: webdataset samples and RS5M's layout, read at random, never extracted or unpickled.

The tar headers are read here, not by a general tar reader, because a shard may come from anywhere: links,
devices, names that leave the folder, endless member lists and huge members are refused before any of their
bytes are read. Nothing is ever written to the names in a shard.

A sample is a run of members that share a key (the name up to the first dot of its last part)::

    000017.jpg  000017.txt  000017.json          webdataset
    000017.img_content  000017.img_name  000017.caption          RS5M
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from pmpguard.data.parquet_images import PARQUET, read_parquet_image
from pmpguard.data.text_files import decode, parse_json
from pmpguard.errors import DataError

BLOCK = 512
MAX_MEMBERS = 500_000
MAX_MEMBER_BYTES = 256 << 20
MAX_TEXT_BYTES = 1 << 20
MAX_EXTENSION_BYTES = 1 << 16
IMAGE_ENDINGS = ("jpg", "jpeg", "png", "tif", "tiff", "webp", "bmp", "img_content")
CAPTION_ENDINGS = ("caption", "txt")
SHARD_ENDINGS = (".tar", ".tar.gz", ".tgz")
MAX_UNPACKED_BYTES = 16 << 30  # of a compressed shard
_REFERENCE = re.compile(r"(.*?\.(?:tar|tar\.gz|tgz|parquet))#", re.IGNORECASE | re.DOTALL)
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
    if len(header) == BLOCK:
        unsigned = sum(header) - sum(header[148:156]) + 8 * ord(" ")
        if unsigned == _number(header[148:156], shard, offset):
            return
    fix = "name it .tar.gz" if header[:2] == b"\x1f\x8b" else "download the shard again"
    raise DataError(f"{shard}: not a plain tar file or damaged at byte {offset}", fix=fix)


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


@dataclass(frozen=True)
class ShardIndex:
    """Where each member of a shard starts, found by name: 16 bytes a member, so that many fit in memory."""

    hashes: np.ndarray  # (members,) int64, sorted
    starts: np.ndarray  # (members,) int64

    def starts_of(self, name: str) -> list[int]:
        """The offsets at which a member of that name may start (names may collide; the header decides)."""
        low, high = (
            np.searchsorted(self.hashes, hash(name), "left"),
            np.searchsorted(self.hashes, hash(name), "right"),
        )
        return [int(start) for start in self.starts[low:high]]


def is_shard(path: Path) -> bool:
    """Whether a name is that of a tar file, compressed by gzip or not."""
    return path.name.lower().endswith(SHARD_ENDINGS)


def plain_tar(path: Path) -> Path:
    """The shard itself, or the uncompressed copy of a compressed one, kept until the process ends."""
    if not path.is_file():
        raise DataError(f"{path}: shard not found", fix="check the path")
    if path.name.lower().endswith(".tar"):
        return path
    status = path.stat()
    return Path(_unpacked(path, status.st_mtime_ns, status.st_size).name)


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


def index_shard(path: Path) -> ShardIndex:
    """The index of a shard, kept in memory until the file changes."""
    if not path.is_file():
        raise DataError(f"{path}: shard not found", fix="check the path")
    status = path.stat()
    return _index(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _index(path: Path, modified: int, size: int) -> ShardIndex:
    with plain_tar(path).open("rb") as stream:
        found = [(hash(member.name), member.start) for member in iter_members(stream, str(path))]
    table = np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
    return ShardIndex(table[:, 0].copy(), table[:, 1].copy())


def read_member(path: Path, member: str, max_bytes: int = MAX_MEMBER_BYTES) -> bytes:
    """The bytes of one member of a shard, or of one row of a parquet file; over `max_bytes` is an error."""
    if path.suffix.lower() == PARQUET:
        return read_parquet_image(path, member, max_bytes)
    starts = index_shard(path).starts_of(member)
    with plain_tar(path).open("rb") as stream:
        for start in starts:
            found = next(iter_members(stream, str(path), start))
            if found.name == member:
                if found.size > max_bytes:
                    raise DataError(
                        f"{path} member {member!r}: {found.size:,} bytes, over {max_bytes:,}",
                        fix="raise the limit or leave the image out",
                    )
                return _read(stream, found)
    raise DataError(f"{path}: no member {member!r}", fix="rebuild the table from the shards")


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


def group_samples(members: Iterator[Member], shard: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """Runs of members with one key, as (key, ending -> member)."""
    for key, run in itertools.groupby(members, lambda member: _key_and_ending(member.name)[0]):
        sample: dict[str, Member] = {}
        for member in run:
            ending = _key_and_ending(member.name)[1]
            if ending in sample:
                raise DataError(
                    f"{shard} sample {key!r}: two members end in .{ending}",
                    fix="give every sample its own key, without dots",
                )
            sample[ending] = member
        yield key, sample


def _key_and_ending(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    key, _, ending = last.partition(".")
    return folder + slash + key, ending.lower()


def describe_sample(
    stream: BinaryIO, path: Path, key: str, members: dict[str, Member]
) -> tuple[Member, tuple[str, ...], dict[str, Any]]:
    """A sample's image (not read), its captions and what its `.json` says besides.

    Captions come from `.json` when it has a list (`captions`, `caption`), else from `.caption` or `.txt`
    (also `.caption.txt`), else from `caption` or `text` in `.json`.
    """
    where = f"{path} sample {key!r}"
    images = [member for ending, member in members.items() if ending.rpartition(".")[2] in IMAGE_ENDINGS]
    if len(images) != 1:
        fix = f"one of {', '.join(f'.{ending}' for ending in IMAGE_ENDINGS)}; found .{', .'.join(members)}"
        raise DataError(f"{where}: {len(images)} images instead of one", fix=fix)
    wanted = {ending for ending in members if ending.rpartition(".")[2] in ("json", *CAPTION_ENDINGS)}
    texts = {
        ending: decode(_read_text(stream, members[ending], where), f"{path} member {members[ending].name!r}")
        for ending in sorted(wanted | ({"img_name"} & members.keys()))
    }
    metadata = parse_json(texts["json"], f"{path} member {members['json'].name!r}") if "json" in texts else {}
    if not isinstance(metadata, dict):
        raise DataError(f"{where}: its .json is no object", fix='write {"caption": ...}')
    if "img_name" in texts:
        metadata["img_name"] = texts["img_name"]
    written = [text for kind in CAPTION_ENDINGS for ending, text in texts.items() if _ends(ending, kind)]
    named = next((name for name in ("caption", "text") if name in metadata), None)
    listed = metadata.pop("captions", None)
    single = metadata.pop(named) if named and (named == "caption" or not written) else None
    if listed is None:
        listed = single if isinstance(single, list) else written[:1] or ([] if single is None else [single])
    if not isinstance(listed, list) or not listed:
        found = ", ".join(f".{ending}" for ending in members)
        raise DataError(
            f"{where}: no caption",
            fix=f'found {found}; add a .txt, a .caption or a .json with "caption" or "text"',
        )
    return images[0], tuple(listed), metadata


def _ends(ending: str, kind: str) -> bool:
    return ending == kind or ending.endswith(f".{kind}")


def _read_text(stream: BinaryIO, member: Member, where: str) -> bytes:
    if member.size > MAX_TEXT_BYTES:
        raise DataError(f"{where}: {member.name} has {member.size:,} bytes, over {MAX_TEXT_BYTES:,}")
    return _read(stream, member)


def expand_pattern(pattern: str) -> list[Path]:
    """The shards meant by `{pub11,rs3}-train-{0000..0031}.tar` or `train-*.tar`, in order; all must exist.

    >>> [str(path) for path in _expand_braces("a-{08..10}-{x,y}")][:3]
    ['a-08-x', 'a-08-y', 'a-09-x']
    """
    paths = [Path(name) for name in _expand_braces(pattern)]
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
