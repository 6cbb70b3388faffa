"""The estimate before a training, against one whose every part takes a known time on a stand-in clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.small_runs import coloured_squares, small_config, training_data
from torch import Tensor

from pmpguard.data.images.transforms import Augmentation
from pmpguard.methods.infonce import InfoNce
from pmpguard.methods.method import EpochPlan, TrainingView
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.models.retriever import Retriever
from pmpguard.training import estimate, rehearsal
from pmpguard.training.config import TrainConfig
from pmpguard.training.estimate import BYTES_FROZEN, training_estimate
from pmpguard.training.loop import train
from pmpguard.training.step import StepRunner

IMAGE, CAPTION, STEP, CELL, PLANNED = 0.01, 0.002, 0.05, 1e-4, 0.01  # seconds on the stand-in clock
STILL = Augmentation(flip=False, rotate=False, crop_min=1.0)
FROZEN = EncoderOptions(frozen=True)


class Planning(InfoNce):
    """Takes its time before an epoch, and sees the training set before all but the first."""

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        clock.now += PLANNED * self.pairs
        if view.epoch:
            len(view.images)
        return EpochPlan()

    def score(self, texts: Encoded, images: Encoded) -> Tensor:
        clock.now += CELL * len(texts) * len(images)
        return super().score(texts, images)


class Clock:
    """Seconds that stand-ins of the costly parts let pass."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


clock = Clock()


@pytest.fixture(autouse=True)
def known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def costly(kind: type[Any], name: str, cost: Any) -> None:
        original = getattr(kind, name)

        def call(self: Any, *arguments: Any) -> Any:
            clock.now += cost(*arguments)
            return original(self, *arguments)

        monkeypatch.setattr(kind, name, call)

    monkeypatch.setattr(rehearsal, "time", clock)
    monkeypatch.setattr(rehearsal, "SHORT", 0.0)
    costly(Retriever, "image_tokens", lambda pixels: IMAGE * len(pixels))
    costly(Retriever, "text_tokens", lambda ids, *_: CAPTION * len(ids))
    costly(StepRunner, "step", lambda *_: STEP)


def config(frozen: bool, **changes: Any) -> TrainConfig:
    small = small_config(method=f"{__name__}:Planning", epochs=2, **changes)
    if not frozen:
        return small
    model = replace(small.model, vision_options=FROZEN, text_options=FROZEN)
    return replace(small, model=model, augmentation=STILL)


@pytest.mark.parametrize(("frozen", "per_image"), [(False, 1), (True, 2)])
def test_the_estimate_is_what_training_takes(
    frozen: bool, per_image: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "TEST_RANKINGS", 0)  # `train` measures nothing on a test split
    data = training_data(*coloured_squares(copies=3))
    settings = config(frozen, captions_per_image=per_image)
    held_out = data.validation.table
    estimated = training_estimate(data.train, data.train_images, settings, held_out=held_out).seconds
    begun = clock.now
    train(settings, data, tmp_path / "run")
    assert estimated == pytest.approx(clock.now - begun, rel=0.15)


def test_frozen_encoders_read_the_images_once_for_all_runs() -> None:
    data = training_data(*coloured_squares(copies=3))
    one, three = (
        training_estimate(data.train, data.train_images, config(True), runs=runs).seconds for runs in (1, 3)
    )
    reading = len(data.train_images) * IMAGE + len(data.train) * CAPTION
    assert three == pytest.approx(3 * (one - reading) + reading, rel=0.02)


def test_a_batch_that_takes_long_is_tried_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    original = rehearsal._rehearsed

    def rehearsed(*arguments: Any) -> rehearsal.Pace:
        tried.append(arguments[-1])
        return original(*arguments)

    monkeypatch.setattr(rehearsal, "_rehearsed", rehearsed)
    data = training_data(*coloured_squares(copies=3))
    training_estimate(data.train, data.train_images, config(False))
    monkeypatch.setattr(rehearsal, "PATIENCE", 1.0)
    training_estimate(data.train, data.train_images, config(False))
    assert tried == [rehearsal.FEW, 40, rehearsal.FEW]


def test_memory_holds_weights_and_images() -> None:
    data = training_data(*coloured_squares(copies=3))
    trained, frozen = (
        training_estimate(data.train, data.train_images, config(each)) for each in (False, True)
    )
    assert frozen.memory > data.train_images.pixels.numel()  # type: ignore[attr-defined]
    assert trained.memory > BYTES_FROZEN
    assert str(trained).endswith(" and 0.0 GB for model and images")
