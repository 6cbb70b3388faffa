"""What HarMA, PIR, SWAN and DOVE promise together, on top of what every method promises."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.method_examples import WORDS, batch, build

from pmpguard.methods.method import EncodedBatch
from pmpguard.methods.registry import find_method
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever

PEERS = ("harma", "pir", "swan", "dove")


@pytest.mark.parametrize("name", PEERS)
def test_a_step_never_waits_for_the_device(name):
    """On the meta device there are no values: whoever asks for one fails."""
    method = build(name).to("meta").train()
    model = method.retriever
    ids = torch.zeros(6, 8, dtype=torch.int64, device="meta")
    texts = model.forward_texts(ids, torch.ones_like(ids, dtype=torch.bool))
    images = model.forward_images(torch.zeros(5, 3, 32, 32, device="meta"))
    given = batch()
    index = [getattr(given, key).to("meta") for key in ("image_of", "image_keys", "caption_keys", "rows")]
    terms = method.losses(EncodedBatch(texts, images, *index, given.epoch))
    torch.stack([term.mean() for term in terms.values()]).sum().backward()
    assert all(term.shape == (6,) for term in terms.values())
    assert len({method.phase(epoch) for epoch in range(20)}) == 1  # one computation throughout


@pytest.mark.parametrize("name", PEERS)
def test_every_new_weight_is_trained(name):
    method = build(name).train()
    method.retriever.eval()  # nothing dropped out
    model = method.retriever
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=generator)
    captions = [" ".join(WORDS[k : k + 3]) for k in range(6)]
    given = batch()
    if name == "pir":
        method.scene_of[:6] = torch.tensor([0, 1, 2, 0, 1, 2])
    if (
        name == "harma"
    ):  # adapters start at zero, and what stands before a zero learns from the second step on
        for weight in model.adapters.parameters():
            weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    texts = model.forward_texts(*model.tokenize(captions))
    encoded = EncodedBatch(
        texts,
        model.forward_images(pixels),
        given.image_of,
        given.image_keys,
        given.caption_keys,
        given.rows,
        0,
    )
    torch.stack([term.mean() for term in method.losses(encoded).values()]).sum().backward()
    added = dict(model.head.named_parameters()) if model.head else dict(model.adapters.named_parameters())
    idle = {key for key, weight in added.items() if weight.grad is None or not weight.grad.abs().sum() > 0}
    assert all(key.endswith("keys.bias") for key in idle), idle  # softmax does not feel a shift of all keys


@pytest.mark.parametrize("name", PEERS)
def test_a_run_is_selected_on_validation_and_knows_nothing_it_should_not(name):
    kind = find_method(name)
    settings = [field.name for field in dataclasses.fields(kind.Settings)]
    assert not [key for key in settings if any(word in key for word in ("test", "select", "oracle", "noise"))]
    assert "Differs from the original" in __import__(kind.__module__, fromlist=["_"]).__doc__


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("encoders", ["tiny", "light", "swin-bert", "clip"])
def test_every_pair_of_encoders_can_be_shaped(name, encoders):
    kind = find_method(name)
    shaped = kind.model_config(preset(encoders), kind.read_settings("recommended", {}))
    assert not shaped.cross_gated.use and shaped.ranking in ("pooled", "head")


@pytest.mark.parametrize("name", PEERS)
def test_the_model_a_method_trains_is_the_model_that_is_saved(name, tmp_path):
    """Nothing that ranks lives outside the retriever."""
    method = build(name).eval()
    method.retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ours, theirs = (
        (model.encode_texts(WORDS), model.encode_images(images)) for model in (method.retriever, loaded)
    )
    assert torch.equal(method.score(*ours), loaded.score(*theirs))
