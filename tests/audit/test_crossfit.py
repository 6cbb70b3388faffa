"""Judges trained fold by fold: images read once, folds continued after Ctrl-C or begun anew."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pmpguard.audit import crossfit
from pmpguard.audit.crossfit import CrossfitConfig, fold_judges, training_settings
from pmpguard.audit.judging import judged_by_model
from pmpguard.data.pairs import PairTable
from pmpguard.errors import CheckpointError, ConfigError
from pmpguard.models.config import preset
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.synthetic.scenes import synthetic_scenes, write_world
from pmpguard.training import loop

QUICK = CrossfitConfig(folds=2, encoders="tiny", image_size=32, epochs=2, device="cpu")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_world(synthetic_scenes(24, size=32), tmp_path_factory.mktemp("scenes") / "world")


def judge(table, out, config):
    """Vectors of every judge's images, after all folds."""
    return [
        judged_by_model(one.retriever, table, one.rows, one.images).images
        for one in fold_judges(table, out, config)
    ]


@pytest.mark.slow
def test_no_judge_has_seen_what_it_judges(tmp_path, scenes):
    judged = []
    for one in fold_judges(scenes, tmp_path, QUICK, [[0, 7, 9]]):
        images = set(scenes.image_codes[one.rows].tolist())
        assert not images & {0, 7, 9} or {0, 7, 9} <= images
        part = scenes.take(one.rows)
        pixels = next(one.images.batches([np.arange(len(one.images))]))
        expected = crossfit.open_images(part, 32, torch.device("cpu")).pixels
        assert torch.equal(pixels, expected)
        judged += one.rows.tolist()
    assert sorted(judged) == list(range(len(scenes)))


def test_no_judge_is_trained_or_selected_on_what_it_judges(tmp_path, scenes, monkeypatch):
    retriever = crossfit.Retriever.create(preset("tiny", dim=8, image_size=32), scenes.captions)
    used = []

    def spy(settings, data, run):
        for table, pixels in (
            (data.train, data.train_images),
            (data.validation.table, data.validation.images),
        ):
            pixels = next(pixels.batches([np.arange(len(table.first_rows))]))
            assert torch.equal(pixels, crossfit.open_images(table, 32, torch.device("cpu")).pixels)
        used.append([set(table.column("image")) for table in (data.train, data.validation.table)])
        return SimpleNamespace(retriever=retriever, best_mr=0.0)

    monkeypatch.setattr(crossfit, "train", spy)
    names, images = np.array(scenes.column("image")), set(scenes.column("image"))
    judges = list(fold_judges(scenes, tmp_path, replace(QUICK, folds=3), [[0, 7, 9]]))
    assert len(judges) == len(used) == 3
    for one, (trained, selected) in zip(judges, used, strict=True):
        judged = set(names[one.rows])
        assert not judged & trained and not judged & selected and not trained & selected
        assert judged | trained | selected == images  # and nothing is wasted


@pytest.mark.slow
def test_frozen_backbones_look_at_each_image_once(tmp_path, scenes, monkeypatch):
    """For three trainings, their validations and the judging, and again when the judges are ready made."""
    frozen = EncoderOptions(frozen=True)
    model = preset("tiny", image_size=32, vision_options=frozen, text_options=frozen)
    monkeypatch.setattr(crossfit, "judge_model", lambda *_: model)
    monkeypatch.setattr(crossfit, "training_estimate", lambda *_: None)  # times a step, on the same images
    seen: Counter[bytes] = Counter()
    encoder = crossfit.Retriever.image_tokens

    def count(self, pixels):
        seen.update(image.numpy().tobytes() for image in pixels)
        return encoder(self, pixels)

    monkeypatch.setattr(crossfit.Retriever, "image_tokens", count)
    config = replace(QUICK, folds=3, encoders="light")
    first = judge(scenes, tmp_path, config)
    assert len(seen) == 24 and set(seen.values()) == {1}
    again = judge(scenes, tmp_path, config)
    assert set(seen.values()) == {2}
    for one, other in zip(first, again, strict=True):
        torch.testing.assert_close(one, other)
    live = [
        judged_by_model(one.retriever, scenes, one.rows, crossfit.ImageSubset(
            crossfit.open_images(scenes, 32, torch.device("cpu")), np.unique(scenes.image_codes[one.rows])
        )).images
        for one in fold_judges(scenes, tmp_path, config)
    ]  # fmt: skip
    for one, other in zip(first, live, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_stopped_audit_goes_on_where_it_was(tmp_path, scenes, monkeypatch):
    whole = judge(scenes, tmp_path / "whole", QUICK)
    validate, calls = loop.validate, []

    def interrupt(*given):
        calls.append(1)
        if len(calls) == 3:  # after the first epoch of the second fold
            os.kill(os.getpid(), signal.SIGINT)
        return validate(*given)

    monkeypatch.setattr(loop, "validate", interrupt)
    with pytest.raises(loop.Interrupted, match="run the same command again"):
        judge(scenes, tmp_path / "stopped", QUICK)
    assert list((tmp_path / "stopped/fold-2/checkpoints").glob("step-*"))
    resumed = judge(scenes, tmp_path / "stopped", QUICK)
    assert len(calls) == 4  # only the epoch that was missing
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one, other)
    assert not list((tmp_path / "stopped").glob("*/checkpoints"))  # the model is all that is needed of a fold


@pytest.mark.slow
def test_other_settings_begin_anew(tmp_path, scenes):
    told: list[str] = []
    first = [one.retriever for one in fold_judges(scenes, tmp_path, QUICK, tell=told.append)]
    assert "judge 1 of 2: trained on 12 images, judges 60 pairs of the other 12" in told
    other = [one.retriever for one in fold_judges(scenes, tmp_path, replace(QUICK, seed=1))]
    weights = [torch.cat([p.flatten() for p in one.parameters()]) for one in (first[0], other[0])]
    assert not torch.equal(*weights)
    (tmp_path / "fold-1/fold.json").unlink()  # not ours to remove then
    (tmp_path / "fold-1/mine.txt").write_text("kept")
    with pytest.raises(CheckpointError, match="fold-1 cannot be resumed"):
        list(fold_judges(scenes, tmp_path, QUICK))
    assert (tmp_path / "fold-1/mine.txt").is_file()


def test_settings_suit_the_number_of_pairs():
    def pairs(count):
        return PairTable.from_columns(
            {"image": [f"{n // 5}" for n in range(count)], "caption": [str(n) for n in range(count)]}
        )

    few, many = (training_settings(pairs(count), CrossfitConfig(encoders="tiny")) for count in (100, 40_000))
    assert few.batch_size == 16 and few.epochs == 30 and few.checkpoint_every == -1
    assert many.batch_size == 160 and many.epochs == 5 and many.captions_per_image == 5
    assert few.settings["calibration_epochs"] == 18 and many.checkpoint_every == 0
    assert training_settings(pairs(100), CrossfitConfig(method="infonce", encoders="tiny")).settings == {}


@pytest.mark.parametrize(
    ("wish", "said"),
    [({"folds": 1}, "at least 2"), ({"epochs": 0}, "too few"), ({"device": "abacus"}, "'abacus' is unknown")],
)
def test_impossible_wishes(wish, said):
    with pytest.raises(ConfigError, match=said):
        CrossfitConfig(**wish)
