"""Methods that judge pairs keep their verdicts in checkpoints: a resumed run equals a straight one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from robust_examples import coloured_squares, small_config, training_data

from pmpguard.noise.corrupt import corrupt_pairs
from pmpguard.training import loop
from pmpguard.training.loop import Interrupted, train

SETTINGS: dict[str, dict[str, object]] = {
    "l2rm": {"warm_up": 1},
    "bicro": {"warm_up": 1, "wrong_after": 0},
    "decl": {"warm_up": 1},
    "rrsitr": {"warm_up": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_stopped_after_judging_goes_on_as_if_it_had_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table, images = coloured_squares(copies=3)
    data = training_data(corrupt_pairs(table, 0.4, seed=0).table, images)
    config = small_config(method=name, settings=SETTINGS[name], epochs=2, batch_size=60, evaluate_every=2)
    straight = train(config, data, tmp_path / "straight")
    original, taken = loop.StepRunner.step, 0

    def stop_at_the_sixth(self: loop.StepRunner, *arguments: Any) -> None:
        nonlocal taken
        original(self, *arguments)
        taken += 1
        if taken == 6:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(loop.StepRunner, "step", stop_at_the_sixth)
        with pytest.raises(Interrupted):
            train(config, data, tmp_path / "resumed")
    resumed = train(config, data, tmp_path / "resumed")
    assert straight.method.p_match is not None and bool((straight.method.p_match < 1).any())
    for key, value in straight.method.state_dict().items():
        assert torch.equal(value, resumed.method.state_dict()[key]), key
