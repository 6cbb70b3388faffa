"""The figures of the method's page show what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("method_figures", ROOT / "benchmarks" / "method_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_boundary_costs_least(figures: ModuleType) -> None:
    axes = Figure().subplots()
    best = figures.boundary_figure(axes)
    t, cost = axes.lines[2].get_data()
    assert abs(t[np.argmin(cost)] - best) < 0.005


def test_awareness_rises_at_the_boundary_and_counts_against_below(figures: ModuleType) -> None:
    axes = Figure().subplots()
    figures.awareness_figure(axes)
    cosines, scores = map(np.asarray, axes.lines[0].get_data())
    jump = np.argmax(np.diff(scores))
    assert abs(cosines[jump] - 0.3) < 0.02 and scores[0] < 0 < scores[-1]


def test_detection_finds_the_planted_rate(figures: ModuleType) -> None:
    assert abs(figures.detection_figure(Figure().subplots()) - 0.4) < 0.05


def test_the_page_shows_what_the_command_draws(figures: ModuleType, tmp_path: Path) -> None:
    names = [path.name for path in figures.draw(tmp_path)]
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    assert all(f"(images/{name})" in page and (ROOT / "docs" / "images" / name).is_file() for name in names)
