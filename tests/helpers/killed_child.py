"""Kills a child process of the test, found by what its command line holds."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def kill_one_child(command: str) -> list[int]:
    """End one child of this process by SIGKILL; its id, or nothing when there is no such child."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            words = (status.parent / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if parent == os.getpid() and command in words:
            os.kill(int(status.parent.name), signal.SIGKILL)
            return [int(status.parent.name)]
    return []
