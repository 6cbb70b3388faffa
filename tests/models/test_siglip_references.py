"""SigLIPs as the Hub has them give transformers' vectors, which tests/peers/siglip_references.py wrote."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.reference_vectors import check_vectors
from PIL import Image

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.errors import ModelError
from pmpguard.models.spiece_vocabulary import spiece_tokenizer
from pmpguard.search.index.model_identity import identify_model, keep_model

HERE = Path(__file__).parent
WRITTEN = HERE / "data" / "siglip"
PEERS = os.environ.get("PMPGUARD_PEERS", "")
EMPTY = {"siglip": ("", "!!!??? --- ___"), "siglip2": ("",)}  # SigLIP reads no punctuation


def as_from_the_hub(source: Path, out: Path) -> Path:
    shutil.copytree(source, out)
    packed = out / "spiece.model.gz"
    if packed.exists():
        (out / "spiece.model").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    return out


@pytest.mark.parametrize("case", ["siglip", "siglip2"])
def test_vectors_are_those_of_transformers(case, tmp_path):
    folder = as_from_the_hub(WRITTEN / case, tmp_path / "hub")
    check_vectors(pmpguard.load(folder), folder, tmp_path / "saved", EMPTY[case])


def test_a_tokenizer_json_beside_the_vocabulary_changes_nothing(tmp_path):
    """As google/siglip has it: its tokenizer's class reads spiece.model and knows no tokenizer.json."""
    folder = as_from_the_hub(WRITTEN / "siglip", tmp_path / "hub")
    model = pmpguard.load(folder)
    (folder / "tokenizer.json").write_text(model.tokenizer.to_json())
    both = pmpguard.load(folder)
    text = "Two, planes; near Ωμέγας ΣΑΣ"
    assert both.tokenize([text])[0].tolist() == model.tokenize([text])[0].tolist()
    (folder / "spiece.model").unlink()
    alone = pmpguard.load(folder)
    assert alone.tokenize(["two planes near"])[0].tolist() == model.tokenize(["Two, planes near"])[0].tolist()


def test_it_is_a_model_to_the_index(tmp_path):
    folder = as_from_the_hub(WRITTEN / "siglip", tmp_path / "hub")
    before = identify_model(folder)
    keep_model(folder, tmp_path / "kept")
    assert identify_model(tmp_path / "kept") == before and "SigLIP at 32 px" in before.name
    words = (folder / "spiece.model").read_bytes()
    (folder / "spiece.model").write_bytes(words[:-1])
    assert identify_model(folder).fingerprint != before.fingerprint


def test_converting_keeps_its_tokenizer(tmp_path):
    folder = as_from_the_hub(WRITTEN / "siglip", tmp_path / "hub")
    told = convert(folder, tmp_path / "out")
    assert (told.max_tokens, told.fit) == (19, "squash") and "SigLIP with" in told.as_text()
    check_vectors(pmpguard.load(tmp_path / "out"), folder, tmp_path / "saved", EMPTY["siglip"])


@pytest.mark.parametrize("damage", ["", "cut", "other", "bpe"])
def test_a_damaged_vocabulary_is_named(tmp_path, damage):
    folder = as_from_the_hub(WRITTEN / "siglip", tmp_path / "hub")
    whole = (folder / "spiece.model").read_bytes()
    content = {"": b"", "cut": whole[:1000], "other": b"a text\n" * 9, "bpe": whole + bytes([18, 2, 24, 2])}
    (folder / "spiece.model").write_bytes(content[damage])
    with pytest.raises(ModelError, match=r"spiece\.model: not a vocabulary of SentencePiece"):
        spiece_tokenizer(folder / "spiece.model")


def test_a_folder_without_any_tokenizer_says_what_is_missing(tmp_path):
    folder = as_from_the_hub(WRITTEN / "siglip", tmp_path / "hub")
    (folder / "spiece.model").unlink()
    with pytest.raises(ModelError, match="no tokenizer files") as refused:
        pmpguard.load(folder)
    assert "spiece.model" in refused.value.fix and "openai" not in refused.value.fix


@pytest.mark.slow
@pytest.mark.skipif(
    not PEERS, reason="PMPGUARD_PEERS names no Python that has transformers and sentencepiece"
)
def test_the_real_library_agrees_today(tmp_path, record_property):
    script = HERE.parent / "peers" / "siglip_references.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([PEERS, str(script), str(tmp_path / "peer")], check=True, env=environment)
    for case, empty in EMPTY.items():
        folder = as_from_the_hub(tmp_path / "peer" / case, tmp_path / case)
        model = pmpguard.load(folder)
        difference = check_vectors(model, folder, tmp_path / f"saved-{case}", empty)
        record_property(f"difference, {case}", difference)
        found, inputs = (np.load(folder / f"{name}.npz") for name in ("outputs", "inputs"))
        if "torchvision" in found:
            seen = model.encode_document([Image.fromarray(inputs[name]) for name in inputs.files])
            moved = np.abs(seen.numpy() - found["torchvision"]).max()
            record_property(f"difference, {case} with torchvision", float(moved))
