"""Run by test_launch in two processes: a short training run in which rank 1 dies at a given step."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.training import loop
from pmpguard.training.distributed import joined_processes
from pmpguard.training.loader import DeviceBatch


def main(run: Path, kill_at: int) -> None:
    torch.set_num_threads(1)
    original = loop.StepRunner.step

    def step(
        self: loop.StepRunner, batches: Sequence[DeviceBatch], epoch: int, number: int, factor: float
    ) -> None:
        if self.world.rank == 1 and number == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, batches, epoch, number, factor)

    loop.StepRunner.step = step  # type: ignore[method-assign]
    look = loop.latest_checkpoint

    def look_late(run: Path) -> Path | None:
        """A slow rank 1: the other must not have written a checkpoint by then that this one goes on from."""
        if os.environ["RANK"] == "1":
            time.sleep(2)
        return look(run)

    loop.latest_checkpoint = look_late
    config = small_config(batch_size=30, checkpoint_every=2)
    with joined_processes("cpu", timeout_s=120) as world:
        assert world.size == 2
        loop.train(config, training_data(*coloured_squares(copies=3)), run)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
