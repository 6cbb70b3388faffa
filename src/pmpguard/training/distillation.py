"""Self-distillation: a student that learns from a finished model of its own kind where that pays.

Where most captions are wrong, few pairs are left to learn from, and a model soon knows them by heart. A
student, trained from the start with other random draws, learns the first model's soft targets for every pair
that is judged mismatched (Hinton et al., "Distilling the knowledge in a neural network", 2015).
`Method.wants_distillation` decides whether; validation decides which of the two is kept.

Teacher and student then have folders of their own in the run, each with config, metrics and checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pmpguard.files import sync, write_atomic
from pmpguard.methods.method import Method
from pmpguard.training.checkpoint import IDENTITY, refuse_foreign
from pmpguard.training.config import TrainConfig, resolve
from pmpguard.training.distributed import World, barrier, writing_right
from pmpguard.training.loop import Observer, TrainingData, TrainResult, run_identity, train

TEACHER, STUDENT = "teacher", "student"
STUDENT_SEED = 1000  # added to the seed
# What of a run becomes its teacher's; settings and environment stay the whole run's as well.
SHARED = (IDENTITY, "config.json", "environment.json")
MOVED = ("metrics.jsonl", "tensorboard", "model", "checkpoints")


def train_with_distillation(
    config: TrainConfig, data: TrainingData, run: Path, *, observe: Observer | None = None
) -> TrainResult:
    """As `train`, continuing what is in `run`; with a student if the method asks for one.

    `run/model` is then the better of the two on validation; pairs are judged as both do on average.
    """
    config, world = resolve(config), World.current()
    divided = (run / TEACHER).is_dir()
    barrier(world)  # all have seen the folders before one of them makes any
    if divided:  # perhaps not to the end
        for folder in (run, run / TEACHER):
            refuse_foreign(folder, run_identity(config, data, world, None))
        divide(run, world)
    teacher = train(config, data, run / TEACHER if divided else run, observe=observe)
    if not teacher.method.wants_distillation():
        return teacher
    if not divided:
        divide(run, world)
    again = replace(config, seed=config.seed + STUDENT_SEED)
    own_data = replace(data, record=None)
    student = train(again, own_data, run / STUDENT, observe=observe, teacher=teacher.retriever)
    seconds = teacher.seconds + student.seconds
    better = student.best_mr > teacher.best_mr
    kept = student if better else teacher
    average_verdicts([teacher.method, student.method])
    if world.is_main:
        notes = kept_note(STUDENT if better else TEACHER, teacher.best_mr, student.best_mr)
        kept.retriever.save(run / "model", notes=notes)
    barrier(world)
    return replace(kept, seconds=seconds, model_kept=2 if better else 1, models_trained=2)


def average_verdicts(methods: Sequence[Method]) -> None:
    """Let models of the same pairs judge them, and how many are mismatched, as they all do on average."""
    for name in ("p_match", "estimated_rate"):
        values = [getattr(method, name) for method in methods]
        if all(isinstance(value, torch.Tensor) for value in values):
            mean = torch.stack(values).mean(0)
            for value in values:
                value.copy_(mean)


def divide(run: Path, world: World) -> None:
    """Give what the first model left in `run` a folder of its own; goes on where it was stopped."""
    teacher = run / TEACHER
    copied = [name for name in SHARED if (run / name).exists() and not (teacher / name).exists()]
    moved = [name for name in MOVED if (run / name).exists() and not (teacher / name).exists()]
    barrier(world)  # all have seen the same before one of them moves it
    if world.is_main and copied + moved:
        with writing_right(run, world):
            teacher.mkdir(exist_ok=True)
            for name in copied:
                write_atomic(teacher / name, (run / name).read_bytes())
            for name in moved:
                (run / name).rename(teacher / name)
            sync(teacher)
            sync(run)
    barrier(world)


def kept_note(kept: str, teacher_mr: float, student_mr: float) -> str:
    """For the card of a run's model: which of the two it is."""
    return (
        f"## Self-distillation\n\nThis is the {kept} of two models. On validation the teacher reaches an mR "
        f"of {teacher_mr:.2f}, the student {student_mr:.2f}. The records of both are in the run's folders "
        f"`{TEACHER}` and `{STUDENT}`."
    )
