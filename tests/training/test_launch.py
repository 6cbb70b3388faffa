"""Processes that a launcher started find each other, and stop together when one of them dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.free_port import free_port

from pmpguard.training.checkpoint import latest_checkpoint
from pmpguard.training.distributed import World
from pmpguard.training.launch import joined_processes

SCRIPT = Path(__file__).parents[1] / "helpers" / "killed_rank.py"


@contextlib.contextmanager
def two_processes(run: Path, kill_at: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Rank 0 and rank 1; none outlives the block."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared = {**meeting, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(run), str(kill_at)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_alone_there_is_nothing_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (None, "1"):
        if size is None:
            monkeypatch.delenv("WORLD_SIZE", raising=False)
        else:
            monkeypatch.setenv("WORLD_SIZE", size)
        with joined_processes("cpu") as world:
            assert world == World(0, 1)


@pytest.mark.slow
def test_a_killed_rank_stops_the_other_in_time_and_the_last_checkpoint_resumes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with two_processes(run, kill_at=5) as (survivor, killed):
        why = killed.communicate(timeout=240)[1]
        assert killed.returncode == -signal.SIGKILL, why
        died = time.monotonic()
        errors = survivor.communicate(timeout=120)[1]
        # a closed connection is noticed at once, well before the group's time-out
        assert survivor.returncode not in (0, None) and time.monotonic() - died < 60
        assert "Error" in errors
    kept = latest_checkpoint(run)
    assert kept is not None and kept.name == "step-00000004"
    with two_processes(run, kill_at=-1) as processes:
        for process in processes:
            why = process.communicate(timeout=240)[1]
            assert process.returncode == 0, why
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == [10, 16]
    assert [line["epoch"] for line in lines if line["kind"] == "validation"] == [0, 1]
    assert (run / "model" / "model.safetensors").is_file()
