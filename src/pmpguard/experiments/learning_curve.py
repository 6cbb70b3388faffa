"""How runs of the same training learned: validation mR by epoch, as a plot."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

from pmpguard.errors import require
from pmpguard.files import write_atomic

COLOURS = ("tab:red", "tab:green", "tab:blue", "tab:orange")


def plot_learning(runs: Mapping[str, Path], path: Path) -> None:
    """Write a PNG with one line for each run's folder, named by its key."""
    figures = require("matplotlib.figure", "plots")
    figure = figures.Figure(figsize=(5.2, 3.4), layout="constrained", dpi=150)
    axes = figure.subplots()
    for (name, run), colour in zip(runs.items(), COLOURS, strict=False):
        epochs, recalls = validation_recalls(run)
        axes.plot(epochs, recalls, "o-", color=colour, label=name)
    axes.set(xlabel="epoch", ylabel="validation mR", title="Learning under noisy correspondence")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())


def validation_recalls(run: Path) -> tuple[list[int], list[float]]:
    """The epochs of a run, counted from 1, and the validation mR after each."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "validation"]
    return [record["epoch"] + 1 for record in records], [record["mr"] for record in records]
