"""Work in children of this process, which has imported everything and computes nothing itself.

A child is forked in a few milliseconds and may be killed, may fill a disk or die of a damaged file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILLED = -int(signal.SIGKILL)


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its exit code (negative: by that signal), what it returned, and what it said."""

    code: int
    value: Any
    said: str
    seconds: float


def import_everything() -> None:
    """What children would import, so that each does not; nothing starts threads before it is used."""
    import torch

    from pmpguard.cli import (  # noqa: F401
        audit,
        clean,
        convert_data,
        corrupt,
        data,
        embed,
        figure,
        index,
        main,
        table,
        tile,
        train,
        up,
    )

    torch.set_num_threads(1)


@dataclass(frozen=True)
class Child:
    """A child at work, and where what it says and returns goes."""

    process: int
    folder: Path
    started: float

    @property
    def said(self) -> str:
        path = self.folder / ".said"
        return path.read_text(errors="replace") if path.is_file() else ""


def apart(work: Callable[[], Any], folder: Path, *, kill_after: float | None = None) -> Outcome:
    """Run it in a child; what it returns comes back. After `kill_after` seconds it is killed."""
    return ended(begun(work, folder), kill_after)


def begun(work: Callable[[], Any], folder: Path) -> Child:
    """Begin it in a child."""
    folder.mkdir(parents=True, exist_ok=True)
    said, returned = folder / ".said", folder / ".returned"
    for path in (said, returned):
        path.unlink(missing_ok=True)
    started = time.monotonic()
    process = os.fork()
    if not process:
        _in_child(work, said, returned)
    return Child(process, folder, started)


def ended(child: Child, kill_after: float | None = None) -> Outcome:
    """Wait for a child, at most so long."""
    said, returned = child.folder / ".said", child.folder / ".returned"
    code = _wait(child.process, kill_after)
    value = json.loads(returned.read_bytes()) if returned.is_file() and code == 0 else None
    text = said.read_text(errors="replace") if said.is_file() else ""
    for path in (said, returned):
        path.unlink(missing_ok=True)
    return Outcome(code, value, text, time.monotonic() - child.started)


def _in_child(work: Callable[[], Any], said: Path, returned: Path) -> None:
    code = 70
    try:
        os.setsid()  # so that whatever it starts ends with it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        stream = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        value = work()
        returned.write_text(json.dumps(value))
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(child: int, kill_after: float | None) -> int:
    deadline = None if kill_after is None else time.monotonic() + kill_after
    while True:
        process, status = os.waitpid(child, 0 if deadline is None else os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        if deadline is not None and time.monotonic() >= deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.002)


def command(*words: object) -> None:
    """Run a `pmpguard` command in this process; its exit code becomes the child's."""
    from pmpguard.cli.main import main

    code = main([str(word) for word in words])
    if code:
        raise SystemExit(code)
