"""`pmpguard table`: recipes, what they run, what they write, and every recipe of the project."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pmpguard
from pmpguard.cli import main as cli
from pmpguard.cli import table as command
from pmpguard.errors import MissingExtraError
from pmpguard.evaluation.recall import recall_names
from pmpguard.experiments.grid import grid_cells, read_grid
from pmpguard.experiments.rows import ResultRow, append_row, read_rows
from pmpguard.experiments.run import deciding_settings

RECIPES = sorted((Path(pmpguard.__file__).parent / "experiments" / "recipes").glob("*.yaml"))
SMALL = {
    "epochs": 1, "batch_size": 40, "device": "cpu", "precision": "fp32", "ema": 0.0,
    "model": {"vision": "tiny", "text": "tiny", "dim": 32, "image_size": 64, "max_tokens": 24},
}  # fmt: skip
RECIPE = """
title: A small table
scenes: 60
methods:
  - name: infonce
  - {name: guard, method: pmpguard, settings: {detect_from_epoch: 0}}
  - {name: oracle, method: infonce, oracle: true}
rates: [0.2, 0.4]
seeds: [0, 1]
paper_table: 1
paper_dataset: RSICD
"""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def table_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.VERBS, "table", ("table", "table", "run a recipe and render its table"))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe; runs of one test are there for the next."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "small.yaml").write_text(RECIPE)
    return folder


def words(workplace: Path, *more: str) -> list[str]:
    places = [f"--{name}={workplace / name}" for name in ("work", "out")]
    rows = f"--rows={workplace / 'rows.jsonl'}"
    return ["table", str(workplace / "small.yaml"), *places, rows, "--train", json.dumps(SMALL), *more]


@pytest.mark.slow
def test_a_part_of_the_recipe_is_run_rendered_and_not_run_again(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = ["--rates", "[0.4]", "--seeds", "[0, 1]", "--lines", "[infonce, guard]"]
    assert cli.main(words(workplace, *part, "--json")) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["runs"] == told["finished"] == 4 and not told["interrupted"]
    assert "[4/4] guard, 40% mismatched (caption), seed 1: mR" in captured.err
    out = workplace / "out"
    assert told["files"] == [str(out / name) for name in ("table.md", "table.csv", "table.tex", "mr.png")]
    markdown = (out / "table.md").read_text()
    assert markdown.startswith("# A small table") and "| infonce | ours | 2 |" in markdown
    assert "±" in markdown and "| PMPGuard | printed, table 1 |" in markdown
    lines = list(csv.DictReader(io.StringIO((out / "table.csv").read_text())))
    ours = [line for line in lines if line["source"] == "ours"]
    assert [line["method"] for line in ours] == ["infonce", "guard"] and len(lines) > len(ours)
    values = [row.metrics["mr"] for row in read_rows(workplace / "rows.jsonl") if row.method == "guard"]
    assert float(ours[1]["mr_mean"]) == pytest.approx(sum(values) / 2, abs=1e-5)
    assert "\\begin{tabular}" in (out / "table.tex").read_text()
    assert (out / "mr.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main(words(workplace, *part)) == 0
    captured = capsys.readouterr()
    assert captured.err.count("finished before") == 4 and "| guard | ours | 2 |" in captured.out


@pytest.mark.slow
def test_rendering_only_runs_nothing_and_says_which_rows_have_other_settings(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing may run")

    assert cli.main(words(workplace, "--rates", "[0.4]", "--seeds", "[0]", "--lines", "[infonce]")) == 0
    monkeypatch.setattr(command, "run_grid", never)
    capsys.readouterr()
    assert cli.main(words(workplace, "--render_only", "true")) == 0
    text = capsys.readouterr().out
    assert "of 12 runs are missing" in text and "| infonce | ours |" in text
    assert re.search(r"among \d+ images recalls are high", text)
    assert cli.main(words(workplace, "--render-only=true", "--train.batch_size", "41")) == 0
    assert re.search(r"(\d+) of \1 rows were recorded with other settings", capsys.readouterr().out)


@pytest.mark.slow
def test_several_workers_give_the_rows_of_one(
    workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    part = ["--rates", "[0.4]", "--seeds", "[0, 1]", "--lines", "[infonce]"]
    apart = [f"--rows={tmp_path / 'rows.jsonl'}", f"--work={tmp_path / 'work'}", "--workers", "2"]
    assert cli.main(words(workplace, *part)) == 0
    assert cli.main(words(workplace, *part, *apart)) == 0
    assert "[2/2] infonce, 40% mismatched (caption), seed 1: mR" in capsys.readouterr().err
    one, two = (
        {row.fingerprint: (row.seed, row.metrics["mr"], row.noise_sha256) for row in read_rows(file)}
        for file in (workplace / "rows.jsonl", tmp_path / "rows.jsonl")
    )
    assert len(two) == 2 and two.items() <= one.items()
    assert not any((tmp_path / "work").iterdir())
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(words(workplace, *part, "--workers", "2")) == 1
    assert "a launcher has started several processes already" in capsys.readouterr().err


def test_only_missing_leaves_out_what_has_a_row_with_other_settings(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = ["--rates", "[0.4]", "--lines", "[infonce]", "--train.batch_size", "41"]
    assert cli.main(words(workplace, "--rates", "[0.4]", "--seeds", "[0]", "--lines", "[infonce]")) == 0
    asked: list[Any] = []

    def noted(grid: Any, work: Path, **named: Any) -> list[Any]:
        asked.extend(named["cells"])
        return []

    monkeypatch.setattr(command, "run_grid", noted)
    assert cli.main(words(workplace, *part, "--seeds", "[0, 7]", "--only_missing", "true")) == 0
    assert [cell.seed for cell in asked] == [7]
    asked.clear()
    assert cli.main(words(workplace, *part, "--seeds", "[0]", "--only_missing", "true")) == 0
    assert asked == [] and "recorded with other settings" in capsys.readouterr().out


def test_a_folder_in_capitals_is_the_dataset_of_recorded_rows(tmp_path: Path) -> None:
    recipe = tmp_path / "one.yaml"
    recipe.write_text("rates: [0.4]\nseeds: [0]\nmethods:\n  - name: infonce\n")

    def grid(folder: str) -> Any:
        return read_grid(recipe, {"dataset": folder, "train": SMALL, "rows": str(tmp_path / "rows.jsonl")})

    [cell] = grid_cells(grid("data/rsicd"))
    metrics = dict.fromkeys(recall_names(), 1.0)
    append_row(
        tmp_path / "rows.jsonl",
        ResultRow("rsicd", "infonce", "caption", 0.4, 0, "tiny+tiny", "val", metrics,
                  deciding_settings(cell.config), fingerprint=cell.fingerprint),
    )  # fmt: skip
    for folder, missing in (("data/RSICD", 0), ("UCM", 1)):
        cells = grid_cells(grid(folder))
        assert len(command.without_row(grid(folder), cells)) == missing
        assert len(command.recorded_rows(grid(folder), cells)) == 1 - missing


def test_ctrl_c_says_how_to_continue(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_grid = command.run_grid

    def stopped(grid: Any, work: Path, **named: Any) -> Any:
        def report(number: int, total: int, row: Any) -> None:
            raise KeyboardInterrupt

        return run_grid(grid, work, **{**named, "report": report})

    monkeypatch.setattr(command, "run_grid", stopped)
    assert (
        cli.main(words(workplace, "--rates", "[0.4]", "--seeds", "[0]", "--lines", "[infonce, oracle]"))
        == 130
    )
    text = capsys.readouterr().out
    assert "stopped with 1 of 2 runs finished; run the same command again to continue" in text
    assert "--render_only true" in text


def test_a_missing_dataset_is_explained_unless_nothing_is_left_to_run(
    workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, rows = tmp_path / "rsicd", tmp_path / "rows.jsonl"
    asked = ["--dataset", str(place), "--rates", "[0.4]", "--seeds", "[0]", "--lines", "[infonce]"]
    asked += [f"--rows={rows}", f"--out={tmp_path / 'out'}"]
    assert cli.main(words(workplace, *asked)) == 1
    error = capsys.readouterr().err
    assert "RSICD" in error and f"{place}/dataset_rsicd.json" in error and f"{place}/images/" in error
    grid = read_grid(workplace / "small.yaml", {"dataset": str(place), "train": SMALL})
    cell = next(cell for cell in grid_cells(grid) if (cell.line.name, cell.rate) == ("infonce", 0.4))
    assert cli.main(words(workplace, "--rates", "[0.4]", "--seeds", "[0]", "--lines", "[infonce]")) == 0
    row = read_rows(workplace / "rows.jsonl")[0]
    append_row(rows, command.replace(row, fingerprint=cell.fingerprint))
    assert cli.main(words(workplace, *asked)) == 0


def test_tables_are_written_without_matplotlib(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> None:
        raise MissingExtraError("this needs the package 'matplotlib'", fix="pip install 'pmpguard[plots]'")

    monkeypatch.setattr(command, "plot_mr", missing)
    part = ["--rates", "[0.4]", "--seeds", "[0]", "--lines", "[infonce]", f"--out={tmp_path / 'out'}"]
    assert cli.main(words(workplace, *part)) == 0
    assert "no plot: this needs the package 'matplotlib'" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "table.csv",
        "table.md",
        "table.tex",
    ]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--lines", "[clip]"], 1, "the recipe has no line 'clip'"),
        (["--train.epoch", "3"], 1, "train.epoch: unknown setting"),
        (["--train.model.dims", "3"], 1, "train.model.dims: unknown setting"),
        (["--rates", "[4]"], 1, "rate is 4"),
        (["--levels", "[word]"], 2, "word"),
        (["--train.device", "cude"], 1, "device: 'cude' is unknown"),
        (["--train.model.ranking", "gated"], 1, "infonce trains with 'pooled'"),
        (["--train.optimiser.new_lr", "1"], 1, "new_lr: this setting is called head_lr"),
        (["--out", __file__], 1, "test_table.py is a file, not a folder"),
        (["--speed", "3"], 2, "speed"),
    ],
)
def test_wrong_settings_are_named(
    workplace: Path, more: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = cli.main(words(workplace, *more))
    except SystemExit as error:
        found = error.code  # type: ignore[assignment]
    assert found == code and message in capsys.readouterr().err


def test_there_are_recipes() -> None:
    assert {recipe.stem for recipe in RECIPES} >= {"scenes", "rsicd-light", "rsicd-ablation"}


def test_recipes_are_listed_and_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", "--list"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {recipe.stem for recipe in RECIPES}
    assert lines["rsicd-light"] == "RSICD, light encoders"
    assert cli.main(["table", "rsicd-ligth"]) == 1
    assert "Fix: did you mean rsicd-light? known: " in capsys.readouterr().err
    assert cli.main(["table"]) == 1 and "--list" in capsys.readouterr().err
    assert cli.main(["table", "absent.yaml"]) == 1 and "no such recipe" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(  # the paper's tables run on stand-ins in test_paper_tables.py
    "recipe", [each for each in RECIPES if not each.stem.startswith("table")], ids=lambda path: path.stem
)
def test_every_recipe_runs_on_synthetic_scenes(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = read_grid(recipe)
    cells = grid_cells(grid)  # checks the names and settings of every line
    last, told = grid.methods[-1].name, grid.methods[-1].oracle
    rate = [cell.rate for cell in cells if cell.line.name == last][1]
    places = [f"--work={tmp_path / 'work'}", f"--out={tmp_path / 'out'}", f"--rows={tmp_path / 'rows.jsonl'}"]
    small = ["--dataset", "scenes", "--scenes", "60", "--train", json.dumps(SMALL)]
    one = ["--lines", json.dumps([last]), "--rates", f"[{rate}]", "--seeds", "[0]"]
    assert cli.main(["table", str(recipe), *places, *small, *one]) == 0
    text = capsys.readouterr().out
    source = "ours, told the labels" if told else "ours"
    assert f"# {grid.title}" in text and f"| {last} | {source} | 1 |" in text
    assert ("printed, table" in text) == (grid.paper_table is not None)
    assert (tmp_path / "out" / "mr.png").is_file()
