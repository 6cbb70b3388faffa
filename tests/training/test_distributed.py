"""Two processes do what one does: same loss, gradients, weights and verdicts; they stop together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.free_port import free_port

from pmpguard.cli.main import main
from pmpguard.synthetic.scenes import synthetic_scenes, write_world
from pmpguard.training.checkpoint import latest_checkpoint
from pmpguard.training.distributed import World, joined_processes

SCRIPT = Path(__file__).parents[1] / "helpers" / "two_processes.py"
KILLED = Path(__file__).parents[1] / "helpers" / "killed_rank.py"


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
def test_two_processes_equal_one(tmp_path: Path) -> None:
    methods = ["infonce", "pmpguard", "pmpguard twice"]  # twice: taught by the first model
    for world in (1, 2):
        for done in launch(world, tmp_path / f"world-{world}", *methods, timeout=480):
            assert done.returncode == 0, done.stderr
    from safetensors.torch import load_file

    for method in methods:
        alone = load_file(tmp_path / "world-1" / method / "rank-0.safetensors")
        first, second = (
            load_file(tmp_path / "world-2" / method / f"rank-{rank}.safetensors") for rank in (0, 1)
        )
        assert alone.keys() == first.keys() == second.keys()
        for name, expected in alone.items():
            where = f"{method}: {name}"
            assert torch.equal(first[name], second[name]), where
            if expected.is_floating_point():
                assert expected.dtype == torch.float64, where
                torch.testing.assert_close(first[name], expected, rtol=1e-9, atol=1e-9, msg=where)
            else:
                assert torch.equal(first[name], expected), where


@pytest.mark.slow
def test_two_agents_of_torchrun_equal_one_process(tmp_path: Path) -> None:
    """As on two nodes, by the command of the documents: each agent starts the process of its own node."""
    write_world(synthetic_scenes(60, size=32), tmp_path / "world")
    settings = {"method": "infonce", "epochs": 1, "batch_size": 20, "device": "cpu"}
    words = ["--dataset", str(tmp_path / "world"), "--train", json.dumps(settings)]
    train = ["-m", "pmpguard", "train", str(tmp_path / "two"), *words]
    nodes = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port",
             str(free_port())]  # fmt: skip
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *nodes, "--node-rank", str(node), *train],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]  # fmt: skip
    said = [agent.communicate(timeout=240) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "model in" in said[0][0] and not said[1][0]  # the first process speaks for all
    assert main(["train", str(tmp_path / "one"), *words]) == 0
    losses = []
    for run in ("one", "two"):
        lines = [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if line["kind"] == "step"])
        assert (tmp_path / run / "model" / "model.safetensors").is_file()
    assert len(losses[0]) > 1 and losses[1] == pytest.approx(losses[0], rel=1e-3)


@contextlib.contextmanager
def two_processes(run: Path, kill_at: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Rank 0 and rank 1; none outlives the block."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared = {**meeting, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(KILLED), str(run), str(kill_at)],
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
        # a closed connection is noticed at once, well before the group's time-out of 120 s
        errors = survivor.communicate(timeout=110)[1]
        assert survivor.returncode not in (0, None) and "Error" in errors
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
