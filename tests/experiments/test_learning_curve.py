"""The plot of how runs learned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pmpguard.experiments.learning_curve import plot_learning, validation_recalls


def write_run(folder: Path, recalls: list[float]) -> Path:
    folder.mkdir()
    records = [{"kind": "validation", "epoch": epoch, "mr": mr} for epoch, mr in enumerate(recalls)]
    lines = [{"kind": "step", "loss": 1.0}, *records]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_epochs_are_counted_from_one(tmp_path):
    assert validation_recalls(write_run(tmp_path / "run", [10.0, 30.0])) == ([1, 2], [10.0, 30.0])


def test_every_run_is_a_line(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    one, two = write_run(tmp_path / "one", [5, 50]), write_run(tmp_path / "two", [50, 5])
    plot_learning({"one": one}, tmp_path / "alone.png")
    plot_learning({"one": one, "two": two}, tmp_path / "new" / "both.png")
    for name, expected in (("alone.png", False), ("new/both.png", True)):
        red, green, blue = np.moveaxis(np.asarray(Image.open(tmp_path / name).convert("RGB"), int), -1, 0)
        of_second_line = (green > 130) & (red < 90) & (blue < 90)
        assert (of_second_line.sum() > 100) == expected
