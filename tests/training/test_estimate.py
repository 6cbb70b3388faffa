"""The estimate before a training: it grows with what there is to do and to hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pmpguard.data.formats import read_pairs
from pmpguard.data.images.sources import open_images
from pmpguard.data.images.transforms import Augmentation
from pmpguard.models.config import preset
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.synthetic.scenes import synthetic_scenes, write_world
from pmpguard.training.config import TrainConfig
from pmpguard.training.estimate import BYTES_FROZEN, training_estimate

STILL = Augmentation(flip=False, rotate=False, crop_min=1.0)
FROZEN = EncoderOptions(frozen=True)


def config(frozen: bool, **changes: int) -> TrainConfig:
    options = {"vision_options": FROZEN, "text_options": FROZEN} if frozen else {}
    model = preset("tiny", image_size=32, dim=32, **options)
    return TrainConfig(
        model=model, augmentation=STILL, batch_size=20, captions_per_image=5, device="cpu", **changes
    )


def test_the_estimate_follows_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_world(synthetic_scenes(20, size=32), tmp_path / "world")
    table = read_pairs(tmp_path / "world")
    pixels = open_images(table, 32, torch.device("cpu"))
    clock = iter(range(1000))
    monkeypatch.setattr("pmpguard.training.estimate.time.perf_counter", lambda: float(next(clock)))

    def seconds(frozen: bool, runs: int = 1, **changes: int) -> float:
        return training_estimate(table, pixels, config(frozen, **changes), runs).seconds

    # every measured piece takes one second: the two batches of 8 images, and one step's attention
    assert seconds(True, epochs=3) == pytest.approx(20 / 8 + 1.5 * 3 * 5)
    assert seconds(True, runs=2, epochs=3) == pytest.approx(20 / 8 + 1.5 * 2 * 3 * 5)
    assert seconds(False, epochs=3) == pytest.approx(3 * 5 * (3 * 4 / 8 + 1.5))  # four images a step, thrice


def test_memory_holds_weights_and_images(tmp_path: Path) -> None:
    write_world(synthetic_scenes(20, size=32), tmp_path / "world")
    table = read_pairs(tmp_path / "world")
    pixels = open_images(table, 32, torch.device("cpu"))
    trained, frozen = (training_estimate(table, pixels, config(each)) for each in (False, True))
    assert frozen.memory > pixels.pixels.numel() == 20 * 3 * 32 * 32  # type: ignore[attr-defined]
    assert trained.memory > frozen.memory > BYTES_FROZEN
    assert str(trained).startswith("less than a minute and 0.0 GB")
