"""Files that are either whole or absent: atomic writes, hashes, verified directories, locks, names.

An artefact (model, checkpoint, index) is a directory written under a temporary name next to its final
place, synced, and renamed; its manifest of hashes is written last. Whoever is killed half-way leaves the
previous version untouched and a `.tmp-*` leftover, which the next writer removes.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pmpguard.errors import DataError, PmpguardError

MANIFEST = "manifest.json"
MAX_NAME_CHARACTERS = 100
MAX_SYNCED_ONE_BY_ONE = 200  # files of a directory; more are flushed by one sync of the machine
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}-.+", re.DOTALL)


def sha256_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush one file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace `path` with `content` in one step; a crash leaves the old file or the new one."""
    with atomic_output(path) as stream:
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_output(path: Path) -> Iterator[BinaryIO]:
    """A stream that becomes `path` when the block ends without an error; otherwise nothing is left.

    The folder is made if it is not there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    try:
        with temporary.open("wb") as stream:
            _try_lock(stream.fileno())
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def require_writable(folder: Path) -> None:
    """Stop when files cannot be written into `folder`, which need not be there yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise PmpguardError(f"{folder}: {there} is a file, not a folder", fix="choose another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PmpguardError(f"{folder}: {there} cannot be written to", fix="choose another folder")


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def plain_value(value: Any) -> Any:
    """A value as JSON can hold it: times as ISO 8601, arrays as lists, numbers that are not finite as null.

    >>> plain_value({"a": 0.5, "b": math.nan, "c": datetime.date(2024, 5, 1), "d": (1, None)})
    {'a': 0.5, 'b': None, 'c': '2024-05-01', 'd': [1, None]}
    """
    if callable(getattr(value, "tolist", None)):  # an array, a tensor, a number of one
        return plain_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence | set) and not isinstance(value, bytes):
        return [plain_value(item) for item in value]
    return str(value)


def file_name_of(text: str) -> str:
    """A name that is safe as one part of a path and in a web address; different texts get different names.

    Letters, digits and `._-` stay. A text that holds anything else, or is long, also gets its hash.

    >>> file_name_of("paris_2024.v2"), file_name_of("../paris")
    ('paris_2024.v2', 'paris-be5a6fc78f')
    """
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:MAX_NAME_CHARACTERS]
    if readable == text and text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    return f"{readable}-{digest}" if readable else digest


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PmpguardError(f"{path}: file not found") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested without end
        raise PmpguardError(f"{path}: not valid JSON ({error})") from error


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".tmp-{uuid.uuid4().hex}-{target.name}")


def _try_lock(descriptor: int) -> bool:
    """Lock an open file or directory until it is closed or its process dies; False if another holds it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_leftovers(parent: Path) -> None:
    """Delete what killed writers left behind in `parent`; what a living one works on is locked and stays."""
    for leftover in [entry for entry in parent.glob(".tmp-*") if _TEMPORARY.fullmatch(entry.name)]:
        try:
            descriptor = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if not _try_lock(descriptor):
                continue
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def discard(path: Path) -> None:
    """Delete a directory so that it is gone at once; if interrupted, the rest is a leftover."""
    leftover = _temporary_name(path)
    path.rename(leftover)
    shutil.rmtree(leftover)


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield an empty temporary directory that becomes `target`, which must not be in use, without a manifest.

    For datasets and other folders that a user names: nothing of the user's is ever replaced.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target}: exists already", fix="choose a new folder or empty this one")
    with _temporary_directory(target) as temporary:
        yield temporary
        _sync_tree(temporary)
        temporary.rename(target)
        sync(target.parent)


@contextlib.contextmanager
def _temporary_directory(target: Path) -> Iterator[Path]:
    """A locked directory beside `target`, gone at the end unless it was renamed; leftovers go first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent)
    temporary = _temporary_name(target)
    temporary.mkdir()
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        _try_lock(descriptor)
        yield temporary
    finally:
        os.close(descriptor)
        shutil.rmtree(temporary, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    paths = sorted(folder.rglob("*"))
    if len(paths) > MAX_SYNCED_ONE_BY_ONE:
        os.sync()
        return
    for path in (*paths, folder):
        sync(path)


@contextlib.contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield an empty temporary directory that becomes `target` when the block ends without an error.

    An existing `target` is replaced: it is moved aside, the new one is renamed into place, and only then is
    the old one deleted. A reader that finds `target` missing for that instant recovers with
    `recover_directory`. What killed writers left beside `target` is removed first.
    """
    recover_directory(target)
    with _temporary_directory(target) as temporary:
        yield temporary
        write_manifest(temporary)
        _sync_tree(temporary)
        replaced = target.parent / f".old-{target.name}"
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        temporary.rename(target)
        sync(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def recover_directory(target: Path) -> None:
    """Undo an interrupted replacement: if `target` is gone but its previous version is there, restore it."""
    replaced = target.parent / f".old-{target.name}"
    if not target.exists() and replaced.exists():
        replaced.rename(target)


def write_manifest(directory: Path) -> None:
    """Record the SHA-256 of every file below `directory` in its manifest."""
    hashes = {
        path.relative_to(directory).as_posix(): sha256_file(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path != directory / MANIFEST
    }
    write_json(directory / MANIFEST, {"sha256": hashes})


def verify_manifest(directory: Path) -> None:
    """Raise an error naming the first file that is missing or changed, or the manifest if it is damaged."""
    content = read_json(directory / MANIFEST)
    recorded = content.get("sha256") if isinstance(content, dict) else None
    if not isinstance(recorded, dict):
        raise PmpguardError(f"{directory / MANIFEST}: no list of hashes", fix="restore it from a copy")
    for name, digest in recorded.items():
        path = directory / name
        if not path.is_file():
            raise PmpguardError(f"{path}: listed in {MANIFEST} but missing", fix="restore it from a copy")
        if sha256_file(path) != digest:
            raise PmpguardError(f"{path}: content differs from {MANIFEST}", fix="restore it from a copy")


@contextlib.contextmanager
def writer_lock(directory: Path) -> Iterator[None]:
    """Hold the directory's only writing right; a second writer is refused, a dead one's is taken over."""
    import fcntl

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a+") as stream:
        if not _try_lock(stream.fileno()):
            stream.seek(0)
            raise PmpguardError(
                f"{directory} is being written by process {stream.read().strip() or 'unknown'}",
                fix="wait for it to finish, or stop it",
            )
        stream.seek(0)
        stream.truncate()
        stream.write(str(os.getpid()))
        stream.flush()
        try:
            yield
        finally:
            fcntl.flock(stream, fcntl.LOCK_UN)  # at once, even if a forked child still has the file open
