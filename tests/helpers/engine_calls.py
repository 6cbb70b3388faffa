"""Functions that parts of jobs call in tests; each leaves a file."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pmpguard.errors import DataError


def write_square(number: int, out: str) -> None:
    Path(out).write_text(str(number * number))


def write_process(number: int, out: str) -> None:
    """The number of the process that did it; slow enough that every worker gets some."""
    time.sleep(0.05)
    Path(out).write_text(str(os.getpid()))


def die_once(number: int, out: str) -> None:
    """Killed in the middle of every third part, the first time."""
    tried = Path(out).with_suffix(".tried")
    if number % 3 == 0 and not tried.exists():
        tried.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    write_square(number, out)


def die(number: int, out: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number: int, out: str) -> None:
    raise DataError(f"shard-{number}.tar: cut off", fix="download it again")


def stumble(number: int, out: str) -> None:
    raise ZeroDivisionError("by hand")


def fill_disk(number: int, out: str) -> None:
    raise OSError(28, "No space left on device")


def leave_nothing(number: int, out: str) -> None:
    print("a worker's own words")


def wait_for(number: int, out: str) -> None:
    """Say that the part has begun, and finish when `go` lies beside it."""
    place = Path(out)
    place.with_suffix(".begun").write_text(str(os.getpid()))
    while not (place.parent / "go").exists():
        time.sleep(0.02)
    write_square(number, out)
