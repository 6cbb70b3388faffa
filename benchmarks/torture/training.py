"""Training that is struck: in one and two processes, alone and with a student, at random steps.

However it ended, the same command goes on to the weights and records of a run that was left in peace.
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from torture.artefacts import Artefacts
from torture.commands import files_of

TESTS = Path(__file__).parents[2] / "tests"
KINDS_OF_RUNS = (
    ("one process", "alone", 1), ("two processes", "alone", 2), ("one process, distilled", "distilled", 1),
    ("two processes, distilled", "distilled", 2),
)  # fmt: skip
# What times the run, names its folder, or holds what a run that was struck has less or more of.
BESIDE = (
    "environment.json", "checkpoints/**", "*/checkpoints/**", "tensorboard/*", "*.md", "manifest.json",
)  # fmt: skip
OTHER_DATA, REFUSED = "other data", "cannot be resumed: dataset"


def strikes() -> dict[str, str]:
    """Ways to strike a run, and what its error says then."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    found: dict[str, str] = importlib.import_module("helpers.struck_run").HOW
    return found


def launched(run: Path, kind: str, processes: int, part: float = -1.0, how: str = "") -> tuple[int, str]:
    """Exit code and errors of a run, struck at that part of its steps."""
    words = [str(TESTS / "helpers" / "struck_run.py"), str(run), kind, str(part), how]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    command = [sys.executable, *(launcher if processes > 1 else []), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def records(run: Path) -> dict[str, str]:
    """The hashes of all that a finished run says: its models, metrics and settings."""
    return files_of(run, *BESIDE)


def strike_training(
    name: str, kind: str, processes: int, how: str, made: Artefacts, work: Path, times: int, seed: int
) -> dict[str, Any]:
    """Strike a run so many times at random steps, each time from its beginning."""
    straight, run = made.folder / "straight" / name, work / name
    if not (straight / "model" / "model.safetensors").is_file():
        shutil.rmtree(straight, ignore_errors=True)
        code, said = launched(straight, kind, processes)
        assert code == 0, said[-500:]
    expected, chance, troubles = records(straight), random.Random(f"{seed} {name} {how}"), []
    for _ in range(times):
        shutil.rmtree(run, ignore_errors=True)
        part = chance.random()
        if trouble := trouble_of(run, kind, processes, part, how, expected):
            troubles.append(f"struck at {part:.3f} of its steps: {trouble}")
    return {"runs": times, "held": times - len(troubles), "troubles": troubles[:5]}


def trouble_of(run: Path, kind: str, processes: int, part: float, how: str, expected: dict[str, str]) -> str:
    """What was not as it should be: how the run ended, or what it came to afterwards."""
    says = strikes().get(how)
    code, said = launched(run, kind, processes, part, "SIGTERM" if says is None else how)
    if code == 0:
        return "it went on"
    if says is None:  # of another dataset: refused, and nothing is written
        before = stamps(run)
        code, said = launched(run, kind, processes, how=how)
        if code == 0 or REFUSED not in said:
            return f"another dataset: exit {code}: {said.strip()[-200:]}"
        if stamps(run) != before:
            return "another dataset: refused, but files were written"
    elif says not in said:
        return f"not a clear error: {said.strip()[-300:]}"
    code, said = launched(run, kind, processes)
    if code:
        return f"run again: exit {code}: {said.strip()[-300:]}"
    ended = records(run)
    different = sorted(name for name in ended.keys() | expected if ended.get(name) != expected.get(name))
    return f"another result: {', '.join(different)}" if different else ""


def stamps(run: Path) -> dict[Path, int]:
    return {
        path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"
    }
