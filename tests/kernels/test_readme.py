"""The kernels' README holds what was measured, and every kernel in it still deserves its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "src/pmpguard/kernels/README.md").read_text(encoding="utf-8")
RUNS = json.loads((ROOT / "benchmarks/results/kernels.json").read_text(encoding="utf-8"))["runs"]
ROWS = [(device, name, row) for device, run in RUNS.items() for name, row in run["rows"].items()]


def gain(device: str, part: dict[str, Any]) -> float | None:
    """Of time on a GPU, of processor time on a CPU."""
    return part.get("gain_over_compiled" if device == "cuda" else "processor_gain_over_compiled")


@pytest.mark.parametrize(("device", "name", "row"), ROWS, ids=[f"{row[0]}, {row[1]}" for row in ROWS])
def test_the_table_holds_what_was_measured(device: str, name: str, row: dict[str, Any]) -> None:
    end_to_end = gain(device, row["end_to_end"])
    assert end_to_end is not None and f"| {name} | {device.upper()} | {end_to_end:.2f} |" in README


def test_every_kernel_gains_by_a_third_where_it_serves() -> None:
    gains = {(device, name): gain(device, row["end_to_end"]) or 0.0 for device, name, row in ROWS}
    below = {place for place, times in gains.items() if times < 1.3}
    assert below <= {("cuda", "awareness, training step, light encoders")}, "as the text says, and no other"
    assert all(gains[place] > 1 for place in below)
    best: dict[tuple[str, str], float] = {}
    for (device, name), times in gains.items():
        op = device, name.partition(",")[0]
        best[op] = max(times, best.get(op, 0.0))
    assert min(best.values()) >= 1.3


def test_the_text_names_what_was_not_measured() -> None:
    unmeasured = README.partition("Not measured on CUDA:\n\n")[2].partition("\n\n")[0]
    assert [line.removeprefix("* ") for line in unmeasured.splitlines()] == RUNS["cuda"]["not_measured"]
    assert "not_measured" not in RUNS["cpu"]


def test_every_module_of_a_kernel_is_in_the_table() -> None:
    folder = ROOT / "src/pmpguard/kernels"
    modules = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if path.stem != "__init__" and "triton" not in path.stem
    ]
    assert [module for module in modules if f"`{module}`" not in README] == []
