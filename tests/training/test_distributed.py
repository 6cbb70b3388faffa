"""Two processes must do what one does: same loss, same gradients, same weights, same verdicts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.free_port import free_port

from pmpguard.training.distributed import World

SCRIPT = Path(__file__).parents[1] / "helpers" / "two_processes.py"


def launch(
    world: int, out: Path, *extra: str, timeout: float = 240
) -> list[subprocess.CompletedProcess[str]]:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = {**os.environ, **meeting, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(out), *extra],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    finished = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=timeout)
        finished.append(subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr))
    return finished


@pytest.mark.parametrize("count,size", [(8, 3), (2, 3), (7, 1), (0, 2)])
def test_shares_cover_everything_once(count: int, size: int) -> None:
    parts = [World(rank, size).share(count) for rank in range(size)]
    assert [index for part in parts for index in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["infonce", "pmpguard", "pmpguard taught", "pmpguard twice"])
def test_two_processes_equal_one(tmp_path: Path, method: str) -> None:
    for world in (1, 2):
        for done in launch(world, tmp_path / f"world-{world}", method):
            assert done.returncode == 0, done.stderr
    from safetensors.torch import load_file

    alone = load_file(tmp_path / "world-1" / "rank-0.safetensors")
    first = load_file(tmp_path / "world-2" / "rank-0.safetensors")
    second = load_file(tmp_path / "world-2" / "rank-1.safetensors")
    assert alone.keys() == first.keys() == second.keys()
    for name, expected in alone.items():
        assert torch.equal(first[name], second[name]), name
        if expected.is_floating_point():
            assert expected.dtype == torch.float64, name
            torch.testing.assert_close(first[name], expected, rtol=1e-9, atol=1e-9, msg=name)
        else:
            assert torch.equal(first[name], expected), name
