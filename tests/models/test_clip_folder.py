"""A converted CLIP does every job of a model without any training."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.openclip_weights import openclip_names, save_tokenizer, tiny_clip

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.cli.main import main
from pmpguard.errors import ModelError
from pmpguard.models.clip_folder import clip_config, model_summary
from pmpguard.models.retriever import Retriever
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
