"""Families of Hugging Face that need care give the vectors of their own code."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.family_checkpoints import save_mae, save_siglip, save_t5
from helpers.text_checkpoints import CAPTIONS, save_bert
from PIL import Image
from torch.nn.functional import normalize

import pmpguard
from pmpguard.errors import ModelError
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.encoders.image import ImageEncoder, pretrained_image_encoder
from pmpguard.models.encoders.text import pretrained_text_encoder
from pmpguard.models.retriever import Retriever

CLOSE = {"atol": 1e-5, "rtol": 0}


def picture(width, height):
    values = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_siglip_ranks_as_its_own_code(tmp_path, padding_side):
    from transformers import AutoImageProcessor

    theirs, words = save_siglip(tmp_path, padding_side)
    model = pmpguard.load(tmp_path)
    assert (model.config.max_tokens, model.config.dim, model.framing.fit) == (9, 16, "squash")
    texts = [*CAPTIONS, "a long pond beside the farm two planes near trees a round runway the end", "unknown"]
    ids = words(texts, padding="max_length", truncation=True, max_length=10, return_tensors="pt").input_ids
    images = [picture(32, 32), picture(50, 30), picture(21, 64)]
    pixels = AutoImageProcessor.from_pretrained(tmp_path)(images, return_tensors="pt").pixel_values
    with torch.no_grad():
        read = normalize(theirs.get_text_features(input_ids=ids).pooler_output, dim=-1)
        seen = normalize(theirs.get_image_features(pixel_values=pixels).pooler_output, dim=-1)
    torch.testing.assert_close(model.encode_query(texts), read, **CLOSE)
    torch.testing.assert_close(model.encode_document(images), seen, **CLOSE)
    one_by_one = torch.cat([model.encode_query(text) for text in texts])
    torch.testing.assert_close(one_by_one, read, **CLOSE)
    model.save(tmp_path / "saved")
    saved = pmpguard.load(tmp_path / "saved")
    assert torch.equal(saved.encode_query(texts), model.encode_query(texts))
    assert torch.equal(saved.encode_document(images), model.encode_document(images))
    assert model.encode_texts(CAPTIONS).mask.sum(1).tolist() == [len(text.split()) for text in CAPTIONS]


def test_siglip_of_any_shape_is_refused_by_name(tmp_path):
    save_siglip(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | {"model_type": "siglip2"}))
    with pytest.raises(ModelError, match="NaFlex"):
        pmpguard.load(tmp_path)


def test_a_masked_autoencoder_sees_the_whole_image(tmp_path):
    theirs = save_mae(tmp_path)
    encoder = pretrained_image_encoder(str(tmp_path), dim=8, image_size=32).eval()
    pixels = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        seen = encoder.tokens(pixels)
        assert seen.fragments.shape == (3, 16, 16)
        assert torch.equal(encoder.tokens(pixels).fragments, seen.fragments)
        theirs.vit.config.mask_ratio = 0.0
        theirs.vit.embeddings.config.mask_ratio = 0.0
        order = torch.arange(16.0).expand(3, -1)
        wanted = theirs.vit(pixels, noise=order).last_hidden_state[:, 1:]
        torch.testing.assert_close(seen.fragments, wanted, **CLOSE)
        rebuilt = ImageEncoder(encoder.architecture, 8).eval()  # from its saved settings
        rebuilt.load_state_dict(encoder.state_dict())
        assert torch.equal(rebuilt.tokens(pixels).fragments, seen.fragments)


def test_a_masked_autoencoder_reads_larger_images(tmp_path):
    save_mae(tmp_path)
    encoder = pretrained_image_encoder(str(tmp_path), dim=8, image_size=48).eval()
    with torch.no_grad():
        assert encoder(torch.randn(2, 3, 48, 48)).fragments.shape == (2, 36, 8)


@pytest.mark.parametrize("name", ["T5", "MT5"])
def test_texts_are_read_by_the_encoder_of_a_t5(tmp_path, name):
    theirs, words = save_t5(tmp_path, name)
    encoder, tokenizer = pretrained_text_encoder(str(tmp_path), dim=8, max_tokens=12)
    encoder.eval()
    ids, mask = tokenizer.encode(CAPTIONS, 12)
    given = words(CAPTIONS, padding=True, return_tensors="pt")
    assert ids.tolist() == given.input_ids.tolist()
    with torch.no_grad():
        found = encoder.tokens(ids, mask)
        states = theirs.encoder(**given).last_hidden_state
    for row, caption in enumerate(CAPTIONS):
        count = len(caption.split())
        torch.testing.assert_close(found.fragments[row, :count], states[row, :count], **CLOSE)
        torch.testing.assert_close(found.pooled[row], states[row, :count].mean(0), **CLOSE)


def test_a_model_with_a_t5_is_saved_and_loaded(tmp_path):
    save_t5(tmp_path / "t5")
    save_mae(tmp_path / "mae")
    config = RetrieverConfig(
        vision=str(tmp_path / "mae"), text=str(tmp_path / "t5"), dim=8, image_size=32, max_tokens=12
    )
    model = Retriever.create(config).eval()
    model.save(tmp_path / "saved")
    saved = pmpguard.load(tmp_path / "saved")
    image = picture(40, 40)
    assert torch.equal(saved.score(CAPTIONS, image), model.score(CAPTIONS, image))


def test_a_tokenizer_larger_than_its_embedding_is_refused(tmp_path):
    save_bert(tmp_path)
    words = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["river"] = len(vocabulary)
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ModelError, match=rf"has id {len(vocabulary) - 1}, but the text encoder knows"):
        pretrained_text_encoder(str(tmp_path), dim=8, max_tokens=8)


def test_weights_that_are_missing_are_named_with_who_needs_them(tmp_path):
    from safetensors.torch import load_file, save_file

    save_bert(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 'encoder.layer.1.output.dense.weight', which BertModel"):
        pretrained_text_encoder(str(tmp_path), dim=8, max_tokens=8)
