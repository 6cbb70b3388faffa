"""What a run leaves on record: metrics.jsonl always, TensorBoard when installed, progress bars on stderr."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

import pmpguard
from pmpguard.files import full_disk_named, make_folder, sync, write_json


def describe_hardware(device: torch.device | str = "cpu") -> str:
    """The processor a run used, in words."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def current_commit() -> str:
    """The commit of the source tree this package runs from, "unknown" outside a checkout.

    `PMPGUARD_COMMIT` overrides it, for machines that get a copy of the tree without its history.
    """
    if "PMPGUARD_COMMIT" in os.environ:
        return os.environ["PMPGUARD_COMMIT"]
    try:
        here = Path(__file__).parent
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here, capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.stdout.strip()


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions and hardware, for environment.json."""
    return {
        "pmpguard": pmpguard.__version__,
        "commit": current_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardware": describe_hardware(device),
        "threads": torch.get_num_threads(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


class Tracker:
    """Writes one JSON object per line; a resumed run first cuts off what came after its checkpoint.

    TensorBoard's files are only ever appended to; from `step` on it is told to hide what stood there before.
    """

    def __init__(self, run: Path, *, active: bool = True, keep_bytes: int = 0, step: int = 0) -> None:
        self.active = active
        self.path = run / "metrics.jsonl"
        self.board: Any = None
        if not active:
            return
        make_folder(run)
        self.stream = self.path.open("ab")
        sync(run)
        self.stream.truncate(min(keep_bytes, self.path.stat().st_size))  # a lost file is not padded
        self.stream.seek(0, os.SEEK_END)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self.board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active:
            self.stream.close()
            if self.board is not None:
                self.board.close()

    def log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Append one record; equal runs write equal bytes, so no clock is read here."""
        if not self.active:
            return
        record = {"kind": kind, "step": step, **values}
        with full_disk_named(self.path):
            self.stream.write((json.dumps(record) + "\n").encode())
            self.stream.flush()
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(f"{kind}/{name}", value, step)

    def synced_bytes(self) -> int:
        """The length of the record, which from now on outlives a power cut: a checkpoint counts on it."""
        if not self.active:
            return 0
        os.fsync(self.stream.fileno())
        return self.stream.tell()


def write_environment(run: Path, device: torch.device | str) -> None:
    write_json(run / "environment.json", environment(device))
