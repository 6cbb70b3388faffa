"""Grids: which runs they are made of, what is skipped, what is run again, what survives an interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.prepared_squares import prepared_squares
from helpers.small_runs import press_ctrl_c, small_config

from pmpguard.config import from_dict
from pmpguard.errors import ConfigError
from pmpguard.experiments import grid as grid_module
from pmpguard.experiments.grid import (
    GridConfig,
    GridMethod,
    cell_config,
    grid_cells,
    read_grid,
    run_grid,
)
from pmpguard.experiments.render import make_sections, to_markdown
from pmpguard.experiments.rows import read_rows, row_fingerprint, summarise
from pmpguard.experiments.run import (
    ExperimentConfig,
    PreparedDataset,
    deciding_settings,
    run_experiment,
)
from pmpguard.training.config import TrainConfig
from pmpguard.training.interrupt import Interrupted

DATA = prepared_squares()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[ExperimentConfig]:
    """Grids train on the squares; the list collects every run that really happens."""
    happened: list[ExperimentConfig] = []

    def counted(config: ExperimentConfig, run: Path, data: PreparedDataset) -> Any:
        happened.append(config)
        return run_experiment(config, run, data)

    monkeypatch.setattr(grid_module, "prepare_dataset", lambda config: DATA)
    monkeypatch.setattr(grid_module, "run_experiment", counted)
    return happened


def small_grid(tmp_path: Path, **changes: Any) -> GridConfig:
    base = GridConfig(
        methods=(GridMethod("infonce"), GridMethod("margin", method="vse", settings={"margin": 0.3})),
        rates=(0.0, 0.4),
        seeds=(0,),
        train=small_config(epochs=1, checkpoint_every=-1),
        rows=tmp_path / "rows.jsonl",
    )
    return replace(base, **changes)


def test_cells_are_the_product_seed_by_seed(tmp_path: Path) -> None:
    grid = small_grid(tmp_path, seeds=(3, 4), levels=("caption", "image"))
    cells = grid_cells(grid)
    assert len(cells) == 2 * 2 * 2 * 2 and len({cell.fingerprint for cell in cells}) == len(cells)
    assert [cell.seed for cell in cells] == [3] * 8 + [4] * 8
    margin = cells[1].config.train
    assert (margin.method, margin.settings, margin.seed) == ("vse", {"margin": 0.3, "warmup_epochs": 1}, 3)
    assert cells[-1].config.noise.level == "image" and cells[-1].config.noise.rate == 0.4


def test_a_line_may_have_its_own_rates_and_training(tmp_path: Path) -> None:
    own = GridMethod(
        "slow", method="infonce", train={"epochs": 5, "optimiser": {"max_grad_norm": 2.0}}, rates=(0.4,)
    )
    grid = small_grid(tmp_path, methods=(GridMethod("infonce"), own))
    assert [cell.line.name for cell in grid_cells(grid)] == ["infonce", "infonce", "slow"]
    train = cell_config(grid, own, "caption", 0.4, 0).train
    assert (train.epochs, train.optimiser.max_grad_norm, train.optimiser.head_lr) == (5, 2.0, 2e-3)
    with pytest.raises(ConfigError, match=r"methods\.slow\.train\.epoch: unknown setting"):
        grid_cells(replace(grid, methods=(replace(own, train={"epoch": 5}),)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": (GridMethod("infonce"), GridMethod("infonce"))}, "two lines are called 'infonce'"),
        ({"methods": (GridMethod("nothing"),)}, "unknown method 'nothing'"),
        ({"methods": (GridMethod("vse", settings={"margn": 1}),)}, "settings.margn: unknown setting"),
        ({"methods": (GridMethod("vse", preset="printed"),)}, "no preset 'printed'"),
        ({"rates": (0.4, 40.0)}, "rate is 40"),
        ({"seeds": ()}, "asks for no run"),
    ],
)
def test_a_bad_line_is_found_before_the_first_run(
    tmp_path: Path, runs: list[ExperimentConfig], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_grid(small_grid(tmp_path, **changes), tmp_path / "work")
    assert runs == [] and not (tmp_path / "rows.jsonl").exists()


@pytest.mark.slow
def test_finished_rows_are_skipped_and_a_changed_setting_is_a_new_row(
    tmp_path: Path, runs: list[ExperimentConfig]
) -> None:
    grid = small_grid(tmp_path)
    reported: list[tuple[int, int, str]] = []

    def report(number: int, total: int, row: Any) -> None:
        reported.append((number, total, row.method))

    rows = run_grid(grid, tmp_path / "work", report=report)
    assert reported == [(1, 4, "infonce"), (2, 4, "margin"), (3, 4, "infonce"), (4, 4, "margin")]
    assert len(runs) == 4 and read_rows(grid.rows) == rows
    assert not any((tmp_path / "work").iterdir())  # finished runs leave their row only
    assert run_grid(grid, tmp_path / "work") == rows and len(runs) == 4
    moved = replace(grid, train=replace(grid.train, device="auto"), images=tmp_path)
    assert run_grid(moved, tmp_path / "work") == rows and len(runs) == 4  # where things lie decides nothing
    changed = replace(grid, rates=(0.4,), train=replace(grid.train, batch_size=60))
    fresh = run_grid(changed, tmp_path / "work")
    assert len(runs) == 6 and len(read_rows(grid.rows)) == 6
    assert {row.fingerprint for row in fresh}.isdisjoint(row.fingerprint for row in rows)


@pytest.mark.slow
def test_an_interrupted_grid_continues_inside_the_run(
    tmp_path: Path, runs: list[ExperimentConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = small_grid(tmp_path, rates=(0.4,), train=small_config(epochs=2, checkpoint_every=-1))
    straight = run_grid(replace(grid, rows=tmp_path / "straight.jsonl"), tmp_path / "straight")
    steps = press_ctrl_c(monkeypatch, 6 + 6 + 8)  # in the second epoch of the second run
    with pytest.raises(Interrupted, match="run the same command again"):
        run_grid(grid, tmp_path / "work")
    assert [row.method for row in read_rows(grid.rows)] == ["infonce"]
    rows = run_grid(grid, tmp_path / "work")
    assert steps[20:] == [8, 9, 10, 11]  # neither the finished run nor the first steps are repeated
    varying = ("pairs_per_second", "train_seconds", "peak_memory_gb")
    for left, right in zip(straight, rows, strict=True):
        assert {**left.metrics, **dict.fromkeys(varying, 0)} == {**right.metrics, **dict.fromkeys(varying, 0)}


def test_rows_carry_every_setting_and_their_fingerprint(tmp_path: Path, runs: list[ExperimentConfig]) -> None:
    grid = small_grid(tmp_path, rates=(0.4,))
    rows = run_grid(grid, tmp_path / "work")
    for row, cell in zip(read_rows(grid.rows), grid_cells(grid), strict=True):
        assert row in rows and row.settings_known == "all"
        assert row.settings == deciding_settings(cell.config) and row.settings["noise"]["seed"] == 0
        assert row.fingerprint == row_fingerprint(row.method, row.settings) == cell.fingerprint
        train = {**row.settings["train"], "device": "cpu"}
        assert from_dict(TrainConfig, train) == cell.config.train
    assert rows[1].settings["train"]["settings"] == {"margin": 0.3, "warmup_epochs": 1}
    assert rows[0].settings["train"]["model"]["ranking"] == "pooled"
    assert rows[0].settings["hold_out"] is None and rows[0].settings["dataset"] == "scenes"


def test_default_and_given_settings_of_equal_value_are_one_run(tmp_path: Path) -> None:
    given, left_out = (GridMethod("m", method="vse", settings=settings) for settings in ({"margin": 0.2}, {}))
    first, second = (grid_cells(small_grid(tmp_path, methods=(line,)))[0] for line in (given, left_out))
    assert first.fingerprint == second.fingerprint
    other = replace(given, preset="recommended", settings={"margin": 0.25})
    assert grid_cells(small_grid(tmp_path, methods=(other,)))[0].fingerprint != first.fingerprint


@pytest.mark.parametrize("place", ["recipe", "line", "option"])
def test_what_the_method_decides_is_refused_elsewhere_in_a_recipe(tmp_path: Path, place: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    model = "{model: {ranking: awareness}}"  # the model's own default, but given
    recipe.write_text(
        "methods:\n  - name: infonce\n"
        + (f"    train: {model}\n" if place == "line" else "")
        + (f"train: {model}\n" if place == "recipe" else "")
    )
    changes = {"train": {"model": {"ranking": "awareness"}}} if place == "option" else {}
    with pytest.raises(
        ConfigError, match=r"train\.model\.ranking: 'awareness' .* infonce trains with 'pooled'"
    ):
        read_grid(recipe, changes)


@pytest.mark.slow
def test_an_oracle_line_goes_by_its_name(tmp_path: Path, runs: list[ExperimentConfig]) -> None:
    lines = (GridMethod("infonce"), GridMethod("oracle", method="infonce", oracle=True))
    rows = run_grid(small_grid(tmp_path, methods=lines, rates=(0.4,)), tmp_path / "work")
    assert [row.method for row in rows] == ["infonce", "oracle"]
    assert [config.oracle for config in runs] == [False, True]


def test_lines_with_images_of_another_size_get_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[int] = []

    def prepare(config: ExperimentConfig) -> PreparedDataset:
        prepared.append(config.train.model.image_size)
        return DATA

    class Stop(Exception):
        pass

    def run(config: ExperimentConfig, folder: Path, data: PreparedDataset) -> Any:
        if len(prepared) == 2:
            raise Stop
        return run_experiment(config, folder, data)

    monkeypatch.setattr(grid_module, "prepare_dataset", prepare)
    monkeypatch.setattr(grid_module, "run_experiment", run)
    larger = GridMethod("larger", method="infonce", train={"model": {"image_size": 64}})
    with pytest.raises(Stop):
        run_grid(small_grid(tmp_path, methods=(GridMethod("infonce"), larger)), tmp_path / "work")
    assert prepared == [32, 64]


def test_kept_models_stay_in_the_work_folder(tmp_path: Path, runs: list[ExperimentConfig]) -> None:
    grid = small_grid(tmp_path, methods=(GridMethod("w/o noise", method="infonce"),), rates=(0.0,))
    run_grid(grid, tmp_path / "work", keep_models=True)
    (kept,) = (tmp_path / "work").iterdir()
    assert kept.name.startswith("w-o-noise-caption-0-0-") and (kept / "model" / "model.safetensors").is_file()


def test_seeds_become_a_mean_and_a_deviation_with_printed_values_marked(
    tmp_path: Path, runs: list[ExperimentConfig]
) -> None:
    grid = small_grid(
        tmp_path, methods=(GridMethod("pmpguard", method="infonce"),), rates=(0.4,), seeds=(0, 1)
    )
    rows = run_grid(grid, tmp_path / "work")
    values = [row.metrics["mr"] for row in rows]
    mean, deviation = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
    text = to_markdown(make_sections(summarise(rows), 1, "RSICD"))
    ours = next(line for line in text.splitlines() if line.startswith("| pmpguard | ours | 2 |"))
    assert f"**{mean:.2f} ± {deviation:.2f}**" in ours
    assert "| PMPGuard | printed, table 1 |" in text


def test_recipes_are_read_strictly(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("rates: [0, 0.5]\nmethods:\n  - name: vse\ntrain:\n  epochs: 3\n  model: {dim: 64}\n")
    grid = read_grid(recipe, {"rates": [0.4], "train": {"model": {"image_size": 32}}})
    assert grid.rates == (0.4,) and [line.name for line in grid.methods] == ["vse"]
    assert (grid.train.epochs, grid.train.model.dim, grid.train.model.image_size) == (3, 64, 32)
    for text, message in (
        ("seed: [1]", r"recipe\.yaml\.seed: unknown setting"),
        ("train: {epochs: many}", r"train\.epochs: expected int"),
        ("- a\n- b", "a recipe is a mapping"),
        ("a: [", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ):
        recipe.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_grid(recipe)
    with pytest.raises(ConfigError, match="no such recipe"):
        read_grid(tmp_path / "nothing.yaml")
