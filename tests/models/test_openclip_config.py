"""An open_clip_config.json is read to the last setting, and what has no place here is refused by its name."""

from __future__ import annotations

import json

import pytest
import torch

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.data.images.framing import Framing
from pmpguard.errors import ConfigError, ModelError
from pmpguard.models.openclip import convert_openclip, refuse_other_kinds
from pmpguard.models.openclip_config import OpenClipConfig, read_openclip_config

VIT_B = {"vision_cfg": {"layers": 12, "width": 768, "patch_size": 32}, "text_cfg": {"width": 512, "heads": 8}}


def written(folder, pixels=None, vision=None, text=None, **model):
    both = {"vision_cfg": VIT_B["vision_cfg"] | (vision or {}), "text_cfg": VIT_B["text_cfg"] | (text or {})}
    settings = {"model_cfg": both | model, "preprocess_cfg": pixels or {}}
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    return folder


def test_what_a_config_leaves_out_is_as_open_clip_has_it(tmp_path):
    config = read_openclip_config(written(tmp_path))
    assert (config.activation, config.head_width, config.text_head_width) == ("gelu", 64, 64)
    assert (config.image_size, config.context_length, config.vocabulary) == (224, 77, 49408)
    assert (config.framing, config.cleaning) == (Framing("crop", "bicubic"), "clip")


def test_what_a_config_says_is_taken(tmp_path):
    folder = written(
        tmp_path,
        {"resize_mode": "squash", "interpolation": "bilinear", "mean": [0, 0, 0], "std": [1, 1, 1]},
        {"image_size": 378, "head_width": 80, "norm_kwargs": {"eps": 1e-6}},
        {
            "context_length": 64,
            "hf_tokenizer_name": "some/words",
            "tokenizer_kwargs": {"clean": "canonicalize"},
        },
        quick_gelu=True,
    )
    config = read_openclip_config(folder)
    assert (config.activation, config.head_width, config.image_size) == ("quick_gelu", 80, 378)
    assert (config.epsilon, config.text_epsilon, config.mean, config.std) == (1e-6, 1e-5, (0,) * 3, (1,) * 3)
    assert config.framing == Framing("squash", "bilinear")
    assert (config.context_length, config.cleaning, config.own_tokenizer) == (64, "canonical", "some/words")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"vision": {"layers": [3, 4, 6, 3]}}, "ModifiedResNet"),
        ({"vision": {"timm_model_name": "fastvit_mci2"}}, "timm, 'fastvit_mci2'"),
        ({"vision": {"attentional_pool": True}}, "CoCa"),
        ({"multimodal_cfg": {"layers": 12}}, "CoCa"),
        ({"text": {"hf_model_name": "roberta-base"}}, "'roberta-base'"),
        ({"vision": {"pool_type": "avg"}}, "vision_cfg.pool_type is 'avg'"),
        ({"vision": {"no_ln_pre": True}}, "vision_cfg.no_ln_pre is True"),
        ({"text": {"no_causal_mask": True}}, "text_cfg.no_causal_mask is True"),
        ({"text": {"pool_type": "last"}}, "text_cfg.pool_type is 'last'"),
        ({"vision": {"something_new": 3}}, "vision_cfg.something_new is 3"),
        ({"vision": {"act_kwargs": {"approximate": "tanh"}}}, "act_kwargs"),
        ({"text": {"tokenizer_kwargs": {"reduction_mask": "syntax"}}}, "tokenizer_kwargs"),
        ({"pixels": {"resize_mode": "longest"}}, "'longest'"),
        ({"pixels": {"interpolation": "nearest"}}, "'nearest'"),
    ],
)
def test_what_has_no_place_here_is_refused_by_name(tmp_path, settings, name):
    with pytest.raises(ModelError, match=name) as refused:
        read_openclip_config(written(tmp_path, **settings))
    assert refused.value.fix


def test_a_framing_that_is_not_known_can_be_replaced(tmp_path):
    folder = written(tmp_path, {"resize_mode": "longest"})
    assert read_openclip_config(folder, "crop").framing == Framing("crop")


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        ("text_decoder.ln_final.weight", "CoCa"),
        ("visual.attn_pool.query", "attention pooling"),
        ("visual.layer1.0.conv1.weight", "ModifiedResNet"),
        ("visual.trunk.blocks.0.norm1.weight", "timm"),
        ("visual.blocks.0.norm1.weight", "EVA-CLIP"),
        ("image_encoder.model.patch_embed.0.weight", "MobileCLIP"),
        ("vision_model.encoder.layers.0.layer_norm1.weight", "in Hugging Face's form"),
        ("text.transformer.encoder.layer.0.output.dense.weight", "Hugging Face"),
    ],
)
def test_weights_of_other_kinds_are_refused_by_name(tensor, name):
    weights = {tensor: torch.zeros(1)}
    with pytest.raises(ModelError, match=name):
        refuse_other_kinds(weights)
    with pytest.raises(ModelError, match=name):
        convert_openclip(weights, OpenClipConfig("gelu"))


def test_sizes_that_contradict_the_weights_are_named(tmp_path):
    from helpers.openclip_weights import openclip_names, tiny_clip

    weights = openclip_names(tiny_clip())
    known = {"head_width": 8, "text_head_width": 4}
    for name, value in (("image_size", 64), ("context_length", 77), ("vocabulary", 49408)):
        with pytest.raises(ModelError, match=f"is {value}, but the weights are of"):
            convert_openclip(weights, OpenClipConfig("gelu", **known, **{name: value}))


def test_a_folder_that_is_not_converted_yet_says_how(tmp_path):
    with pytest.raises(ModelError, match="no model here") as refused:
        pmpguard.load(written(tmp_path))
    assert f"pmpguard convert {tmp_path}" in refused.value.fix


@pytest.mark.parametrize("inner", ["model", "0_CLIPModel"])
@pytest.mark.parametrize("outer", ["config.json", "modules.json"])
def test_a_folder_around_a_model_names_the_model(tmp_path, outer, inner):
    """A run, whose own settings are a config.json, or a folder of sentence-transformers."""
    (tmp_path / outer).write_text("{}")
    (tmp_path / inner).mkdir()
    (tmp_path / inner / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no model here") as refused:
        pmpguard.load(tmp_path)
    assert refused.value.fix == f"{tmp_path / inner} may be meant"


def test_an_option_that_contradicts_the_file_is_refused(tmp_path):
    written(tmp_path)
    (tmp_path / "open_clip_model.safetensors").touch()
    with pytest.raises(
        ConfigError, match=r"--activation is quick_gelu, but open_clip_config\.json says gelu"
    ):
        convert(tmp_path, tmp_path / "out", activation="quick_gelu")
