"""Straight runs, resumed runs, interrupted runs and runs that cannot go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_runs import coloured_squares, press_ctrl_c, same, small_config, training_data

from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.errors import CheckpointError, ConfigError, DataError, PmpguardError, TrainingError
from pmpguard.files import writer_lock
from pmpguard.methods.infonce import InfoNce
from pmpguard.methods.method import EncodedBatch
from pmpguard.training import loop
from pmpguard.training.checkpoint import latest_checkpoint
from pmpguard.training.distributed import World, writing_right
from pmpguard.training.interrupt import Interrupted
from pmpguard.training.loop import train

TABLE, IMAGES = coloured_squares(copies=3)


def run_until(
    monkeypatch: pytest.MonkeyPatch,
    stop_after: int,
    config: Any,
    run: Path,
    signal_number: signal.Signals = signal.SIGINT,
) -> None:
    """Train, asking it to stop after `stop_after` steps."""
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, stop_after, signal_number)
        with pytest.raises(Interrupted, match="run the same command again"):
            train(config, training_data(TABLE, IMAGES), run)


def test_ctrl_c_after_the_last_step_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = loop.validate

    def validate(*arguments: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    config = small_config(epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", validate)
        with pytest.raises(Interrupted, match="its model is in"):
            train(config, training_data(TABLE, IMAGES), tmp_path)
    kept = (tmp_path / "model" / "model.safetensors").read_bytes()
    train(config, training_data(TABLE, IMAGES), tmp_path)  # there is nothing left to train
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == kept


CONFIGS = {
    "infonce": small_config(ema=0.9),
    "pmpguard": small_config(method="pmpguard", settings={"detect_from_epoch": 1}, epochs=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "stop_after", [2, 6, 7]
)  # inside an epoch, at its end, just after the next detection
def test_a_resumed_run_equals_a_straight_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stop_after: int
) -> None:
    config, data = CONFIGS[name], training_data(TABLE, IMAGES)
    straight = train(config, data, tmp_path / "straight")
    assert straight.steps == 6 * config.epochs
    run_until(monkeypatch, stop_after, config, tmp_path / "resumed")
    resumed = train(config, data, tmp_path / "resumed")
    same(straight, resumed)
    metrics = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in ("straight", "resumed")]
    assert metrics[0] == metrics[1]
    models = [
        (tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("straight", "resumed")
    ]
    assert models[0] == models[1]


def files_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


def test_a_refused_run_changes_no_file(tmp_path: Path) -> None:
    config, data = small_config(epochs=1), training_data(TABLE, IMAGES)
    recorded = []
    train(config, replace(data, record=lambda: recorded.append("own")), tmp_path)
    assert recorded == ["own"]
    before = files_in(tmp_path)
    foreign = replace(data, noise="other", record=lambda: recorded.append("foreign"))
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        train(config, foreign, tmp_path)
    with pytest.raises(CheckpointError, match="cannot be resumed"):
        train(replace(config, seed=3), foreign, tmp_path)
    with writer_lock(tmp_path):
        locked = files_in(tmp_path)
        with pytest.raises(PmpguardError, match="is being written by process"):
            train(config, replace(data, record=lambda: recorded.append("second")), tmp_path)
        assert files_in(tmp_path) == locked
    assert recorded == ["own"] and before.keys() == files_in(tmp_path).keys()
    assert {name: found for name, found in files_in(tmp_path).items() if name != ".lock"} == {
        name: found for name, found in before.items() if name != ".lock"
    }


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_save_a_checkpoint_and_give_their_handlers_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal_number: signal.Signals
) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run_until(monkeypatch, 2, small_config(), tmp_path, signal_number)
    kept = latest_checkpoint(tmp_path)
    assert kept is not None and kept.name == "step-00000002"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_a_signal_before_the_first_step_stops_at_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("went on")

    monkeypatch.setattr(loop, "build_method", build)
    with pytest.raises(Interrupted, match="run the same command again"):
        train(small_config(), training_data(TABLE, IMAGES), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {".lock"}


@pytest.mark.slow
def test_a_signal_during_detection_stops_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = CONFIGS["pmpguard"], training_data(TABLE, IMAGES)
    original = loop.plan_epoch

    def plan(*arguments: Any) -> Any:
        if arguments[3] == 1:  # the epoch
            signal.raise_signal(signal.SIGTERM)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "plan_epoch", plan)
        with pytest.raises(Interrupted, match="stopped at step 6 of 18"):
            train(config, data, tmp_path / "resumed")
    same(train(config, data, tmp_path / "straight"), train(config, data, tmp_path / "resumed"))
    metrics = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in ("straight", "resumed")]
    assert metrics[0] == metrics[1]


def test_equal_seeds_give_equal_runs_and_other_seeds_do_not(tmp_path: Path) -> None:
    config, data = small_config(epochs=1), training_data(TABLE, IMAGES)
    first, second = (train(config, data, tmp_path / name) for name in ("a", "b"))
    same(first, second)
    other = train(replace(config, seed=1), data, tmp_path / "c")
    assert any(
        not torch.equal(value, other.method.state_dict()[name])
        for name, value in first.method.state_dict().items()
    )


@pytest.mark.slow
def test_training_learns_what_the_squares_are_called(tmp_path: Path) -> None:
    result = train(small_config(epochs=12), training_data(TABLE, IMAGES), tmp_path)
    assert result.best_mr > 60  # chance is about 4
    assert result.pairs_per_second > 0


@pytest.mark.parametrize(
    "change,named",
    [
        (lambda config, data: (replace(config, seed=5), data), "config.seed: 0 then, 5 now"),
        (lambda config, data: (config, replace(data, dataset="other")), "dataset: "),
        (lambda config, data: (config, replace(data, noise="other")), "noise: '' then, 'other' now"),
    ],
)
def test_resuming_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, named: str
) -> None:
    config = small_config()
    run_until(monkeypatch, 2, config, tmp_path)
    config, data = change(config, training_data(TABLE, IMAGES))
    with pytest.raises(CheckpointError, match=named):
        train(config, data, tmp_path)


def test_resuming_with_another_number_of_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until(monkeypatch, 2, small_config(), tmp_path)
    state = latest_checkpoint(tmp_path)
    assert state is not None
    text = (state / "state.json").read_text().replace('"world_size": 1', '"world_size": 2')
    (state / "state.json").write_text(text)
    from pmpguard.files import write_manifest

    write_manifest(state)
    with pytest.raises(CheckpointError, match="world_size: 2 then, 1 now"):
        train(small_config(), training_data(TABLE, IMAGES), tmp_path)


def test_a_run_begun_by_another_process_a_moment_ago_is_found_once_the_folder_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the lock the other one has finished."""
    config, data = small_config(epochs=1, checkpoint_every=-1), training_data(TABLE, IMAGES)

    @contextlib.contextmanager
    def taken_late(run: Path, world: World) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(loop, "writing_right", writing_right)
            train(config, data, run)
        with writing_right(run, world):
            yield

    monkeypatch.setattr(loop, "writing_right", taken_late)
    with pytest.raises(CheckpointError, match=r"config\.seed: 0 then, 5 now"):
        train(replace(config, seed=5), data, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 0


def test_a_finished_folder_is_not_overwritten_without_resume(tmp_path: Path) -> None:
    config = small_config(epochs=1)
    train(config, training_data(TABLE, IMAGES), tmp_path)
    with pytest.raises(CheckpointError, match="already holds a run"):
        train(config, training_data(TABLE, IMAGES), tmp_path, resume=False)


class Broken(InfoNce):
    """Not a number from the fourth batch on."""

    seen = 0

    def losses(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        Broken.seen += 1
        factor = float("nan") if Broken.seen > 3 else 1.0
        return {name: value * factor for name, value in super().losses(batch).items()}


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    Broken.seen = 0
    config = small_config(method=f"{__name__}:Broken", checkpoint_every=2)
    with pytest.raises(TrainingError, match=r"step 3 is not finite; its batch holds pairs \d+"):
        train(config, training_data(TABLE, IMAGES), tmp_path)
    kept = latest_checkpoint(tmp_path)
    assert kept is not None and kept.name == "step-00000002"


def test_a_batch_larger_than_the_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="batch_size is 5000 but there are only 240 pairs"):
        train(small_config(batch_size=5000), training_data(TABLE, IMAGES), tmp_path)


def test_one_image_is_refused(tmp_path: Path) -> None:
    data = training_data(TABLE, IMAGES)
    one = replace(
        data, train=data.train.slice(0, 2), train_images=ImagesInMemory(IMAGES[:1], torch.device("cpu"))
    )
    with pytest.raises(DataError, match="one image"):
        train(small_config(batch_size=2), one, tmp_path)


def test_all_captions_equal_trains_without_a_signal(tmp_path: Path) -> None:
    table = TABLE.with_column("caption", ["a square"] * len(TABLE))
    result = train(small_config(epochs=1), training_data(table, IMAGES), tmp_path)
    assert np.isfinite(result.best_mr)
    assert result.best_mr < 15


def test_an_unknown_method_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known: pmpguard, infonce"):
        train(small_config(method="nothing"), training_data(TABLE, IMAGES), tmp_path)


def test_gradient_accumulation_averages_batches(tmp_path: Path) -> None:
    optimiser = replace(small_config().optimiser, grad_accumulation=2)
    result = train(small_config(optimiser=optimiser), training_data(TABLE, IMAGES), tmp_path)
    assert result.steps == 2 * 3


@pytest.mark.slow
def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    """A file-size limit makes writing the second checkpoint fail as a full disk would."""
    script = tmp_path / "run.py"
    script.write_text(
        f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from helpers.small_runs import coloured_squares, small_config, training_data
from pmpguard.training import loop
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
saved = 0
original = loop.save_checkpoint
def limited(*arguments, **named):
    global saved
    saved += 1
    if saved == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    return original(*arguments, **named)
loop.save_checkpoint = limited
run = Path({str(tmp_path / "run")!r})
loop.train(small_config(checkpoint_every=2), training_data(*coloured_squares(3)), run)
"""
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "could not be written" in done.stderr and "free some disk space" in done.stderr
    assert latest_checkpoint(tmp_path / "run") is not None


@pytest.mark.slow
def test_sigkill_leaves_a_checkpoint_that_resumes_to_the_same_end(tmp_path: Path) -> None:
    config, data = small_config(checkpoint_every=1), training_data(TABLE, IMAGES)
    straight = train(config, data, tmp_path / "straight")
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path\nfrom helpers.small_runs import *\n"
        "from pmpguard.training.loop import train\n"
        f"run = Path({str(tmp_path / 'killed')!r})\ntorch.set_num_threads({torch.get_num_threads()})\n"
        "train(small_config(checkpoint_every=1), training_data(*coloured_squares(3)), run)"
    )
    draw = np.random.default_rng(0)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while not list((tmp_path / "killed").glob("checkpoints/step-*")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(float(draw.uniform(0, 0.4)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert latest_checkpoint(tmp_path / "killed") is not None
    same(straight, train(config, data, tmp_path / "killed"))
