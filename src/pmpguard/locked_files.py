"""Files and directories under temporary names, locked for as long as their writer lives."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from pmpguard.posix import close, lock, open_to_read

Opened = TypeVar("Opened", BinaryIO, int | None)


def temporary_name(target: Path) -> Path:
    return target.with_name(f".tmp-{uuid.uuid4().hex}-{target.name}")


def is_there(path: Path, descriptor: int | None) -> bool:
    """Whether an open file still has its name: who held the lock before may have removed it."""
    if descriptor is None:
        return True
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def new_locked(target: Path, make: Callable[[Path], Opened]) -> tuple[Path, Opened]:
    """Make something new and lock it; whoever sweeps may take it for a leftover before it is locked."""
    while True:
        temporary = temporary_name(target)
        with contextlib.suppress(FileNotFoundError):
            opened = make(temporary)
            descriptor = opened if opened is None or isinstance(opened, int) else opened.fileno()
            if lock(descriptor) and is_there(temporary, descriptor):
                return temporary, opened
            close(opened) if opened is None or isinstance(opened, int) else opened.close()
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder is gone", str(target.parent))


def made_directory(path: Path) -> int | None:
    path.mkdir()
    return open_to_read(path)
