"""The real mteb runs our tasks on our models, and its recalls are our evaluator's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pmpguard.data.formats import read_pairs
from pmpguard.evaluation.evaluate import evaluate_scores
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever

mteb = pytest.importorskip("mteb", reason="the extra mteb is not installed: its tasks are NOT tested here")

WORDS = ["pond", "farm", "road", "planes", "trees", "river", "roof", "beach", "ship", "bridge"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Thirty images with three captions each, no two of them equal, and a model."""
    folder, draw = tmp_path_factory.mktemp("mteb"), np.random.default_rng(0)
    lines = []
    for image in range(30):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((48, 32)).save(folder / f"{image}.png")
        for number in range(3):
            words = draw.permutation(WORDS)[:5].tolist() + [f"w{image}"] + ["again"] * number
            lines.append({"image": f"{image}.png", "caption": " ".join(words), "split": "test"})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    captions = [line["caption"] for line in lines]
    Retriever.create(preset("tiny", dim=16, image_size=32), captions).eval().save(folder / "model")
    return folder


@pytest.mark.parametrize("name", ["rsicd", "ucm"])
def test_recalls_are_those_of_our_evaluator(data, name):
    from pmpguard.interop.mteb_tasks import TASKS, MtebModel

    model, found = MtebModel(data / "model"), {}
    for task, direction in zip(TASKS[name], ("i2t", "t2i"), strict=True):
        results = mteb.evaluate(model, task(data / "pairs.jsonl"), cache=None, co2_tracker=False)
        scores = results.task_results[0].scores["test"][0]
        found |= {f"{direction}_r{k}": 100 * scores[f"hit_rate_at_{k}"] for k in (1, 5, 10)}
        assert results.task_results[0].task_name.endswith(f"{direction.upper()}Retrieval")
    table = read_pairs(data / "pairs.jsonl").split("test")
    ours = model.model
    texts = ours.encode_query(list(table.captions))
    images = ours.encode_document([table.image_path(int(row)) for row in table.first_rows])
    wanted = evaluate_scores(texts @ images.T, table).as_dict()
    for key, value in found.items():
        assert value == pytest.approx(wanted[key], abs=1e-3)  # mteb rounds to five digits
    assert sum(found.values()) / 6 == pytest.approx(wanted["mr"], abs=1e-3)
    assert 0 < wanted["i2t_r10"] < 100


def test_results_are_filed_by_what_the_model_is(data, tmp_path):
    from pmpguard.interop.mteb_tasks import MtebModel

    Retriever.create(preset("tiny", dim=16, image_size=32), ["a pond"]).save(tmp_path / "model")
    one, other = (MtebModel(folder / "model").mteb_model_meta for folder in (data, tmp_path))
    assert one.name == other.name == "pmpguard/model" and one.revision != other.revision


def test_the_python_of_the_page_runs(data, tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "interop-models.md"
    (code,) = (
        code
        for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
        if "import mteb" in code
    )
    shutil.copytree(data, tmp_path / "rsicd", ignore=shutil.ignore_patterns("model"))
    shutil.copytree(data / "model", tmp_path / "runs" / "first" / "model")
    monkeypatch.chdir(tmp_path)
    exec(code, {})  # noqa: S102
    shown = [float(line) for line in capsys.readouterr().out.splitlines() if line[:2] in ("0.", "1.")]
    assert len(shown) == 2 and all(0 < each < 1 for each in shown)


def test_each_task_says_what_mteb_asks_for(data):
    from pmpguard.interop.mteb_tasks import TASKS

    for tasks in TASKS.values():
        for task in tasks:
            about = task.metadata
            assert about.is_filled() and about.main_score == "hit_rate_at_10"
            loaded = task(data / "pairs.jsonl")
            loaded.load_data()
            split = loaded.dataset["default"]["test"]
            many, few = sorted((len(split["queries"]), len(split["corpus"])), reverse=True)
            assert (many, few) == (90, 30)
            assert sum(map(len, split["relevant_docs"].values())) == 90
