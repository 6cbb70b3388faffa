"""A dataset small enough to train on in a second: coloured squares and what they are called."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.data.images.transforms import Augmentation
from pmpguard.data.pairs import PairTable
from pmpguard.evaluation.evaluate import Gallery
from pmpguard.models.config import CrossGatedConfig, RetrieverConfig
from pmpguard.training import loop
from pmpguard.training.config import OptimiserConfig, TrainConfig
from pmpguard.training.loop import TrainingData, TrainResult

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 220), "white": (240, 240, 240),
           "yellow": (230, 220, 40), "black": (15, 15, 15)}  # fmt: skip
PLACES = {"corner": (0, 0), "middle": (8, 8), "edge": (0, 8), "end": (16, 16)}
SIZE = 32


def coloured_squares(copies: int = 4, seed: int = 0) -> tuple[PairTable, torch.Tensor]:
    """A ground of one colour with a square of another at a named place; two captions each."""
    generator = np.random.default_rng(seed)
    images, rows = [], []
    kinds = [kind for kind in itertools.product(COLOURS, COLOURS, PLACES) if kind[0] != kind[1]]
    for copy, (ground, square, place) in itertools.product(range(copies), kinds):
        pixels = np.empty((SIZE, SIZE, 3))
        pixels[:] = COLOURS[ground]
        top, left = PLACES[place]
        pixels[top : top + 14, left : left + 14] = COLOURS[square]
        pixels = (pixels + generator.normal(0, 8, pixels.shape)).clip(0, 255).astype(np.uint8)
        name = f"{ground}-{square}-{place}-{copy}.png"
        split = "train" if copy < copies - 2 else ("val" if copy == copies - 2 else "test")
        images.append(torch.from_numpy(pixels).permute(2, 0, 1))
        rows.append((name, f"a {square} square in the {place} of {ground} ground", split))
        rows.append((name, f"{ground} ground with a {square} square at its {place} {copy}", split))
    columns = dict(zip(("image", "caption", "split"), map(list, zip(*rows, strict=True)), strict=True))
    return PairTable.from_columns(columns, name="squares"), torch.stack(images)


def training_data(table: PairTable, images: torch.Tensor, noise: str = "") -> TrainingData:
    device = torch.device("cpu")

    def part(split: str) -> tuple[PairTable, ImagesInMemory]:
        chosen = table.split(split)
        names = {name: code for code, name in enumerate(dict.fromkeys(table.column("image_id")))}
        codes = [names[chosen.arrow["image_id"][int(row)].as_py()] for row in chosen.first_rows]
        return chosen, ImagesInMemory(images[codes], device)

    train, pixels = part("train")
    return TrainingData(train, pixels, Gallery(*part("val")), table.fingerprint, noise)


def press_ctrl_c(
    patch: pytest.MonkeyPatch, after: int, signal_number: signal.Signals = signal.SIGINT
) -> list[int]:
    """After so many steps from now on; the numbers of all steps that are taken gather in the list."""
    taken: list[int] = []
    original = loop.StepRunner.step

    def step(self: loop.StepRunner, batches: Any, epoch: int, number: int, factor: float) -> None:
        original(self, batches, epoch, number, factor)
        taken.append(number)
        if len(taken) == after:
            signal.raise_signal(signal_number)

    patch.setattr(loop.StepRunner, "step", step)
    return taken


def small_config(**changes: object) -> TrainConfig:
    model = RetrieverConfig(
        vision="tiny", text="tiny", dim=32, image_size=SIZE, max_tokens=16, cross_gated=CrossGatedConfig()
    )
    base = TrainConfig(
        method="infonce",
        model=model,
        epochs=2,
        batch_size=40,
        optimiser=OptimiserConfig(encoder_lr=2e-3, head_lr=2e-3),
        augmentation=Augmentation(flip=False, rotate=False, crop_min=0.9),
        device="cpu",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def same(first: TrainResult, second: TrainResult) -> None:
    """Bit for bit: every weight and buffer."""
    left, right = first.method.state_dict(), second.method.state_dict()
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
