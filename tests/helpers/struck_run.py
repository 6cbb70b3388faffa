"""A short training run in one or several processes that is struck on its way, or not.

`struck_run.py RUN KIND PART HOW`: KIND is `alone` or `distilled`, PART a part of all steps, of teacher and
student together (-1: it is left in peace), and HOW what happens there. The run of other data only starts.
"""

from __future__ import annotations

import os
import resource
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
from pmpguard.training.step import StepRunner

STEPS = 16  # of one model
HOW = {  # what the error says that ends the run
    "SIGTERM": "",  # no error: it is asked to stop
    "SIGKILL": "",
    "full disk": "could not be written",
    "not a number": "is not finite",
    "dead device": "the device has failed",
}
INTERRUPTED = 3


def strike(runner: StepRunner, how: str) -> None:
    """Of the last process or of the first; the others have to end as well."""
    last = runner.world.rank == runner.world.size - 1
    if how == "SIGTERM" and runner.world.is_main:
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "SIGKILL" and last:
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "full disk":  # of the one that writes: larger files cannot be
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    elif how == "not a number" and last:
        runner.parameters[0].data.fill_(float("nan"))
    elif how == "dead device" and last:
        raise getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: unspecified launch failure")


def main(run: Path, kind: str, part: float, how: str) -> int:
    torch.set_num_threads(1)
    models = 2 if kind == "distilled" else 1
    struck_at = int(part * models * STEPS)
    original = loop.StepRunner.step

    def step(
        self: loop.StepRunner, batches: Sequence[DeviceBatch], epoch: int, number: int, factor: float
    ) -> None:
        if part >= 0 and number + STEPS * (self.teacher is not None) == struck_at:
            strike(self, how)
        original(self, batches, epoch, number, factor)

    loop.StepRunner.step = step  # type: ignore[method-assign]
    settings = {"detect_from_epoch": 1, "distill_above_rate": 0.0, "calibration_epochs": 1}
    config = small_config(
        batch_size=30, checkpoint_every=5,
        **({"method": "pmpguard", "settings": settings} if models == 2 else {}),
    )  # fmt: skip
    table, images = coloured_squares(copies=3)
    if how == "other data":
        table = table.with_column("caption", ["another caption", *table.captions[1:]])
    with joined_processes("cpu", timeout_s=120):
        try:
            result = train_with_distillation(config, training_data(table, images), run)
        except Interrupted:
            return INTERRUPTED
    assert result.models_trained == models and result.steps == STEPS, (result.models_trained, result.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]))
