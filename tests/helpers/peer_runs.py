"""Short runs on coloured squares, for methods that bring modules of their own."""

from __future__ import annotations

from pathlib import Path

from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.training.loop import TrainResult, train

CHANCE = 6.0  # mR on 120 validation images with two captions each is about 4.6


def short_run(method: str, folder: Path, **settings: object) -> TrainResult:
    """Sixty small steps; returns what was selected and saved."""
    table, images = coloured_squares()
    config = small_config(method=method, settings=settings, epochs=2, batch_size=16, checkpoint_every=-1)
    return train(config, training_data(table, images), folder)
