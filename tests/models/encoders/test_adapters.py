"""Adapters in every kind of tower: at the start they change nothing, then only they are trained."""

import copy
import dataclasses

import pytest
import torch
from helpers.text_checkpoints import CAPTIONS
from helpers.text_checkpoints import SAVERS as TEXT
from helpers.vision_checkpoints import SAVERS as VISION
from torch.nn.functional import gelu

import pmpguard
from pmpguard.errors import ConfigError
from pmpguard.models.config import AdapterConfig, CrossGatedConfig, RetrieverConfig
from pmpguard.models.encoders.adapters import GatedAdapter, SharedCore, feed_forward_outputs
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.models.retriever import Retriever
from pmpguard.training.parameter_groups import parameter_groups

FROZEN = EncoderOptions(frozen=True)
ADAPTERS = AdapterConfig("harma", width=16, attention_heads=2)


@pytest.fixture
def towers(tmp_path):
    """Small checkpoints of every family."""
    torch.manual_seed(0)
    for name, save in {**VISION, **TEXT}.items():
        (tmp_path / name).mkdir()
        save(tmp_path / name)
    return tmp_path


def retriever(towers, vision="vit", text="bert", adapters=ADAPTERS):
    torch.manual_seed(0)
    config = RetrieverConfig(
        vision if vision == "tiny" else str(towers / vision),
        text if text == "tiny" else str(towers / text),
        dim=12,
        image_size=64 if vision in ("swin", "resnet", "tiny") else 32,
        max_tokens=16,
        cross_gated=CrossGatedConfig(use=False),
        ranking="pooled",
        vision_options=FROZEN,
        text_options=FROZEN,
        adapters=adapters,
    )
    return Retriever.create(config, CAPTIONS).eval()


