"""Files that are either whole or absent: atomic writes, hashes, verified directories, locks, names.

An artefact (model, checkpoint, index) is a directory written under a temporary name next to its final
place, synced, and renamed; its manifest of hashes is written last. Whoever is killed half-way leaves the
previous version untouched and a `.tmp-*` leftover, which the next writer removes.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pmpguard.errors import DataError, FullDiskError, PmpguardError
from pmpguard.locked_files import is_there, made_directory, new_locked, temporary_name
from pmpguard.posix import close, has_locks, lock, open_to_read, unlock

MANIFEST = "manifest.json"
MAX_NAME_CHARACTERS = 100
MAX_SYNCED_ONE_BY_ONE = 200  # files of a directory; more are flushed by one sync of the machine
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
HashFiles = Callable[[Path, Sequence[str]], dict[str, str]]
_marks: dict[Path, Path] = {}  # of each place that is being written together with others, the mark
_swept: set[Path] = set()  # folders in which this process has removed what killed writers left
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}-.+", re.DOTALL)


def sha256_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_files(directory: Path, names: Sequence[str]) -> dict[str, str]:
    """The hashes of files in a directory, by their names."""
    return {name: sha256_file(directory / name) for name in names}


def sync(path: Path) -> None:
    """Flush one file or directory to disk."""
    descriptor = open_to_read(path)
    try:
        if descriptor is not None:
            os.fsync(descriptor)
    finally:
        close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, so that it is still there after a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace `path` with `content` in one step; a crash leaves the old file or the new one."""
    with atomic_output(path) as stream:
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_output(path: Path) -> Iterator[BinaryIO]:
    """A stream that becomes `path` when the block ends without an error; otherwise nothing is left.

    The folder is made if it is not there.
    """
    make_folder(path.parent)
    if path.parent not in _swept:
        _swept.add(path.parent)
        remove_leftovers(path.parent)
    with full_disk_named(path):
        temporary, stream = new_locked(path, lambda name: name.open("wb"))
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            _note(temporary, path)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)


@contextlib.contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Say which file could not be written: the system's errors, and those of writers, often do not."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE and (error.errno is not None or "written" not in str(error)):
            raise
        raise FullDiskError(
            f"{path}: could not be written ({error.strerror or error})",
            fix="free some disk space, or choose another place; what was there is untouched",
        ) from error
    except Exception as error:  # of safetensors, which raises an error of its own
        if not re.search(r"\(os error (27|28|122)\)", str(error)) or isinstance(error, PmpguardError):
            raise
        fix = "free some disk space, or choose another place; what was there is untouched"
        raise FullDiskError(f"{path}: could not be written ({error})", fix=fix) from error


def cache_folder(name: str) -> Path:
    """Where files lie that can be made again: below PMPGUARD_CACHE, or in the user's own cache folder."""
    own = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PMPGUARD_CACHE") or Path(own, "pmpguard")) / name


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


def remove_leftovers(parent: Path) -> None:
    """Delete what killed writers left behind in `parent`; what a living one works on is locked and stays."""
    for replaced in parent.glob(".old-*"):  # whose successor is in place
        if (parent / replaced.name.removeprefix(".old-")).exists():
            shutil.rmtree(replaced, ignore_errors=True)
    if not has_locks():  # nothing tells the dead from the living
        return
    for leftover in [entry for entry in parent.glob(".tmp-*") if _TEMPORARY.fullmatch(entry.name)]:
        try:
            descriptor = open_to_read(leftover, follow=False)
        except OSError:
            continue
        try:
            if not lock(descriptor):
                continue
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        finally:
            close(descriptor)


def discard(path: Path) -> None:
    """Delete a directory so that it is gone at once; if interrupted, the rest is a leftover."""
    leftover = temporary_name(path)
    path.rename(leftover)
    shutil.rmtree(leftover)


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield an empty temporary directory that becomes `target`, which must not be in use, without a manifest.

    For datasets and other folders that a user names: nothing of the user's is ever replaced.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target}: exists already", fix="choose a new folder or empty this one")
    with temporary_directory(target) as temporary:
        yield temporary
        _sync_tree(temporary)
        _put_in_place(temporary, target)


def _put_in_place(temporary: Path, target: Path) -> None:
    _note(temporary, target)
    try:
        temporary.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        fix = "two writers were at work; one of them has finished"
        raise DataError(f"{target}: exists already, since a moment ago", fix=fix) from error
    sync(target.parent)


