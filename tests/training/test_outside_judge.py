"""Vectors of a judge: from a folder by names and captions, from a model; heard by training and audits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.planted_pairs import planted, write_clip_folder

import pmpguard
from pmpguard.cli.main import main
from pmpguard.data.formats.embeddings import ClipEmbeddings, match_names, read_clip_embeddings
from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.data.pairs import PairTable
from pmpguard.detection.evidence.similarity import similarity_measure
from pmpguard.detection.outside_judge import JUDGE
from pmpguard.errors import ConfigError, DataError
from pmpguard.methods.registry import find_method
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.training.outside_judge import judge_vectors, read_judge

CPU = torch.device("cpu")


def no_images(size, framing):
    raise AssertionError("stored vectors need no images")


def test_names_are_found_wherever_images_lie():
    known = ["a/1.png", "a/2.png", "b/2.png"]
    assert match_names(["/x/a/1.png", "b/2.png", "c/2.png", "9.png"], known).tolist() == [0, 2, -1, -1]
    assert match_names(["x/1.png", "y/1.png"], known).tolist() == [-1, -1]  # one of them at most
    assert match_names([], known).tolist() == [] == match_names([], []).tolist()


def test_vectors_follow_captions_and_names_whatever_the_folder_pairs(tmp_path):
    pairs = planted(images=30, per_image=2)
    write_clip_folder(tmp_path / "judge", pairs)
    stored = read_judge(tmp_path / "judge")
    assert isinstance(stored, ClipEmbeddings)
    table = stored.table
    captions = table.captions
    other = PairTable.from_columns(
        {"image": [f"/elsewhere/{name}" for name in table.column("image")][::-1], "caption": captions}
    )
    found = judge_vectors(stored, other, no_images, CPU)
    assert found.texts.shape == (60, 16) and found.images.shape == (30, 16)
    first = pairs.images[29] / np.linalg.norm(pairs.images[29])
    np.testing.assert_allclose(found.images[0].numpy(), first, atol=2e-3)
    strange = PairTable.from_columns({"image": ["images/0.png"], "caption": ["never embedded"]})
    with pytest.raises(DataError, match="1 of 1 captions have no vector"):
        judge_vectors(stored, strange, no_images, CPU)
    flat = ClipEmbeddings(table, stored.images[:, :8], stored.captions)
    with pytest.raises(DataError, match="16 dimensions, images 8"):
        judge_vectors(flat, table, no_images, CPU)


def test_a_model_directory_is_encoded(tmp_path):
    captions = ["a red roof", "a blue river"]
    model = Retriever.create(preset("tiny", dim=16, image_size=32), captions)
    model.save(tmp_path / "model")
    table = PairTable.from_columns({"image": ["0.png", "1.png"], "caption": captions})
    asked = []

    def opened(size, framing):
        asked.append(size)
        return ImagesInMemory(torch.zeros(2, 3, size, size, dtype=torch.uint8), CPU)

    found = judge_vectors(read_judge(tmp_path / "model"), table, opened, CPU)
    assert asked == [32] and found.texts.shape == found.images.shape == (2, 16)
    expected = model.eval().encode_texts(captions).pooled
    torch.testing.assert_close(found.texts, torch.as_tensor(expected).float(), atol=1e-4, rtol=1e-3)


@pytest.fixture
def weak_and_strong(tmp_path):
    """Embeddings that hardly tell, as a dataset, and a judge that does."""
    pairs = planted(images=250, per_image=1, noise=0.3)
    weak = planted(images=250, per_image=1, noise=2.5, blur=0.5)
    assert (weak.wrong == pairs.wrong).all()
    write_clip_folder(tmp_path / "weak", weak)
    write_clip_folder(tmp_path / "judge", pairs)
    return tmp_path, pairs.wrong


def test_an_audit_hears_a_judge(weak_and_strong):
    folder, wrong = weak_and_strong
    alone = pmpguard.audit(folder / "weak", bootstrap=0)
    helped = pmpguard.audit(folder / "weak", bootstrap=0, judge=folder / "judge")
    right, before = (np.mean((found.p_match < 0.5) == wrong) for found in (helped, alone))
    assert right > max(before, 0.9)
    assert all(JUDGE in row.evidence for row in helped.rows)
    assert "a judge from outside" in helped.summary.model
    given = pmpguard.audit(folder / "weak", bootstrap=0, judge=read_clip_embeddings(folder / "judge"))
    np.testing.assert_array_equal(given.p_match, helped.p_match)


def test_the_command_hears_it_too(weak_and_strong, capsys):
    folder, _ = weak_and_strong
    words = ["audit", str(folder / "weak"), "--judge", str(folder / "judge"), "--bootstrap", "0"]
    assert main([*words, "--out", str(folder / "out")]) == 0
    said = capsys.readouterr().out
    assert "a judge from outside" in said and "other issues:" in said


def test_methods_that_judge_nothing_refuse_a_judge():
    model = Retriever.create(preset("tiny", dim=16, image_size=32), ["a roof"])
    kind = find_method("infonce")
    method = kind(model, kind.Settings(), 4)
    with pytest.raises(ConfigError, match="judges no pairs"):
        method.set_judge(similarity_measure(torch.eye(4), torch.eye(4)))
