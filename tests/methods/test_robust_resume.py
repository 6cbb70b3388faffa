"""Methods that judge pairs keep their verdicts in checkpoints: a resumed run equals a straight one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.robust_examples import coloured_squares, small_config, training_data
from helpers.small_runs import press_ctrl_c

from pmpguard.audit.judging import distinct_captions
from pmpguard.methods.method import Method
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.config import TrainConfig
from pmpguard.training.interrupt import Interrupted
from pmpguard.training.loop import TrainingData, train
from pmpguard.training.outside_judge import JudgeVectors

SETTINGS: dict[str, dict[str, object]] = {
    "l2rm": {"warmup_epochs": 1},
    "bicro": {"warmup_epochs": 1, "wrong_after": 0},
    "decl": {"warmup_epochs": 1},
    "rrsitr": {"warmup_epochs": 1},
    "ncr": {"warmup_epochs": 1, "wrong_after": 0},
    "crcl": {"warmup_epochs": 1},
    "npc": {"warmup_epochs": 1, "memory": 32},
    "in2r": {"warmup_epochs": 1, "memory": 32},
    "sclip": {},
}


def stopped_and_straight(
    config: TrainConfig, data: TrainingData, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Method:
    """A run without a break, which one that is interrupted after its sixth step and continued must equal."""
    straight = train(config, data, folder / "straight")
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, 6)
        with pytest.raises(Interrupted):
            train(config, data, folder / "resumed")
    resumed = train(config, data, folder / "resumed")
    for key, value in straight.method.state_dict().items():
        again = resumed.method.state_dict()[key]
        torch.testing.assert_close(value, again, rtol=0, atol=0, equal_nan=True, msg=key)
    return straight.method


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_stopped_after_judging_goes_on_as_if_it_had_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table, images = coloured_squares(copies=3)
    data = training_data(corrupt_pairs(table, 0.4, seed=0).table, images)
    config = small_config(method=name, settings=SETTINGS[name], epochs=2, batch_size=60, evaluate_every=2)
    straight = stopped_and_straight(config, data, tmp_path, monkeypatch)
    assert straight.p_match is not None and bool((straight.p_match < 1).any())


def test_a_run_that_feeds_some_pairs_more_often_goes_on_as_if_it_had_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, images = coloured_squares(copies=3)
    corruption = corrupt_pairs(table, 0.6, seed=0)
    is_noisy = corruption.is_noisy[np.array(table.column("split")) == "train"]
    data = replace(training_data(corruption.table, images), known=~is_noisy)
    settings = {
        "cga": False,
        "suppress": False,
        "rematch": False,
        "clean_oversampling": 2.0,
        "calibration_epochs": 1,
    }
    config = small_config(method="pmpguard", settings=settings, epochs=2, batch_size=60, evaluate_every=2)
    straight = stopped_and_straight(config, data, tmp_path, monkeypatch)
    assert straight.repeats is not None and straight.repeats[torch.from_numpy(~is_noisy)].double().mean() == 2


@pytest.mark.slow
def test_a_run_with_a_judge_from_outside_goes_on_as_if_it_had_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, images = coloured_squares(copies=3)
    clean = training_data(table, images).train
    data = training_data(corrupt_pairs(table, 0.4, seed=0).table, images)
    generator = torch.Generator().manual_seed(0)
    known = {caption: torch.randn(8, generator=generator) for caption in dict.fromkeys(clean.captions)}
    texts = torch.stack([known[caption] for caption in distinct_captions(data.train)])
    pixels = torch.stack([known[clean.captions[row]] for row in clean.first_rows])
    vectors = (torch.nn.functional.normalize(each, dim=1) for each in (texts, pixels))
    config = small_config(method="pmpguard", epochs=2, batch_size=60, evaluate_every=2)
    judged = replace(data, judge=JudgeVectors(*vectors))
    straight = stopped_and_straight(config, judged, tmp_path, monkeypatch)
    assert not straight.state_dict()["remembered"][3].isnan().any()  # what the judge said