@contextlib.contextmanager
def temporary_directory(target: Path) -> Iterator[Path]:
    """A locked directory beside `target`, gone at the end unless it was renamed; leftovers go first."""
    make_folder(target.parent)
    remove_leftovers(target.parent)
    temporary, descriptor = new_locked(target, made_directory)
    try:
        with full_disk_named(target):
            yield temporary
    finally:
        close(descriptor)
        shutil.rmtree(temporary, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    paths = sorted(folder.rglob("*"))
    if len(paths) > MAX_SYNCED_ONE_BY_ONE:
        os.sync()
        return
    for path in (*paths, folder):
        sync(path)


@contextlib.contextmanager
def atomic_directory(target: Path, hash_files: HashFiles | None = None) -> Iterator[Path]:
    """Yield an empty temporary directory that becomes `target` when the block ends without an error.

    An existing `target` is replaced: it is moved aside, the new one is renamed into place, and only then is
    the old one deleted. A reader that finds `target` missing for that instant recovers with
    `recover_directory`. What killed writers left beside `target` is removed first. `hash_files` takes the
    place of `sha256_files`, where others help with many or large files.
    """
    recover_directory(target)
    if target.exists() and not (target / MANIFEST).is_file() and (target.is_file() or any(target.iterdir())):
        raise DataError(f"{target}: exists, and holds something else", fix="choose a new folder or empty it")
    with temporary_directory(target) as temporary:
        yield temporary
        write_manifest(temporary, hash_files)
        _sync_tree(temporary)
        replaced = target.parent / f".old-{target.name}"
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        _put_in_place(temporary, target)
        shutil.rmtree(replaced, ignore_errors=True)


def recover_directory(target: Path) -> None:
    """Undo an interrupted replacement: if `target` is gone but its previous version is there, restore it."""
    replaced = target.parent / f".old-{target.name}"
    if not target.exists() and replaced.exists():
        replaced.rename(target)


def write_manifest(directory: Path, hash_files: HashFiles | None = None) -> None:
    """Record the SHA-256 of every file below `directory` in its manifest."""
    names = [
        path.relative_to(directory).as_posix()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path != directory / MANIFEST
    ]
    write_json(directory / MANIFEST, {"sha256": (hash_files or sha256_files)(directory, names)})


def read_manifest(directory: Path) -> dict[str, str]:
    """The recorded hashes by file. A name that leads out of the directory is an error: files get copied."""
    path, fix = directory / MANIFEST, "restore it from a copy"
    content = read_json(path)
    recorded = content.get("sha256") if isinstance(content, dict) else None
    if not isinstance(recorded, dict):
        raise PmpguardError(f"{path}: no list of hashes", fix=fix)
    for name, digest in recorded.items():
        parts = PurePosixPath(name).parts
        if not parts or parts[0] == "/" or ".." in parts or "\0" in name or not isinstance(digest, str):
            raise PmpguardError(f"{path}: {name!r} is no file of this folder with a hash", fix=fix)
    return recorded


def verify_manifest(directory: Path) -> None:
    """Raise an error naming the first file that is missing or changed, or the manifest if it is damaged."""
    for name, digest in read_manifest(directory).items():
        path = directory / name
        if not path.is_file():
            raise PmpguardError(f"{path}: listed in {MANIFEST} but missing", fix="restore it from a copy")
        if sha256_file(path) != digest:
            raise PmpguardError(f"{path}: content differs from {MANIFEST}", fix="restore it from a copy")


@contextlib.contextmanager
def new_together(target: Path, *lists: Path) -> Iterator[None]:
    """Within the block files are written that belong together: first the `lists`, then `target`, all whole.

    None of them may exist. Whoever is killed on the way leaves a mark that says what was written, and perhaps
    lists without their target: the next writer of the same target removes them, and nothing that others have
    put there since, and begins again. A second writer at the same time is refused.
    """
    make_folder(target.parent)
    remove_leftovers(target.parent)
    mark = target.with_name(f".writing-{target.name}")
    with mark.open("a+") as stream:
        is_ours = lock(stream.fileno()) and is_there(mark, stream.fileno())
        if not is_ours:
            raise DataError(f"{target} is being written by another process", fix="wait for it to finish")
        _remove_noted(mark, target, *lists)  # of one that was killed
        for path in (target, *lists):
            if path.exists() and (path.is_file() or any(path.iterdir())):
                mark.unlink()
                raise DataError(f"{path}: exists already", fix="choose a new name or remove it first")
        sync(target.parent)
        _marks.update({path.absolute(): mark for path in (target, *lists)})
        try:
            yield
        except BaseException:
            _remove_noted(mark, target, *lists)
            mark.unlink()
            raise
        finally:
            for path in (target, *lists):
                del _marks[path.absolute()]
        mark.unlink()
        sync(target.parent)  # back after a power cut, it would make the next writer remove what is whole


def _note(written: Path, path: Path) -> None:
    """Into the mark of what is written together: this is about to be at `path`."""
    mark = _marks.get(path.absolute())
    if mark is not None:
        with mark.open("a") as stream:
            print(_content(written), file=stream, flush=True)
            os.fsync(stream.fileno())


def _content(path: Path) -> str:
    """What tells a file from another at the same place: its content; of a folder, names and sizes in it."""
    if not path.is_dir():
        return sha256_file(path)
    files = [f"{one.relative_to(path)} {one.lstat().st_size}" for one in sorted(path.rglob("*"))]
    return hashlib.sha256("\n".join(files).encode("utf-8", "surrogateescape")).hexdigest()


def _remove_noted(mark: Path, *paths: Path) -> None:
    """Remove what the mark says was written, and nothing else."""
    noted = mark.read_text(encoding="ascii").split()
    for path in paths if noted else ():
        if path.exists() and _content(path) in noted:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextlib.contextmanager
def writer_lock(directory: Path) -> Iterator[None]:
    """Hold the directory's only writing right; a second writer is refused, a dead one's is taken over."""
    make_folder(directory)
    with (directory / ".lock").open("a+") as stream:
        if not lock(stream.fileno()):
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
            unlock(stream.fileno())
