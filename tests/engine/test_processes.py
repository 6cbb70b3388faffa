"""Several processes of one machine: the same files, also when workers are killed; errors keep their kind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pmpguard.engine.parts import Engine, Part, run_parts
from pmpguard.errors import DataError, PmpguardError

CALLS = "helpers.engine_calls"


def parts_in(folder: Path, count: int) -> list[Part]:
    outputs = [folder / f"{number}.txt" for number in range(count)]
    return [Part({"number": number, "out": str(out)}, out) for number, out in enumerate(outputs)]


@pytest.mark.parametrize("workers", [2, 3])
def test_several_processes_share_the_parts(tmp_path, workers):
    run_parts(Engine(workers), f"{CALLS}:write_process", parts_in(tmp_path, 12))
    processes = {path.read_text() for path in tmp_path.glob("*.txt")}
    assert len(processes) == workers and str(os.getpid()) not in processes


def test_workers_that_are_killed_in_the_middle_change_nothing(tmp_path):
    run_parts(Engine(2), f"{CALLS}:die_once", parts_in(tmp_path, 7))
    assert [(tmp_path / f"{n}.txt").read_text() for n in range(7)] == [str(n * n) for n in range(7)]
    assert len({path.read_text() for path in tmp_path.glob("*.tried")}) == 3  # so many processes were lost


def test_a_worker_killed_from_outside_changes_nothing(tmp_path):
    def kill_the_first() -> None:
        begun = tmp_path / "0.begun"
        while not (begun.exists() and begun.read_text()):
            time.sleep(0.02)
        os.kill(int(begun.read_text()), signal.SIGKILL)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    run_parts(Engine(2), f"{CALLS}:wait_for", parts_in(tmp_path, 4))
    killer.join()
    assert [(tmp_path / f"{n}.txt").read_text() for n in range(4)] == ["0", "1", "4", "9"]


def test_a_part_that_always_kills_its_worker_is_named(tmp_path):
    with pytest.raises(PmpguardError, match=r"3 workers were lost \(SIGKILL\) on .*0\.txt"):
        run_parts(Engine(2), f"{CALLS}:die", parts_in(tmp_path, 1))


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("refuse", DataError, r"shard-\d\.tar: cut off\nFix: download it again"),
        ("fill_disk", OSError, "No space left on device"),
        ("stumble", RuntimeError, "ZeroDivisionError: by hand"),
        ("leave_nothing", PmpguardError, "is not here"),
    ],
)
def test_errors_of_workers_are_raised_here(tmp_path, function, kind, said):
    with pytest.raises(kind, match=said):
        run_parts(Engine(2), f"{CALLS}:{function}", parts_in(tmp_path, 3))


def test_a_worker_speaks_only_in_answers():
    asked = {"function": f"{CALLS}:leave_nothing", "arguments": {"number": 1, "out": ""}}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "pmpguard.engine.worker"],
        input=json.dumps(asked) + "\n", env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "{}\n" and "a worker's own words" in done.stderr
