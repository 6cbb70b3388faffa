"""The commands of five pages, as they stand there, on a small world; what a page skips another test runs."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.geo_scene_files import write_scene
from helpers.page_commands import commands
from helpers.search_examples import make_own_folder, only_images

from pmpguard.cli import serve as serve_command
from pmpguard.cli import train as train_command
from pmpguard.cli import up as up_command
from pmpguard.cli.main import VERBS, main
from pmpguard.experiments.run import ExperimentConfig, corrupt_dataset, prepare_dataset
from pmpguard.training.interrupt import Interrupted

ROOT = Path(__file__).resolve().parents[1]
TINY = (
    "--train.model.vision tiny --train.model.text tiny --train.model.image_size 64 --train.model.dim 32 "
    "--train.batch_size 40 --train.device cpu"
)
SMALLER = {
    "--count 200 --size 128": "--count 30 --size 64",
    "--hold_out.test 500 --hold_out.val 500": "--hold_out.test 6 --hold_out.val 6",
    "scene-000019-3,scene-000004-0": "scene-000019-3",
    "DATASET": "my-dataset/",
    "FOLDER": "clip-vectors",
}
# What is not run here: it needs what tests do not have, or another test runs it.
SKIPPED = (
    "dinov2",  # tests/models/test_vision_folder.py
    "--quick",  # tests/test_first_hour.py
    "rsicd",  # tests/cli/test_table.py, tests/serving/test_page_compare.py
    "table scenes",
    "--check rows.jsonl",  # tests/experiments/test_submission.py
    "--near",  # tests/geo/test_distance.py
    "places.csv",  # tests/cli/test_up.py
    "catalog.json",  # tests/geo/test_stac_input.py
    "example.org",
    "SCENES",
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages' reader has."""
    here = tmp_path_factory.mktemp("pages")
    make_own_folder(here)
    shutil.copytree(here / "my-dataset", here / "imagery")
    for name in ("images", "more/images"):
        only_images(here / "my-dataset", here / name, 8)
    shutil.copyfile(here / "images" / "scene-000000.png", here / "one.png")
    lines = [f"my-dataset/images/scene-{number:06d}.png,scene number {number}" for number in range(40)]
    (here / "pairs.csv").write_text("\n".join(["image,caption", *lines]) + "\n")
    draw = np.random.default_rng(0)
    for number in range(2):
        write_scene(here / "scenes" / f"{number}.tif", draw.integers(0, 255, (3, 300, 300), dtype=np.uint8))
    with contextlib.chdir(here), contextlib.redirect_stdout(io.StringIO()):
        assert main(["embed", "my-dataset", "--model", "runs/first/model", "--out", "clip-vectors"]) == 0
    return here


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = shutil.copytree(prepared, tmp_path / "page")
    monkeypatch.chdir(here)
    return here


@pytest.fixture(autouse=True)
def nothing_is_served_or_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training is run up to its first step: data, splits, noise and settings are there and agree."""

    def prepare(config: ExperimentConfig, *_: Any, **__: Any) -> None:
        corrupt_dataset(prepare_dataset(config).table, config.noise, config.train.seed)
        raise Interrupted("prepared")

    for command in (up_command, serve_command):
        monkeypatch.setattr(command, "serve_folder", lambda *_: None)
    monkeypatch.setattr(train_command, "run_experiment", prepare)


def lines_of(page: str) -> list[str]:
    """The commands of a page, smaller, each once."""
    found = []
    for line in commands((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")):
        for usual, smaller in SMALLER.items():
            line = line.replace(usual, smaller)
        if line.partition(" ")[2] not in VERBS and not any(part in line for part in SKIPPED):
            found.append(f"{line} {more_of(line)}")
    return list(dict.fromkeys(found))


def more_of(line: str) -> str:
    """What makes a training, or an audit that trains judges, small."""
    if line.startswith("pmpguard train"):
        return TINY
    if not line.startswith("pmpguard audit"):
        return ""
    judged = any(word in line for word in ("--model", "--embeddings", "audit clip-vectors"))
    return "--bootstrap 0" if judged else "--bootstrap 0 --model runs/first/model"


def run(line: str) -> int:
    words = shlex.split(line)[1:]
    if "--out" in words:
        written = Path(words[words.index("--out") + 1])
        for file in written.parent.glob(f"{written.name}*"):  # an earlier command of the page wrote it
            if file.is_file():
                file.unlink()
    if words[0] == "up":
        shutil.rmtree(Path(words[1]) / ".pmpguard", ignore_errors=True)
    if "--decisions" in words:
        summary = json.loads(Path("report/summary.json").read_text())
        Path("decisions.json").write_text(json.dumps({"dataset": summary["dataset"], "decisions": {}}))
    return main(words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "least"), [("audit", 12), ("search", 12), ("imagery", 5), ("train", 9), ("protocol", 4)]
)
def test_commands_of_a_page_run(
    page: str, least: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(page)
    assert len(lines) >= least
    for line in lines:
        code = run(line)
        captured = capsys.readouterr()
        stopped = line.startswith("pmpguard train")
        assert code == (130 if stopped else 0), (line, captured.out + captured.err)
