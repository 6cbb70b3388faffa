"""What only POSIX systems offer: locks that end with their process, folders opened like files, limits.

Elsewhere, as on Windows, folders are written without locks, which is said once; the rest is left out by name.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

try:
    import fcntl
    import resource
except ImportError:
    fcntl = resource = None  # type: ignore[assignment]

READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)  # how a file is opened to be read as it is
log = logging.getLogger("pmpguard")
LIMITS: Any = resource  # the module `resource`, None where there is none


@cache
def _say_that_nothing_is_locked() -> None:
    log.warning("no file locks on %s: let only one process at a time write to a folder", sys.platform)


def lock(descriptor: int | None, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed or its process dies; False if another holds it."""
    if fcntl is None or descriptor is None:
        _say_that_nothing_is_locked()
        return True
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """At once, even if a forked child still has the file open."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def has_locks() -> bool:
    """Whether a lock tells that a living process works on something."""
    return fcntl is not None


def open_to_read(path: Path, *, follow: bool = True) -> int | None:
    """A descriptor of a file or folder; None of a folder where the system opens only files."""
    if fcntl is None and path.is_dir():
        return None
    return os.open(path, READ if follow else READ | os.O_NOFOLLOW)


def close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fill `buffer` from `offset` on; how many bytes came."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, len(buffer))
    buffer[: len(data)] = data
    return len(data)


def peak_resident_bytes() -> int | None:
    """The most memory this process has held; None where the system does not tell."""
    if LIMITS is None:
        return None
    peak = int(LIMITS.getrusage(LIMITS.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else peak * 1024