def shake(model, seed=1):
    """Adapters that do something."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.adapters.parameters():
        weight.data.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


def pixels(model, count=3):
    size = model.config.image_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def naive_attention(module, states, mask):
    result = torch.zeros_like(states)
    width = states.shape[-1] // module.heads
    queries, keys, values = module.queries(states), module.keys(states), module.values(states)
    seen = [j for j in range(len(states)) if mask[j]]
    for head in range(module.heads):
        part = slice(head * width, (head + 1) * width)
        for i in range(len(states)):
            logits = torch.stack([queries[i, part] @ keys[j, part] for j in seen]) / width**0.5
            result[i, part] = sum(w * values[j, part] for w, j in zip(logits.softmax(0), seen, strict=True))
    return module.merge(result)


def test_an_adapter_against_loops():
    torch.manual_seed(0)
    adapter, core = GatedAdapter(10, 8, 2, 0.6).double(), SharedCore(8, 2, 0.6).double()
    for layer in (adapter.widen, core.widen):
        torch.nn.init.normal_(layer.weight)
    states = torch.randn(2, 5, 10, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    found = adapter(states, mask, core)
    share = 1 / (1 + torch.exp(torch.tensor(-0.6, dtype=torch.float64)))
    for n in range(2):
        narrowed = gelu(adapter.narrow(states[n]))
        seen = naive_attention(adapter.attention, narrowed, mask[n])
        small = gelu(core.narrow(seen))
        small = share * naive_attention(core.attention, small, mask[n]) + (1 - share) * small
        seen = naive_attention(adapter.attention, seen + core.widen(small), mask[n])
        expected = states[n] + share * adapter.widen(share * narrowed + (1 - share) * seen)
        torch.testing.assert_close(found[n], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vision", "text", "inside"),
    [
        ("vit", "bert", (2, 2)),
        ("clip", "clip", (2, 2)),
        ("swin", "distilbert", (0, 2)),
        ("resnet", "tiny", (0, 2)),
        ("tiny", "tiny", (0, 2)),
    ],
)
def test_every_tower_starts_as_it_was_and_is_adapted_where_it_has_layers(towers, vision, text, inside):
    plain = retriever(towers, vision, text, AdapterConfig())
    model = retriever(towers, vision, text)
    found = [len(feed_forward_outputs(part.backbone)) for part in (model.image_encoder, model.text_encoder)]
    assert tuple(found) == inside
    assert (len(model.adapters.images), len(model.adapters.texts)) == tuple(max(1, n) for n in inside)
    for name in ("image_encoder", "text_encoder"):
        getattr(plain, name).load_state_dict(getattr(model, name).state_dict())
    images, ids = pixels(model), model.tokenize(CAPTIONS)
    assert torch.equal(model.forward_images(images).fragments, plain.forward_images(images).fragments)
    assert torch.equal(model.forward_texts(*ids).pooled, plain.forward_texts(*ids).pooled)
    shake(model)
    assert not torch.allclose(model.forward_images(images).pooled, plain.forward_images(images).pooled)
    assert not torch.allclose(model.forward_texts(*ids).pooled, plain.forward_texts(*ids).pooled)


def test_towers_share_cores_counted_from_the_end(towers):
    model = shake(retriever(towers, "resnet", "bert"))  # one adapter beside two
    assert len(model.adapters.shared) == 2
    images, texts = model.encode_images(pixels(model)).pooled, model.encode_texts(CAPTIONS).pooled
    for core, changes_images in ((0, False), (1, True)):
        twin = copy.deepcopy(model)
        twin.adapters.shared[core].widen.bias.data += 1
        assert torch.equal(twin.encode_images(pixels(model)).pooled, images) != changes_images
        assert not torch.equal(twin.encode_texts(CAPTIONS).pooled, texts)


def test_only_adapters_and_projections_are_trained(towers):
    model = shake(retriever(towers)).train()
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert not [name for name in trained if ".backbone." in name]
    loss = (
        model.forward_images(pixels(model)).pooled.sum()
        + model.forward_texts(*model.tokenize(CAPTIONS)).pooled.sum()
    )
    loss.backward()
    for name, weight in model.adapters.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    groups = parameter_groups(model)
    assert not groups["encoder"] and not groups["encoder_no_decay"]
    new = {id(weight) for weight in [*groups["new"], *groups["new_no_decay"]]}
    assert {id(weight) for weight in model.adapters.parameters()} <= new


@pytest.mark.parametrize("text", ["bert", "clip", "distilbert", "tiny"])
@pytest.mark.parametrize("place", ["layers", "output"])
def test_neither_padding_nor_the_batch_changes_an_adapted_embedding(towers, text, place):
    model = shake(retriever(towers, "vit", text, dataclasses.replace(ADAPTERS, place=place)))
    ids, mask = model.tokenize(CAPTIONS)
    wide = torch.nn.functional.pad(ids, (0, 5), value=3), torch.nn.functional.pad(mask, (0, 5))
    if text == "tiny":
        wide = tuple(part[:, :16] for part in wide)
    together, padded = model.forward_texts(ids, mask), model.forward_texts(*wide)
    torch.testing.assert_close(together.pooled, padded.pooled)
    for row, caption in enumerate(CAPTIONS):
        alone = model.encode_texts([caption])
        torch.testing.assert_close(together.pooled[row], alone.pooled[0])
        count = int(alone.mask.sum())
        torch.testing.assert_close(together.fragments[row, :count], alone.fragments[0, :count])


def test_output_adapters_leave_the_towers_alone(towers):
    """What frozen towers put out may then be computed once and kept."""
    adapters = dataclasses.replace(ADAPTERS, place="output")
    model, plain = shake(retriever(towers, adapters=adapters)), retriever(towers, adapters=AdapterConfig())
    images = pixels(model)
    tokens = model.image_tokens(images)
    assert torch.equal(tokens.fragments, plain.image_tokens(images).fragments)
    assert torch.equal(model.project_images(tokens).pooled, model.forward_images(images).pooled)
    assert not (model.image_encoder.adapted or model.text_encoder.adapted)
    inside = retriever(towers)
    assert inside.image_encoder.adapted and inside.text_encoder.adapted


@pytest.mark.parametrize("place", ["layers", "output"])
def test_saved_loaded_and_copied_models_agree(towers, place, tmp_path):
    model = shake(retriever(towers, adapters=dataclasses.replace(ADAPTERS, place=place)))
    model.save(tmp_path / "model")
    expected = model.encode_images(pixels(model)), model.encode_texts(CAPTIONS)
    for twin in (pmpguard.load(tmp_path / "model"), copy.deepcopy(model)):
        assert torch.equal(twin.encode_images(pixels(model)).pooled, expected[0].pooled)
        assert torch.equal(twin.encode_texts(CAPTIONS).pooled, expected[1].pooled)
    shake(twin)  # the copy has adapters of its own
    assert torch.equal(model.encode_texts(CAPTIONS).pooled, expected[1].pooled)
    assert not torch.allclose(twin.encode_texts(CAPTIONS).pooled, expected[1].pooled)


def test_impossible_widths_are_refused():
    with pytest.raises(ConfigError, match=r"adapters\.width is 20"):
        RetrieverConfig(adapters=AdapterConfig("harma", width=20))
