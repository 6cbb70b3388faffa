"""Folders in Hugging Face's form as people have them: half precision, parts, torch's files, processors."""

from __future__ import annotations

import json
import resource

import numpy as np
import pytest
import torch
from helpers.openclip_weights import save_tokenizer, tiny_clip
from PIL import Image

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.errors import ConfigError, FullDiskError, ModelError
from pmpguard.models.clip_folder import weight_files
from pmpguard.models.encoders.pretrained import image_statistics
from pmpguard.search.index.model_identity import identify_model, keep_model

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8))
SQUARE = {"height": 32, "width": 32}


def saved(folder, model=None, **options):
    (model or tiny_clip()).save_pretrained(folder, **options)
    save_tokenizer(folder)
    return folder


def vectors(folder):
    model = pmpguard.load(folder)
    return torch.cat([model.encode_document(IMAGE), model.encode_query("two planes near a farm")])


def with_torch_weights(folder, parts=1):
    """The folder as older versions of transformers and many trainings write it."""
    saved(folder)
    weights = tiny_clip().state_dict() | {"vision_model.embeddings.position_ids": torch.arange(17)[None]}
    (folder / "model.safetensors").unlink()
    if parts == 1:
        torch.save(weights, folder / "pytorch_model.bin")
        return folder
    files = {name: f"pytorch_model-{1 + place % parts}-of-{parts}.bin" for place, name in enumerate(weights)}
    for file in set(files.values()):
        torch.save({name: weights[name] for name in weights if files[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_with_in_full(tmp_path, kind):
    halved = tiny_clip().to(kind)
    model = pmpguard.load(saved(tmp_path / "half", halved))
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    wanted = vectors(saved(tmp_path / "whole", halved.float()))
    assert torch.equal(vectors(tmp_path / "half"), wanted)
    model.save(tmp_path / "saved")
    assert torch.equal(vectors(tmp_path / "saved"), wanted)


def test_weights_in_parts_are_one_model(tmp_path):
    whole = vectors(saved(tmp_path / "whole"))
    folder = saved(tmp_path / "parts", max_shard_size="20KB")
    assert len(weight_files(folder)) > 3
    keep_model(folder, tmp_path / "kept")
    before = identify_model(folder)
    assert identify_model(tmp_path / "kept") == before
    assert torch.equal(vectors(folder), whole) and torch.equal(vectors(tmp_path / "kept"), whole)
    index = folder / "model.safetensors.index.json"
    stored = json.loads(index.read_text())
    (folder / weight_files(folder)[1]).unlink()
    with pytest.raises(ModelError, match=r"lists model-.*which is not there"):
        pmpguard.load(folder)
    stored["weight_map"] = dict.fromkeys(stored["weight_map"], "../whole/model.safetensors")
    index.write_text(json.dumps(stored))
    with pytest.raises(ModelError, match=r"lists \.\./whole"):
        pmpguard.load(folder)


@pytest.mark.parametrize("parts", [1, 3])
def test_weights_of_torch_are_converted(tmp_path, parts):
    folder = with_torch_weights(tmp_path / "old", parts)
    with pytest.raises(ModelError, match="its weights are a file of torch") as refused:
        pmpguard.load(folder)
    assert f"pmpguard convert {folder}" in refused.value.fix
    told = convert(folder, tmp_path / "out")
    assert (told.image_size, told.dim, told.fit, told.max_tokens) == (32, 24, "crop", 10)
    assert torch.equal(vectors(tmp_path / "out"), vectors(saved(tmp_path / "whole")))


def test_what_runs_when_opened_is_not_opened(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "canary"), "w"))

    folder = with_torch_weights(tmp_path / "old")
    torch.save({"logit_scale": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="holds more than plain tensors"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "canary").exists() and not (tmp_path / "out").exists()


def test_a_tensor_too_many_or_too_few_is_named(tmp_path):
    folder = with_torch_weights(tmp_path / "old")
    weights = tiny_clip().state_dict()
    torch.save(weights | {"text_model.extra": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"unknown .*text_model\.extra"):
        convert(folder, tmp_path / "out")
    del weights["visual_projection.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"lacks .*visual_projection"):
        convert(folder, tmp_path / "out")


def test_another_fit_is_a_setting(tmp_path):
    folder = saved(tmp_path / "hub")
    processor = {"size": {"shortest_edge": 32}, "crop_size": SQUARE, "image_mean": [0.1, 0.2, 0.3]}
    processor |= {"image_std": [0.3, 0.2, 0.1], "resample": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    told = convert(folder, tmp_path / "squash", fit="squash")
    assert told.fit == "squash" and "squashed" in told.as_text()
    crop, squash = pmpguard.load(folder), pmpguard.load(tmp_path / "squash")
    assert squash.image_encoder.architecture.mean == (0.1, 0.2, 0.3)
    assert (squash.framing.fit, squash.framing.resample) == ("squash", "bilinear")
    small = IMAGE.resize((32, 32), Image.Resampling.BILINEAR)
    assert torch.equal(squash.encode_document(IMAGE), crop.encode_document(small))
    again = convert(tmp_path / "squash", tmp_path / "crop", fit="crop")
    assert again.fit == "crop"
    assert torch.equal(vectors(tmp_path / "crop"), vectors(folder))
    with pytest.raises(ConfigError, match=r"--activation: config\.json of .* says it already"):
        convert(folder, tmp_path / "no", activation="gelu")


def test_a_processor_of_transformers_5_is_read(tmp_path):
    """It writes processor_config.json alone, with the image processor inside."""
    from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPProcessor

    folder = saved(tmp_path / "hub")
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 40}, crop_size=SQUARE, image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.4, 0.3]
    )
    CLIPProcessor(images, AutoTokenizer.from_pretrained(folder)).save_pretrained(folder)
    assert not (folder / "preprocessor_config.json").exists()
    model = pmpguard.load(folder)
    pixels = images(IMAGE, return_tensors="pt").pixel_values
    with torch.no_grad():
        wanted = tiny_clip().get_image_features(pixel_values=pixels).pooler_output
    wanted = torch.nn.functional.normalize(wanted, dim=-1)
    torch.testing.assert_close(model.encode_document(IMAGE), wanted, atol=1e-5, rtol=0)
    assert image_statistics(str(folder), "vit") == ((0.1, 0.2, 0.3), (0.5, 0.4, 0.3))
    before = identify_model(folder)
    stored = (folder / "processor_config.json").read_text()
    (folder / "processor_config.json").write_text(stored.replace("0.1,", "0.15,"))
    assert identify_model(folder).fingerprint != before.fingerprint


def test_vocab_and_merges_alone_are_a_tokenizer(tmp_path):
    """As the first CLIPs were published; transformers makes the same tokenizer of them."""
    from transformers import CLIPTokenizer

    folder = saved(tmp_path / "hub")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    pieces = ["a", "p", "o", "n", "d", "a</w>", "d</w>", "po", "nd</w>", "pond</w>"]
    names = {piece: place for place, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(names))
    (folder / "merges.txt").write_text("#version: 0.2\np o\nn d</w>\npo nd</w>\n")
    theirs = CLIPTokenizer.from_pretrained(folder)
    model = pmpguard.load(folder)
    assert model.tokenize(["a pond"])[0][0].tolist() == theirs("a pond").input_ids == [10, 5, 9, 11]
    before = identify_model(folder)
    (folder / "merges.txt").write_text("#version: 0.2\np o\nn d</w>\n")
    assert identify_model(folder).fingerprint != before.fingerprint


def test_training_crops_where_it_is_told_to(tmp_path):
    from pmpguard.models.config import preset
    from pmpguard.models.retriever import Retriever

    for vision in ("tiny", str(saved(tmp_path / "hub"))):
        config = preset("tiny", vision=vision, image_size=32, dim=16, fit="crop")
        model = Retriever.create(config, ["a pond"]).eval()
        middle = IMAGE.resize((44, 32), Image.Resampling.BICUBIC).crop((6, 0, 38, 32))
        assert torch.equal(model.encode_document(IMAGE), model.encode_document(middle))
        model.save(tmp_path / "model")
        assert pmpguard.load(tmp_path / "model").framing == model.framing


@pytest.mark.parametrize(
    "config",
    [
        {"vision_config": 7},
        {"vision_config": {"image_size": "x"}},
        {"text_config": [1]},
        {"projection_dim": None},
    ],
)
def test_settings_of_another_type_are_named(tmp_path, config):
    folder = saved(tmp_path / "hub")
    (folder / "config.json").write_text(json.dumps({"model_type": "clip"} | config))
    with pytest.raises(ModelError, match=r"config\.json: not the settings of a CLIP"):
        pmpguard.load(folder)


def test_a_full_disk_names_the_folder_and_leaves_nothing_of_it(tmp_path):
    """The weights are written by a library whose error is no OSError."""
    source = with_torch_weights(tmp_path / "torch")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, usual[1]))
    try:
        with pytest.raises(FullDiskError, match="clip: could not be written") as caught:
            convert(source, tmp_path / "clip")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert "free some disk space" in caught.value.fix
    assert [path.name for path in tmp_path.iterdir()] == ["torch"]
