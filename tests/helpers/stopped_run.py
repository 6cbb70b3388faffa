"""Run by test_failures in one or two processes: a short training run that gets SIGTERM on its way, or not.

`stopped_run.py RUN KIND PART`: after that part of all steps, of teacher and student together; -1 for never.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.training import loop
from pmpguard.training.distillation import train_with_distillation
from pmpguard.training.distributed import joined_processes
from pmpguard.training.interrupt import Interrupted
from pmpguard.training.loader import DeviceBatch

STEPS = 16  # of one model


def main(run: Path, kind: str, part: float) -> int:
    torch.set_num_threads(1)
    models = 2 if kind == "distilled" else 1
    stop_at = int(part * models * STEPS)
    original = loop.StepRunner.step

    def step(
        self: loop.StepRunner, batches: Sequence[DeviceBatch], epoch: int, number: int, factor: float
    ) -> None:
        original(self, batches, epoch, number, factor)
        if part >= 0 and number + STEPS * (self.teacher is not None) == stop_at and self.world.is_main:
            os.kill(os.getpid(), signal.SIGTERM)  # one rank is enough: all stop together

    loop.StepRunner.step = step  # type: ignore[method-assign]
    settings = {"detect_from_epoch": 1, "distill_above_rate": 0.0, "calibration_epochs": 1}
    config = small_config(
        batch_size=30, checkpoint_every=5,
        **({"method": "pmpguard", "settings": settings} if models == 2 else {}),
    )  # fmt: skip
    with joined_processes("cpu", timeout_s=120):
        try:
            result = train_with_distillation(config, training_data(*coloured_squares(copies=3)), run)
        except Interrupted:
            return 3
    assert result.models_trained == models and result.steps == STEPS, (result.models_trained, result.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
