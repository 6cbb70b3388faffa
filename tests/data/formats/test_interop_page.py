"""The commands of docs/interop-data.md do what the page says, on small data of each kind."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import format_examples as examples
from helpers.planted_pairs import planted, write_clip_folder

import pmpguard
from pmpguard.cli.main import main
from pmpguard.data.formats import read_pairs, write_pairs
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

PAGE = Path(__file__).parents[3] / "docs" / "interop-data.md"
PEER_FILES = Path(__file__).parent / "peer_files"
HAVE, USE = (
    re.findall(r"\| `(pmpguard [^`]+)` \|$", part, re.MULTILINE)
    for part in PAGE.read_text(encoding="utf-8").split("\n## I use\n")
)


def renamed(write: Callable[[Path], Path]) -> Callable[[Path], None]:
    """One file of an example under the page's name, its images beside it."""

    def make(target: Path) -> None:
        written = write(target.parent / "made")
        file = written if written.is_file() else next(path for path in written.iterdir() if path.is_file())
        for path in (target.parent / "made").iterdir():
            path.rename(target if path == file else target.parent / path.name)

    return make


WRITE: dict[str, Callable[[Path], object]] = {
    "dataset_rsicd.json": renamed(examples.karpathy),
    "dataset_nwpu.json": renamed(examples.nwpu),
    "rsicd_precomp": lambda path: examples.amfmn(path.parent / "made").rename(path),
    "f30k_precomp": examples.scan,
    "coco": examples.coco,
    "chat.json": renamed(examples.llava),
    "results_20130124.token": renamed(examples.flickr_tokens),
    "pairs.csv": renamed(examples.openclip),
    "odd.csv": renamed(lambda path: examples.openclip(path, "csv", ("where", "said"))),
    "pairs.xlsx": renamed(examples.excel),
    "pairs.jsonl": renamed(examples.jsonl),
    "imagefolder": examples.metadata_folder,
    "captioned": examples.caption_files,
    "hub-dataset": examples.hugging_face_parquet,
    "saved": examples.saved_to_disk,
    "shards": examples.webdataset,
    "img2dataset": lambda path: shutil.copytree(PEER_FILES / "img2dataset" / "files", path),
    "embeddings": lambda path: write_clip_folder(path, planted(images=40, rate=0.2)),
}


@pytest.mark.parametrize("command", HAVE)
def test_what_you_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = command.split()[1:]
    target = next(word.rstrip("/") for word in words if word.rstrip("/") in WRITE)
    WRITE[target](tmp_path / target)
    assert main(words) == 0
    assert "pairs" in capsys.readouterr().out


def test_every_kind_stands_on_the_page() -> None:
    named = {word.rstrip("/") for command in HAVE for word in command.split()}
    assert set(WRITE) <= named and len(HAVE) == len(WRITE) and len(USE) == 9


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("use")
    table = read_pairs(examples.hugging_face_parquet(folder / "data"))
    generator = np.random.default_rng(0)
    images = generator.normal(size=(6, 32))
    texts = images[table.image_codes] + 0.2 * generator.normal(size=(30, 32))
    pmpguard.audit(table, texts=texts, images=images, bootstrap=0).report(folder / "report")
    yield folder


@pytest.mark.parametrize("command", USE)
def test_what_you_use(report: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(report)
    words = command.split()[1:]
    assert main(words) == 0
    out = next(word for word in words[1:] if word.startswith(("cleaned", "issues", "samples", "tasks")))
    if words[0] == "clean" and not out.endswith(".csv"):
        assert len(read_pairs(report / out.rstrip("/"), strict=True)) > 0
    assert (report / out.rstrip("/")).exists()


def test_decisions_of_label_studio_come_back(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in the text: every task is decided in the form that Label Studio exports."""
    monkeypatch.chdir(report)
    assert main(["audit", "export", "report/", "given/", "--to", "label-studio", "--pairs", "all"]) == 0
    tasks = json.loads(Path("given/tasks.json").read_text())
    for number, task in enumerate(tasks):
        choice = {"from_name": "decision", "value": {"choices": ["keep" if number else "drop"]}}
        task["annotations"] = [{"result": [choice], "was_cancelled": False}]
    Path("project-1.json").write_text(json.dumps(tasks))
    (command,) = re.findall(r"`pmpguard (clean \S+ --decisions [^`]+)`", PAGE.read_text(encoding="utf-8"))
    assert main(command.split()) == 0
    left = read_pairs(command.split()[-1], images=read_pairs("report/pairs.parquet").root).column("pair_id")
    assert set(left) == {task["data"]["pair_id"] for task in tasks[1:]} and len(left) == len(tasks) - 1


@pytest.mark.slow
def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    world = synthetic_scenes(30, size=32)
    write_pairs(write_world(world, tmp_path / "world"), tmp_path / "my-dataset", "folder")
    model = Retriever.create(preset("tiny", dim=16, image_size=32), world.table.captions).eval()
    monkeypatch.setattr(pmpguard, "audit", partial(pmpguard.audit, model=model, bootstrap=0))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    assert len(names["audit"].issues) == len(read_pairs("my-dataset").split("train"))
