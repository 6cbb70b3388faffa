"""Whole splits as a model sees them: its vectors, and the tokens they are made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.data.images.transforms import Augmentation
from pmpguard.methods.method import EpochPlan, Method, TrainingView
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.training.distributed import World
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.encode import Split
from pmpguard.training.epoch import open_split, plan_epoch
from pmpguard.training.loop import build_method

CPU = torch.device("cpu")
DATA = training_data(*coloured_squares(copies=3))
STILL = Augmentation(flip=False, rotate=False, crop_min=1.0)


@pytest.mark.parametrize("frozen", [False, True])  # of frozen encoders, tokens are kept
def test_pooled_tokens_are_what_the_last_layers_make_vectors_of(frozen: bool) -> None:
    config = small_config(augmentation=STILL, batch_size=16)
    options = EncoderOptions(frozen=frozen)
    config = replace(config, model=replace(config.model, vision_options=options, text_options=options))
    retriever = build_method(config, len(DATA.train), DATA.train.captions).retriever.eval()
    split = open_split(DATA.train, DATA.train_images, retriever, config)
    with torch.no_grad():
        captions, images = split.pooled_features(retriever)
        vectors = split.encode(retriever)
        made = []
        for tokens, project in ((captions, retriever.project_texts), (images, retriever.project_images)):
            silent = torch.zeros(len(tokens), 1, dtype=torch.bool)
            made.append(project(Encoded(tokens, tokens[:, None], silent)).pooled)
    for found, encoded in zip(made, vectors, strict=True):
        torch.testing.assert_close(found, encoded.pooled)
    assert len(captions) == len(set(DATA.train.captions)) and len(images) == len(DATA.train.first_rows)


def test_a_detection_round_gets_tokens_of_its_own_encoders_and_without_them_the_pooled_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config(batch_size=16)
    method = build_method(config, len(DATA.train), DATA.train.captions)
    split = Split.open(DATA.train, DATA.train_images, method.retriever)
    read = []

    def look(self: Method, view: TrainingView) -> EpochPlan:
        read.append(view.tokens())
        alone = replace(view, read_tokens=None, _cache={})
        torch.testing.assert_close(alone.tokens(), (alone.captions.pooled, alone.images.pooled))
        return EpochPlan()

    monkeypatch.setattr(type(method), "begin_epoch", look)
    with torch.no_grad():
        expected = split.pooled_features(method.eval().retriever)
        averaged = AveragedWeights(method, 0.9)
        for parameter in method.parameters():
            parameter.mul_(1.5)  # not averaged yet
    plan_epoch(method, averaged, split, 0, config, World())
    torch.testing.assert_close(read[0], expected)
    assert read[0][0].shape[1] == method.retriever.text_encoder.width


@pytest.mark.parametrize("fragments", [False, True])
def test_a_look_reads_pooled_vectors_alone_unless_the_method_plans_by_fragments(
    monkeypatch: pytest.MonkeyPatch, fragments: bool
) -> None:
    config = small_config(batch_size=16)
    method = build_method(config, len(DATA.train), DATA.train.captions)
    split = Split.open(DATA.train, DATA.train_images, method.retriever)
    seen: list[tuple[Encoded, Encoded]] = []

    def look(self: Method, view: TrainingView) -> EpochPlan:
        seen.append((view.captions, view.images))
        return EpochPlan()

    monkeypatch.setattr(type(method), "begin_epoch", look)
    monkeypatch.setattr(type(method), "plans_by_fragments", fragments)
    plan_epoch(method, AveragedWeights(method, 0.0), split, 0, config, World())
    for found, whole in zip(seen[0], split.encode(method.retriever), strict=True):
        torch.testing.assert_close(found.pooled, whole.pooled)
        assert found.fragments.shape[1] == (whole.fragments.shape[1] if fragments else 0)
