"""Cached features of frozen backbones give what running the backbones anew gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.data.images.sources import ImagesInMemory, ImageSubset
from pmpguard.data.images.transforms import Augmentation
from pmpguard.errors import ConfigError
from pmpguard.methods.method import Method
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.training import epoch, loop
from pmpguard.training.batch_sampler import PairSampler
from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World
from pmpguard.training.feature_cache import cache_features, can_cache, encode_images, encode_texts
from pmpguard.training.loader import BatchLoader, TokenTable
from pmpguard.training.loop import build_method

CPU = torch.device("cpu")
DATA = training_data(*coloured_squares(copies=3))
STILL = Augmentation(flip=False, rotate=False, crop_min=1.0)


def frozen_config() -> TrainConfig:
    base, frozen = small_config(augmentation=STILL), EncoderOptions(frozen=True)
    return replace(base, model=replace(base.model, vision_options=frozen, text_options=frozen))


def build() -> tuple[Method, TokenTable]:
    method = build_method(frozen_config(), len(DATA.train), DATA.train.captions)
    return method, TokenTable.of(DATA.train, method.retriever, CPU)


def test_only_frozen_backbones_and_still_images_can_be_kept() -> None:
    config = frozen_config()
    retriever = build()[0].retriever
    assert can_cache(retriever, STILL)
    moved: list[dict[str, object]] = [{"flip": True}, {"rotate": True}, {"crop_min": 0.9}, {"colour": 0.1}]
    for change in moved:
        assert not can_cache(retriever, replace(STILL, **change))  # type: ignore[arg-type]
    retriever.text_encoder.adapted = True
    assert not can_cache(retriever, STILL)
    for side in ("vision_options", "text_options"):
        model = replace(config.model, **{side: EncoderOptions()})
        thawed = build_method(replace(config, model=model), len(DATA.train), DATA.train.captions)
        assert not can_cache(thawed.retriever, STILL)
    method = build_method(small_config(), len(DATA.train), DATA.train.captions)
    with pytest.raises(ConfigError, match="frozen"):
        cache_features(
            method.retriever, DATA.train_images, TokenTable.of(DATA.train, method.retriever, CPU), 32, CPU
        )


@pytest.mark.parametrize("batch", [7, 1000])
def test_cached_features_give_the_vectors_of_the_whole_encoders(batch: int) -> None:
    method, tokens = build()
    retriever = method.retriever
    images, captions = cache_features(retriever, DATA.train_images, tokens, batch, CPU)
    chosen = np.array([5, 0, 17])
    fresh = encode_images(retriever, next(DATA.train_images.batches([chosen])))
    kept = encode_images(retriever, next(images.batches([chosen])))
    torch.testing.assert_close(kept.pooled, fresh.pooled, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(kept.fragments, fresh.fragments, rtol=1e-4, atol=1e-5)
    fresh, kept = (encode_texts(retriever, table.padded(chosen)) for table in (tokens, captions))
    width = kept.mask.shape[1]
    assert torch.equal(kept.mask, fresh.mask[:, :width]) and not fresh.mask[:, width:].any()
    torch.testing.assert_close(kept.pooled, fresh.pooled, rtol=1e-4, atol=1e-5)
    real = kept.mask
    torch.testing.assert_close(kept.fragments[real], fresh.fragments[:, :width][real], rtol=1e-4, atol=1e-5)


def test_projections_get_the_same_gradients_and_backbones_none() -> None:
    found = []
    for cached in (False, True):
        method, tokens = build()
        if cached:
            images, words = cache_features(method.retriever, DATA.train_images, tokens, 32, CPU)
        else:
            images, words = DATA.train_images, tokens  # type: ignore[assignment]
        codes = DATA.train.image_codes, DATA.train.caption_codes
        loader = BatchLoader(
            DATA.train, images, words, PairSampler(*codes, 30, 0), STILL, 0, CPU, World()
        )  # fmt: skip
        batch = next(loader.batches(0, 0))
        inputs = batch.images
        if isinstance(inputs, torch.Tensor):
            inputs = method.retriever.normalise(inputs)
        assert isinstance(inputs, Encoded) == isinstance(batch.texts, Encoded) == cached
        seen = encode_images(method.retriever, inputs)
        texts = encode_texts(method.retriever, batch.texts).chosen(batch.caption_of)
        scores = texts.pooled @ seen.pooled.T / 0.07  # (T, I)
        torch.nn.functional.cross_entropy(scores, batch.image_of).backward()
        found.append(
            {name: value.grad for name, value in method.named_parameters() if value.grad is not None}
        )
    live, kept = found
    assert live.keys() == kept.keys() and all("projection" in name for name in live)
    for name, gradient in live.items():
        torch.testing.assert_close(kept[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("infonce", {}), ("pmpguard", {"detect_from_epoch": 1})])
def test_a_run_on_cached_features_equals_one_that_asks_the_backbones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, int]
) -> None:
    config = replace(frozen_config(), method=name, settings=settings, epochs=3, ema=0.9)
    kept = loop.train(config, DATA, tmp_path / "kept").method.state_dict()
    monkeypatch.setattr(epoch, "can_cache", lambda *_: False)
    live = loop.train(config, DATA, tmp_path / "live").method.state_dict()
    for name, value in live.items():
        torch.testing.assert_close(kept[name], value, rtol=5e-3, atol=5e-4)


def test_tokens_are_read_once_for_runs_over_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    method, tokens = build()
    first = cache_features(method.retriever, DATA.train_images, tokens, 16, CPU)
    calls = []
    for encoder in (type(method.retriever.image_encoder), type(method.retriever.text_encoder)):
        backbone = encoder.tokens
        monkeypatch.setattr(
            encoder, "tokens", lambda *given, read=backbone: calls.append(len(given[1])) or read(*given)
        )
    again, words = build()
    calls.clear()  # building looks at the shapes
    second = cache_features(again.retriever, DATA.train_images, words, 16, CPU)
    assert not calls and second[0].features is first[0].features
    assert first[1].features is not None and second[1].features is not None
    assert torch.equal(second[1].features.fragments, first[1].features.fragments)
    with torch.no_grad():  # other weights: nothing may be reused
        next(again.retriever.image_encoder.backbone.parameters()).add_(0.1)
    third = cache_features(again.retriever, DATA.train_images, words, 16, CPU)
    assert calls and not torch.equal(third[0].features.pooled, first[0].features.pooled)
    assert third[1].features is not None
    assert torch.equal(third[1].features.fragments, first[1].features.fragments)


def test_parts_of_a_set_share_what_the_backbone_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds of one dataset overlap; each image of it is looked at once, whatever the parts."""
    method, tokens = build()
    retriever, encoder = method.retriever, type(method.retriever.image_encoder)
    seen: list[int] = []
    backbone = encoder.tokens
    monkeypatch.setattr(
        encoder, "tokens", lambda self, pixels: seen.append(len(pixels)) or backbone(self, pixels)
    )
    whole = ImagesInMemory(DATA.train_images.pixels, CPU)  # type: ignore[attr-defined]
    for codes in (np.arange(0, 20), np.arange(10, len(whole)), np.array([3])):
        part = ImageSubset(whole, codes)
        kept, _ = cache_features(retriever, part, tokens, 16, CPU)
        assert sum(seen) == len(whole) and len(kept) == len(part)
        chosen = np.array([0, len(codes) - 1])
        given, expected = next(kept.batches([chosen])), next(DATA.train_images.batches([codes[chosen]]))
        again = backbone(retriever.image_encoder, expected)
        torch.testing.assert_close(given.pooled, again.pooled)
        torch.testing.assert_close(given.fragments, again.fragments)
        assert torch.equal(next(part.batches([chosen])), expected)
