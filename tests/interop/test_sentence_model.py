"""sentence-transformers itself encodes with a model of ours, saves it and loads it again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.clip_models import trained_clip
from PIL import Image

import pmpguard

pytest.importorskip("sentence_transformers", reason="the extra sentence-transformers is not installed")
DRAW = np.random.default_rng(0)
IMAGES = [Image.fromarray(DRAW.integers(0, 256, (40, wide, 3), dtype=np.uint8)) for wide in (40, 31, 77)]
TEXTS = ["a round pond", "two planes near a farm"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentence")
    trained_clip(folder / "clip", fit="crop").save(folder / "model")
    return folder / "model"


@pytest.mark.slow
def test_one_vector_each(model, tmp_path):
    from sentence_transformers import SentenceTransformer

    from pmpguard.interop.sentence_model import sentence_transformer

    ours, theirs = pmpguard.load(model), sentence_transformer(model, device="cpu")
    for each in (theirs.encode, theirs.encode_query):
        np.testing.assert_allclose(each(TEXTS), ours.encode_query(TEXTS), atol=1e-6)
    floats = [torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 for image in IMAGES]
    for images in (IMAGES, floats):
        np.testing.assert_allclose(theirs.encode_document(images), ours.encode_document(images), atol=1e-6)
    assert theirs.encode(IMAGES[0]).shape == (16,) and theirs.get_embedding_dimension() == 16
    wanted = ours.similarity(ours.encode_query(TEXTS), ours.encode_document(IMAGES))
    found = theirs.similarity(theirs.encode(TEXTS), theirs.encode(IMAGES))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    theirs.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(again.encode(TEXTS), ours.encode_query(TEXTS), atol=1e-6)
    np.testing.assert_allclose(again.encode(IMAGES), ours.encode_document(IMAGES), atol=1e-6)


@pytest.mark.slow
def test_one_vector_a_word_and_a_region(model):
    from pmpguard.interop.sentence_model import multi_vector_encoder

    ours, theirs = pmpguard.load(model), multi_vector_encoder(model, device="cpu")
    texts, images = ours.encode_texts(TEXTS), ours.encode_images(IMAGES)
    words, regions = theirs.encode_query(TEXTS), theirs.encode_document(IMAGES)
    assert [len(each) for each in words] == texts.mask.sum(1).tolist() == [3, 5]
    for row, found in enumerate(words):
        np.testing.assert_allclose(np.asarray(found), texts.fragments[row, : len(found)], atol=1e-6)
    cosines = torch.einsum("tmd,ind->timn", texts.fragments, images.fragments)
    best = (cosines.amax(3) * texts.mask[:, None]).sum(2)  # (T, I), MaxSim
    np.testing.assert_allclose(theirs.similarity(words, regions), best, atol=1e-5)
