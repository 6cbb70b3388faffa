"""A converted CLIP does every job of a model without any training."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from helpers.openclip_weights import openclip_names, save_tokenizer, tiny_clip
from PIL import Image

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.cli.main import main
from pmpguard.errors import ModelError
from pmpguard.models.clip_folder import clip_config, clip_framing, model_summary
from pmpguard.models.retriever import Retriever
from pmpguard.search.index.model_identity import identify_model
from pmpguard.synthetic.scenes import synthetic_scenes, write_world


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_world(synthetic_scenes(60, size=32), tmp_path_factory.mktemp("scenes") / "world")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    torch.save(openclip_names(tiny_clip()), folder / "clip.pt")
    save_tokenizer(folder / "words")
    widths = {"activation": "quick_gelu", "head_width": 8, "text_head_width": 4}
    convert(folder / "clip.pt", folder / "converted", **widths, tokenizer=folder / "words")
    return folder / "converted"


def run(capsys, *words):
    code = main([*map(str, words), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


@pytest.mark.slow
def test_it_judges_pairs(scenes, clip):
    found = pmpguard.audit(scenes, model=clip, bootstrap=0, device="cpu")
    assert len(found.issues) == len(scenes) and str(clip) in found.summary.model


def test_it_is_evaluated(capsys, scenes, clip):
    data = scenes.root.parent
    result = run(capsys, "evaluate", clip, "--dataset", data, "--device", "cpu", "--bootstrap", 0)
    assert "pooled" in json.dumps(result)


def test_it_searches(tmp_path, capsys, scenes, clip):
    run(capsys, "embed", scenes.root.parent, "--model", clip, "--out", tmp_path / "emb", "--device", "cpu")
    run(capsys, "index", "build", tmp_path / "index", "--embeddings", tmp_path / "emb", "--model", clip)
    result = run(capsys, "search", tmp_path / "index", "a round pond", "--k", 3, "--device", "cpu")
    assert len(result["hits"]) == 3
    model = pmpguard.load(clip)
    wanted = model.similarity(
        model.encode_query("a round pond"), model.encode_document(result_images(scenes))
    )
    best = scenes.column("image_id")[scenes.first_rows[int(wanted.argmax())]]
    assert result["hits"][0]["id"] == best


def result_images(scenes):
    return [scenes.image_path(int(row)) for row in scenes.first_rows]


def test_sizes_left_out_of_the_file_are_those_of_vit_b_32(clip):
    config = clip_config(clip, {"model_type": "clip"})
    assert (config.dim, config.image_size, config.max_tokens) == (512, 224, 75)
    assert model_summary({"model_type": "clip"}) == ("CLIP at 224 px in patches of 32, ranked by pooled", 512)


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_images_are_prepared_as_the_folder_says(tmp_path, clip, fit):
    """The way through the folder's own files, next to transformers' processor and model."""
    from transformers import CLIPImageProcessor, CLIPModel

    folder = tmp_path / "hub"
    shutil.copytree(clip, folder)
    (folder / "manifest.json").unlink()  # as from the Hub
    pixels = json.loads((folder / "preprocessor_config.json").read_text())
    changes = {"image_mean": [0.3, 0.4, 0.5], "size": {"shortest_edge": 40}}
    if fit == "squash":
        changes |= {"do_center_crop": False, "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels | changes))
    config = json.loads((folder / "config.json").read_text())
    del config["pmpguard"]
    (folder / "config.json").write_text(json.dumps(config))
    draw = np.random.default_rng(0)
    shapes = [(32, 32), (45, 70), (70, 33), (64, 48)]
    images = [Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    given = CLIPImageProcessor.from_pretrained(folder)(images, return_tensors="pt").pixel_values
    with torch.no_grad():
        wanted = CLIPModel.from_pretrained(folder).eval().get_image_features(given).pooler_output
    model = pmpguard.load(folder)
    wanted = torch.nn.functional.normalize(wanted, dim=-1)
    torch.testing.assert_close(model.encode_document(images), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"resample": 0}, "resample is 0"),
        ({"crop_size": {"height": 64, "width": 64}}, "the model reads 32 pixels"),
        ({"do_resize": False}, "do_resize is false"),
        ({"size": {"height": 40, "width": 40}}, "the model reads 32 pixels"),
    ],
)
def test_a_preparation_that_cannot_be_followed_is_named(tmp_path, clip, changes, told):
    stored = json.loads((clip / "config.json").read_text())
    pixels = json.loads((clip / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixels | changes))
    with pytest.raises(ModelError, match=told):
        clip_framing(tmp_path, stored, 32)


def test_another_preparation_is_another_model(tmp_path, clip):
    shutil.copytree(clip, tmp_path / "clip")
    before = identify_model(tmp_path / "clip")
    pixels = json.loads((tmp_path / "clip" / "preprocessor_config.json").read_text())
    (tmp_path / "clip" / "preprocessor_config.json").write_text(json.dumps(pixels | {"resample": 2}))
    (tmp_path / "clip" / "manifest.json").unlink()
    assert identify_model(tmp_path / "clip").fingerprint != before.fingerprint


def test_it_can_be_trained_from_as_before(clip):
    from pmpguard.models.config import preset

    config = preset("clip", vision=str(clip), text=str(clip), dim=24, image_size=32, max_tokens=10)
    model = Retriever.create(config)
    assert model.cross_gated_attention is not None and model.config.ranking == "awareness"
    with pytest.raises(ModelError, match="no usable checkpoint"):
        Retriever.create(preset("clip", vision=str(clip / "nowhere"), text=str(clip)))


def test_a_special_token_written_in_a_caption_is_text(clip):
    model = pmpguard.load(clip)
    ids, _ = model.tokenize(["a pond <|endoftext|> near trees"])
    assert ids[0].tolist().count(49) == 1 and int(ids[0, -1]) == 49
    assert {6, 8} <= set(ids[0].tolist())  # what stands after it is read
