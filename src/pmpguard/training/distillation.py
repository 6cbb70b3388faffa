"""A model, and where that pays a second one that it teaches.

Where most captions are wrong, few pairs are left to learn from, and a model soon knows them by heart. A
second one, trained from the start with other random draws, is told of every pair that it does not trust what
the first believes. `Method.asks_for_second` decides whether; validation decides which of the two is kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World, barrier
from pmpguard.training.loop import Observer, TrainingData, TrainResult, train

SECOND = "second"  # folder of the second model's run, inside that of the first
OTHER_DRAWS = 1000  # added to the seed
NOTES = (
    "The second of two models, taught by the first. "
    f"Its run is in the folder `{SECOND}`; config and metrics beside the model are those of the first."
)


def train_with_distillation(
    config: TrainConfig, data: TrainingData, run: Path, *, observe: Observer | None = None
) -> TrainResult:
    """As `train`, continuing what is in `run`; with a second model if the method asks for one.

    `run/model` is then the better of the two on validation, and the verdicts are its own.
    """
    first = train(config, data, run, observe=observe)
    if not first.method.wants_distillation():
        return first
    again = replace(config, seed=config.seed + OTHER_DRAWS)
    second = train(again, data, run / SECOND, observe=observe, teacher=first.retriever)
    seconds = first.seconds + second.seconds
    if second.best_mr <= first.best_mr:
        return replace(first, seconds=seconds, models_trained=2)
    if World.current().is_main:
        second.retriever.save(run / "model", notes=NOTES)
    barrier(World.current())
    return replace(second, seconds=seconds, model_kept=2, models_trained=2)
