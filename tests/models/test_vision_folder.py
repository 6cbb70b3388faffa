"""A vision model without a text tower finds images by images; texts are refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.vision_checkpoints import SMALL, save_dinov2, save_dinov3, save_resnet, save_swin, save_vit
from PIL import Image

import pmpguard
from pmpguard.cli.main import main
from pmpguard.errors import ModelError
from pmpguard.models.retriever import Retriever
from pmpguard.models.vision_folder import vision_framing
from pmpguard.search.index.model_identity import identify_model
from pmpguard.search.query import Query
from pmpguard.search.query_checks import QueryError
from pmpguard.search.searcher import Searcher


def save_mae(folder):
    from transformers import ViTMAEConfig, ViTMAEModel

    ViTMAEModel(ViTMAEConfig(**SMALL, patch_size=8, intermediate_size=32)).save_pretrained(folder)


def save_convnext(folder):
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32)
    ConvNextModel(config).save_pretrained(folder)


SAVERS = {
    "dinov2": save_dinov2,
    "dinov3": save_dinov3,
    "vit_mae": save_mae,
    "convnext": save_convnext,
    "swin": save_swin,
    "vit": save_vit,
    "resnet": save_resnet,
}


def own_vectors(folder, pixels, kind):
    """(N, d) what the family's own code gives, through nothing of ours."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    if kind == "vit_mae":
        model.config.mask_ratio = 0.0
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    given = (pixels / 255 - mean[:, None, None]) / std[:, None, None]
    with torch.no_grad():
        out = model(given)
    if kind == "vit":
        found = out.last_hidden_state[:, 0]
    elif kind == "vit_mae":
        found = out.last_hidden_state[:, 1:].mean(1)
    else:
        found = out.pooler_output.flatten(1)
    return torch.nn.functional.normalize(found, dim=-1)


@pytest.mark.parametrize("kind", SAVERS)
def test_vectors_are_those_of_the_family(tmp_path, kind):
    torch.manual_seed(0)
    SAVERS[kind](tmp_path / "m")
    stored = json.loads((tmp_path / "m" / "config.json").read_text())
    stored["image_size"] = 64 if kind in ("swin", "resnet") else 32
    (tmp_path / "m" / "config.json").write_text(json.dumps(stored))
    model = pmpguard.load(tmp_path / "m")
    pixels = torch.randint(0, 256, (3, 3, stored["image_size"], stored["image_size"]), dtype=torch.uint8)
    encoded = model.encode_images(pixels)
    assert torch.allclose(encoded.pooled, own_vectors(tmp_path / "m", pixels, kind), atol=1e-4)
    assert identify_model(tmp_path / "m").dim == encoded.pooled.shape[1] == model.config.dim
    assert "images only" in identify_model(tmp_path / "m").name and not model.reads_texts


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vision") / "dino"
    save_dinov2(folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Eight images with captions."""
    folder = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for number in range(8):
        pixels = noise.integers(0, 256, (4, 4, 3), np.uint8).repeat(12, 0).repeat(12, 1)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    lines = [json.dumps({"file_name": f"{number}.png", "text": "a square"}) for number in range(8)]
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return folder


def test_it_indexes_and_finds_images_by_images(tmp_path, capsys, vision, images):
    words = ["--model", vision, "--out", tmp_path / "emb", "--device", "cpu", "--progress", "false"]
    assert main([*map(str, ["embed", images, *words])]) == 0
    assert main([*map(str, ["index", "build", tmp_path / "index", "--embeddings", tmp_path / "emb"])]) == 0
    capsys.readouterr()
    for number in range(8):
        found = ["search", tmp_path / "index", "--image", images / f"{number}.png", "--json"]
        assert main([*map(str, found)]) == 0
        hits = json.loads(capsys.readouterr().out)["hits"]
        assert len(hits) == 8 and hits[0]["image"] == f"{number}.png" and hits[0]["score"] > 0.999
    assert main([*map(str, ["search", tmp_path / "index", "a red square"])]) != 0
    told = capsys.readouterr().err
    assert "reads no texts" in told and "such as `default`" in told
    searcher = Searcher.open(tmp_path / "index")
    assert searcher.caption_count == 0 and not searcher.reads_texts
    with pytest.raises(QueryError, match="dinov2, images only"):
        searcher.search(Query("a square", Image.new("RGB", (8, 8))))
    with pytest.raises(QueryError, match="reads no texts"):
        searcher.explain("0.png", "a square")
    regions = searcher.opened.version.images.vectors.take([0]).fragments
    assert regions.shape == (1, 1, 16)  # no room is taken by what no word can be compared with


def test_texts_are_refused(vision):
    model = Retriever.load(vision)
    for ask in (
        lambda: model.encode_texts("a pond"),
        lambda: model.score("a pond", Image.new("RGB", (9, 9))),
    ):
        with pytest.raises(ModelError, match="images only") as refusal:
            ask()
        assert "default" in str(refusal.value)


def test_a_text_model_alone_is_no_retriever(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="'bert' model"):
        Retriever.load(tmp_path)


@pytest.mark.parametrize(
    ("preprocessor", "expected"),
    [
        (None, (518, "squash", 0)),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, (224, "crop", 256)),
        ({"size": 224, "resample": 2}, (224, "squash", 0)),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, "crop", 256)),
        (
            {"size": {"height": 384, "width": 384}, "do_center_crop": False, "crop_size": 9},
            (384, "squash", 0),
        ),
    ],
)
def test_images_are_taken_as_the_folder_says(tmp_path, preprocessor, expected):
    if preprocessor is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    size, framing = vision_framing(tmp_path, {"image_size": 518})
    assert (size, framing.fit, framing.shorter_side) == expected


def test_a_folder_that_resizes_nothing_is_refused(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"do_resize": false}')
    with pytest.raises(ModelError, match="nothing is resized"):
        vision_framing(tmp_path, {})
