"""Converted models give the vectors of the real open_clip, which tests/peers/openclip_references.py wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.reference_vectors import check_vectors
from PIL import Image

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.errors import ModelError
from pmpguard.models.openclip_config import read_openclip_config

HERE = Path(__file__).parent
WRITTEN = HERE / "data" / "openclip"
PEERS = os.environ.get("PMPGUARD_PEERS", "")  # a Python that has open_clip


def check_against(folder: Path, vocabulary: Path, out: Path) -> float:
    """Convert and load the model, and hold its vectors of all images and texts against the recorded ones."""
    convert(folder, out, tokenizer=vocabulary)
    return check_vectors(pmpguard.load(out), folder, out.parent / "saved")


@pytest.mark.parametrize("case", ["quickgelu-crop", "tanh-squash"])
def test_vectors_are_those_of_open_clip(case, tmp_path):
    check_against(WRITTEN / case, WRITTEN / "vocabulary.txt.gz", tmp_path / "out")


@pytest.mark.parametrize("array", [np.uint8, np.float32])
def test_arrays_are_cropped_as_files_are(array, tmp_path):
    convert(WRITTEN / "quickgelu-crop", tmp_path / "out", tokenizer=WRITTEN / "vocabulary.txt.gz")
    model = pmpguard.load(tmp_path / "out")
    images = np.load(WRITTEN / "quickgelu-crop" / "inputs.npz")
    values = [images[name] if array is np.uint8 else images[name] / array(255) for name in images.files]
    seen = model.encode_document(values)
    files = model.encode_document([Image.fromarray(images[name]) for name in images.files])
    assert float((seen * files).sum(1).min()) > 0.999  # Pillow rounds between its two passes


def test_a_crop_may_be_squashed_instead(tmp_path):
    source, words = WRITTEN / "quickgelu-crop", WRITTEN / "vocabulary.txt.gz"
    convert(source, tmp_path / "crop", tokenizer=words)
    told = convert(source, tmp_path / "squash", tokenizer=words, fit="squash")
    assert told.fit == "squash" and "squashed" in told.as_text()
    image = Image.fromarray(np.load(source / "inputs.npz")["arr_1"])
    crop, squash = (pmpguard.load(tmp_path / name) for name in ("crop", "squash"))
    squashed = image.resize((32, 32), Image.Resampling.BICUBIC)
    assert np.array_equal(squash.encode_document(image), crop.encode_document(squashed))
    assert not np.allclose(squash.encode_document(image), crop.encode_document(image), atol=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not PEERS, reason="PMPGUARD_PEERS names no Python that has open_clip")
@pytest.mark.parametrize("large", [False, True])
def test_the_real_library_agrees_today(large, tmp_path, record_property):
    script = HERE.parent / "peers" / "openclip_references.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    more = ["--large"] if large else []
    subprocess.run([PEERS, str(script), str(tmp_path / "peer"), *more], check=True, env=environment)
    for folder in sorted(path for path in (tmp_path / "peer").iterdir() if path.is_dir()):
        words, out = tmp_path / "peer" / "vocabulary.txt.gz", tmp_path / folder.name / "out"
        record_property(f"difference, {folder.name}", check_against(folder, words, out))
    if large:
        configs = json.loads((tmp_path / "peer" / "configs.json").read_text())
        assert len(configs) > 100
        taken = [name for name, config in configs.items() if is_taken(config, tmp_path)]
        assert len(taken) > 30 and all(name.startswith("ViT-") for name in taken), taken
        record_property("models that open_clip knows", len(configs))
        record_property("of them converted", len(taken))


def is_taken(config: dict[str, object], folder: Path) -> bool:
    """Whether a model of open_clip's list is converted; any other is refused by a name of its kind."""
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    try:
        read_openclip_config(folder)
    except ModelError as error:
        kinds = "CoCa|ResNet|tower of timm|tower of Hugging Face|which Hugging Face's CLIP cannot do"
        assert re.search(kinds, str(error)), error
        return False
    return True
