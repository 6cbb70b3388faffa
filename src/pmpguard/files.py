"""Files that are either whole or absent: atomic writes, hashes, verified directories, locks.

An artefact (model, checkpoint, index) is a directory written under a temporary name next to its final
place, synced, and renamed; its manifest of hashes is written last. Whoever is killed half-way leaves the
previous version untouched and a `.tmp-*` leftover, which the next writer removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmpguard.errors import PmpguardError

MANIFEST = "manifest.json"
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
    temporary = _temporary_name(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with temporary.open("wb") as stream:
            _try_lock(stream.fileno())
            stream.write(data)
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


@contextlib.contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield an empty temporary directory that becomes `target` when the block ends without an error.

    An existing `target` is replaced: it is moved aside, the new one is renamed into place, and only then is
    the old one deleted. A reader that finds `target` missing for that instant recovers with
    `recover_directory`. What killed writers left beside `target` is removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent)
    recover_directory(target)
    temporary = _temporary_name(target)
    temporary.mkdir()
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        _try_lock(descriptor)
        yield temporary
        write_manifest(temporary)
        for path in sorted(temporary.rglob("*")):
            sync(path)
        sync(temporary)
        replaced = target.parent / f".old-{target.name}"
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        temporary.rename(target)
        sync(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        os.close(descriptor)
        shutil.rmtree(temporary, ignore_errors=True)


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
