"""Where the members of a shard lie, written once to a cache folder and read from there by every process.

A file for each shard, found by the hash of the shard's full path and believed while the shard has the size
and time it names::

    64 bytes           magic, size and time of the shard, number of members, bits that choose a bucket
    2^bits + 1 uint32  where each bucket begins
    members x 3 int64  hash of the name, first header block, end of the data; sorted by hash

A look-up reads the head and one bucket: its cost does not depend on how many shards there are, and nothing
stays in memory. The positions are hints: the member's own header decides whether it is the one asked for.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pmpguard.errors import PmpguardError
from pmpguard.files import atomic_output, cache_folder
from pmpguard.posix import lock

log = logging.getLogger("pmpguard")
MAGIC = b"PMPSHRD1"
HEAD = struct.Struct("<8sqqqq24x")  # magic, size, time, members, bits
ENTRY = np.dtype([("hash", "<i8"), ("start", "<i8"), ("end", "<i8")])
A_BUCKET = 8  # members on average
LOCKS = 64  # of all shards together, so that few files are left
MAX_IN_MEMORY = 256  # shards, where the cache folder cannot be written to

Scan = Callable[[], Iterable[tuple[str, int, int]]]  # (name, start, end) of every member


@dataclass(frozen=True)
class Version:
    """What tells one content of a file from another."""

    size: int
    modified: int  # ns

    @classmethod
    def of(cls, status: os.stat_result) -> Version:
        return cls(status.st_size, status.st_mtime_ns)


def find_member(shard: str, version: Version, name: str, scan: Scan) -> list[tuple[int, int]]:
    """Where members of that name may lie, as (start, end); `scan` reads the whole shard, where nobody has."""
    key = name_hash(name)
    path = positions_file(shard)
    found = _read(path, version, key)
    if found is None:
        table = _in_memory(shard, version)
        if table is None:
            table = _write(path, shard, version, scan)
        found = None if table is None else _of_table(table, key)
    return found if found is not None else _read(path, version, key) or []


def keep_positions(shard: str, version: Version, entries: Iterable[tuple[str, int, int]]) -> None:
    """Write where the members of a shard lie, for one who has read all of it anyway."""
    _write(positions_file(shard), shard, version, lambda: entries)


def forget(shard: str) -> None:
    """Drop what is known of a shard, so that the next look-up reads it again."""
    positions_file(shard).unlink(missing_ok=True)
    with _memory_lock:
        _memory.pop(shard, None)


def positions_file(shard: str) -> Path:
    """The file for a shard, by its full path or address."""
    digest = hashlib.blake2b(shard.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return cache_folder("shards") / f"{digest}.positions"


def name_hash(name: str) -> int:
    """The same in every process."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _read(path: Path, version: Version, key: int) -> list[tuple[int, int]] | None:
    """The places of a name; None where the file is not there, not of this version, or damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        head = os.pread(descriptor, HEAD.size, 0)
        if len(head) < HEAD.size:
            return None
        magic, size, modified, members, bits = HEAD.unpack(head)
        if magic != MAGIC or (size, modified) != (version.size, version.modified) or not 0 <= bits <= 32:
            return None
        after = HEAD.size + 4 * (2**bits + 1)
        if os.fstat(descriptor).st_size != after + members * ENTRY.itemsize:
            return None
        bounds = np.frombuffer(os.pread(descriptor, 8, HEAD.size + 4 * _bucket(key, bits)), "<u4")
        if not bounds[0] <= bounds[1] <= members:
            return None
        first, last = int(bounds[0]), int(bounds[1])
        wanted = (last - first) * ENTRY.itemsize
        content = os.pread(descriptor, wanted, after + first * ENTRY.itemsize)
        return _of_table(np.frombuffer(content, ENTRY), key) if len(content) == wanted else None
    finally:
        os.close(descriptor)


def _bucket(key: int, bits: int) -> int:
    """The upper bits, in the order of signed numbers."""
    return (key + 2**63) >> (64 - bits)


def _of_table(table: np.ndarray, key: int) -> list[tuple[int, int]]:
    low, high = (int(np.searchsorted(table["hash"], key, side)) for side in ("left", "right"))
    return [(int(start), int(end)) for _, start, end in table[low:high].tolist()]


def _write(path: Path, shard: str, version: Version, scan: Scan) -> np.ndarray | None:
    """Read the shard and write its positions; None when another process has done so meanwhile.

    Without room or right to write they stay in memory, which is said once.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = (path.parent / f"lock-{int(path.name[:8], 16) % LOCKS:02d}").open("a")
    except OSError as error:
        return _remember(shard, version, _table(scan), path.parent, error)
    with stream:
        lock(stream.fileno(), wait=True)  # one reads the shard, the others wait for what it writes
        if _read(path, version, 0) is not None:
            return None
        table = _table(scan)
        bits = max(0, (len(table) // A_BUCKET).bit_length())
        edges = [(bucket << (64 - bits)) - 2**63 for bucket in range(2**bits)]
        bounds = np.append(np.searchsorted(table["hash"], np.array(edges, np.int64)), len(table))
        try:
            with atomic_output(path) as output:
                output.write(HEAD.pack(MAGIC, version.size, version.modified, len(table), bits))
                output.write(bounds.astype("<u4").tobytes())
                output.write(table.tobytes())
        except (OSError, PmpguardError) as error:
            return _remember(shard, version, table, path.parent, error)
        return table


def _table(scan: Scan) -> np.ndarray:
    entries = [(name_hash(name), start, end) for name, start, end in scan()]
    return np.sort(np.array(entries, ENTRY), order=("hash", "start"))


_memory: OrderedDict[str, tuple[Version, np.ndarray]] = OrderedDict()
_memory_lock = threading.Lock()


def _in_memory(shard: str, version: Version) -> np.ndarray | None:
    with _memory_lock:
        if shard not in _memory or _memory[shard][0] != version:
            return None
        _memory.move_to_end(shard)
        return _memory[shard][1]


def _remember(shard: str, version: Version, table: np.ndarray, folder: Path, error: Exception) -> np.ndarray:
    with _memory_lock:
        if not _memory:
            log.warning(
                "%s: member positions of shards cannot be kept there (%s); those of the last %d shards stay "
                "in memory, others are read again. Set PMPGUARD_CACHE to a folder with room",
                folder, getattr(error, "message", error), MAX_IN_MEMORY,
            )  # fmt: skip
        _memory[shard] = (version, table)
        while len(_memory) > MAX_IN_MEMORY:
            _memory.popitem(last=False)
    return table
