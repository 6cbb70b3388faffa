"""A model with a CLIP's towers becomes a CLIP of transformers or OpenCLIP that gives its vectors."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.clip_models import trained_clip
from PIL import Image
from safetensors.torch import load_file

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.cli.main import main
from pmpguard.data.images.framing import Framing
from pmpguard.errors import ModelError
from pmpguard.interop.clip_export import absorbed, export_openclip, export_transformers
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever

REFERENCES = Path(__file__).parents[1] / "models" / "data" / "openclip"
PEERS = os.environ.get("PMPGUARD_PEERS", "")
DRAW = np.random.default_rng(0)
IMAGES = [
    Image.fromarray(DRAW.integers(0, 256, (*shape, 3), dtype=np.uint8))
    for shape in ((32, 32), (40, 57), (70, 33))
]
TEXTS = ["a round pond", "two planes near a farm", "trees " * 30]


def of_transformers(folder):
    """Vectors by transformers alone, as anyone would compute them from the folder."""
    from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

    clip = CLIPModel.from_pretrained(folder).eval()
    words = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, return_tensors="pt")
    pixels = CLIPImageProcessorPil.from_pretrained(folder)(IMAGES, return_tensors="pt").pixel_values
    with torch.no_grad():
        images = clip.get_image_features(pixel_values=pixels).pooler_output
        texts = clip.get_text_features(words.input_ids, words.attention_mask).pooler_output
    unit = torch.nn.functional.normalize
    return unit(images, dim=-1), unit(texts, dim=-1), clip


@pytest.mark.parametrize("fit", ["squash", "crop"])
@pytest.mark.parametrize("dim", [16, 12])
def test_transformers_gives_the_models_vectors(tmp_path, fit, dim):
    model = trained_clip(tmp_path / "clip", dim=dim, fit=fit)
    object.__setattr__(model.image_encoder.architecture, "framing", Framing(fit, half_pixel="down"))
    told = export_transformers(model, tmp_path / "out")
    assert told.difference < 1e-5
    images, texts, clip = of_transformers(tmp_path / "out")
    torch.testing.assert_close(images, model.encode_document(IMAGES), atol=1e-5, rtol=0)
    torch.testing.assert_close(texts, model.encode_query(TEXTS), atol=1e-5, rtol=0)
    assert clip.logit_scale.exp().item() == pytest.approx(1 / model.temperature.item(), rel=1e-5)
    ours = pmpguard.load(tmp_path / "out")
    torch.testing.assert_close(ours.encode_document(IMAGES), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.encode_query(TEXTS), texts, atol=1e-5, rtol=0)


def test_openclip_gets_back_the_file_it_wrote(tmp_path):
    """The folder in tests/models/data is open_clip's: converted and exported it is the same again."""
    source = REFERENCES / "quickgelu-crop"
    convert(source, tmp_path / "clip", tokenizer=REFERENCES / "vocabulary.txt.gz")
    export_openclip(pmpguard.load(tmp_path / "clip"), tmp_path / "out")
    theirs = load_file(source / "open_clip_model.safetensors")
    ours = load_file(tmp_path / "out" / "open_clip_model.safetensors")
    assert ours.keys() == theirs.keys() - {"attn_mask"}
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-6, rtol=0)
    wanted = json.loads((source / "open_clip_config.json").read_text())["model_cfg"]
    found = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())["model_cfg"]
    assert (found["embed_dim"], found["quick_gelu"]) == (wanted["embed_dim"], wanted["quick_gelu"])
    for tower in ("vision_cfg", "text_cfg"):
        assert {name: found[tower][name] for name in wanted[tower]} == wanted[tower]


def test_openclip_comes_back_to_the_models_vectors(tmp_path, capsys):
    model = trained_clip(tmp_path / "clip", fit="crop")
    model.save(tmp_path / "model")
    words = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "open_clip", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["difference"] < 1e-5
    convert(tmp_path / "out", tmp_path / "back")
    back = pmpguard.load(tmp_path / "back")
    torch.testing.assert_close(back.encode_document(IMAGES), model.encode_document(IMAGES), atol=1e-5, rtol=0)
    torch.testing.assert_close(back.encode_query(TEXTS), model.encode_query(TEXTS), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(not PEERS, reason="PMPGUARD_PEERS names no Python that has open_clip")
def test_the_real_open_clip_gives_the_models_vectors(tmp_path, record_property):
    model = trained_clip(tmp_path / "clip", fit="crop")
    export_openclip(model, tmp_path / "out")
    ids, _ = model.tokenize(TEXTS)
    np.savez(
        tmp_path / "in.npz",
        *map(np.asarray, IMAGES),
        ids=np.pad(ids.numpy(), ((0, 0), (0, 12 - ids.shape[1]))),
    )
    script = Path(__file__).parents[1] / "peers" / "openclip_reads.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    given = [PEERS, str(script), tmp_path / "out", tmp_path / "in.npz", tmp_path / "vectors.npz"]
    subprocess.run(list(map(str, given)), check=True, env=environment)
    found = np.load(tmp_path / "vectors.npz")
    wanted = {"images": model.encode_document(IMAGES).numpy(), "texts": model.encode_query(TEXTS).numpy()}
    for name, vectors in wanted.items():
        np.testing.assert_allclose(found[name], vectors, atol=1e-5, rtol=0)
        record_property(f"difference, {name} of an exported CLIP", float(np.abs(found[name] - vectors).max()))


def test_a_bias_moves_before_its_layer():
    draw = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(*shape, generator=draw) for shape in ((3, 5), (3,), (4, 5)))
    torch.testing.assert_close((x + absorbed(weight, bias)) @ weight.T, x @ weight.T + bias)


def test_what_no_clip_can_hold_is_refused(tmp_path):
    other = Retriever.create(preset("tiny", dim=16, image_size=32), ["a pond"]).eval()
    with pytest.raises(ModelError, match="its image encoder is a 'tiny' model") as refused:
        export_transformers(other, tmp_path / "out")
    assert "--to onnx" in refused.value.fix
    scales = trained_clip(tmp_path / "clip", multi_scale=True)
    with pytest.raises(ModelError, match="several scales"):
        export_transformers(scales, tmp_path / "out")
    wide = trained_clip(
        tmp_path / "clip", dim=24
    )  # wider than the towers: a bias that nothing before can make
    with pytest.raises(ModelError, match="its last layer's bias has no place"):
        export_transformers(wide, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    convert(REFERENCES / "tanh-squash", tmp_path / "tanh", tokenizer=REFERENCES / "vocabulary.txt.gz")
    with pytest.raises(ModelError, match="no activation gelu_pytorch_tanh"):
        export_openclip(pmpguard.load(tmp_path / "tanh"), tmp_path / "out")
