"""Self-distillation: when, what a student learns from, which model is kept, and that it resumes."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_runs import coloured_squares, press_ctrl_c, same, small_config, training_data
from safetensors.torch import load_file

from pmpguard.errors import CheckpointError, ConfigError
from pmpguard.methods.registry import find_method
from pmpguard.training import distillation, loop
from pmpguard.training.checkpoint import Position, RunIdentity, check_identity, latest_checkpoint
from pmpguard.training.distillation import (
    MOVED,
    SHARED,
    STUDENT,
    STUDENT_SEED,
    TEACHER,
    divide,
    train_with_distillation,
)
from pmpguard.training.distributed import World
from pmpguard.training.interrupt import Interrupted
from pmpguard.training.loop import TrainResult, train

DATA = training_data(*coloured_squares(copies=3))


def guarded(**settings: Any) -> Any:
    return small_config(method="pmpguard", settings={"calibration_epochs": 1, **settings}, epochs=2)


def weights_in(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def second_validates_at(mr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation of the second run gives this mR, whatever it is."""

    def trained(*given: Any, teacher: Any = None, **more: Any) -> TrainResult:
        found = train(*given, teacher=teacher, **more)
        return found if teacher is None else replace(found, best_mr=mr)

    monkeypatch.setattr(distillation, "train", trained)


@pytest.mark.slow
def test_without_being_asked_there_is_one_model(tmp_path: Path) -> None:
    for name, settings in (("never", {}), ("too few wrong", {"distill_above_rate": 1.0})):
        found = train_with_distillation(guarded(**settings), DATA, tmp_path / name)
        assert found.model_kept == 1 and not (tmp_path / name / STUDENT).exists()
    plain = train_with_distillation(small_config(epochs=1), DATA, tmp_path / "infonce")
    assert plain.model_kept == 1


@pytest.mark.slow
def test_the_second_model_has_other_draws_and_replaces_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_validates_at(101.0, monkeypatch)
    config = guarded(distill_above_rate=0.0)
    first = train(config, DATA, tmp_path / "alone")
    found = train_with_distillation(config, DATA, tmp_path / "both")
    assert (found.model_kept, found.models_trained) == (2, 2)
    told = json.loads((tmp_path / "both" / STUDENT / "config.json").read_text())
    assert told["seed"] == config.seed + STUDENT_SEED
    kept, second, alone = (
        weights_in(run) for run in (tmp_path / "both", tmp_path / "both" / STUDENT, tmp_path / "alone")
    )
    assert all(torch.equal(kept[name], second[name]) for name in kept)
    assert any(not torch.equal(kept[name], alone[name]) for name in kept)
    state = found.retriever.state_dict()
    assert all(torch.equal(state[name], value) for name, value in kept.items())
    assert first.model_kept == 1


@pytest.mark.slow
def test_the_better_one_on_validation_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second_validates_at(-1.0, monkeypatch)
    config = guarded(distill_above_rate=0.0)
    first = train(config, DATA, tmp_path / "alone")
    found = train_with_distillation(config, DATA, tmp_path / "both")
    assert (found.model_kept, found.models_trained) == (1, 2)
    same(first, found)
    kept, alone = weights_in(tmp_path / "both"), weights_in(tmp_path / "alone")
    assert all(torch.equal(kept[name], alone[name]) for name in kept)


@pytest.mark.slow
def test_stopped_in_the_second_model_it_resumes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_validates_at(101.0, monkeypatch)
    config = guarded(distill_above_rate=0.0)
    straight = train_with_distillation(config, DATA, tmp_path / "straight")
    taken, original = 0, loop.StepRunner.step

    def step(self: loop.StepRunner, *arguments: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == straight.steps + 3:
            raise KeyboardInterrupt
        original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop.StepRunner, "step", step)
        with pytest.raises(KeyboardInterrupt):
            train_with_distillation(config, DATA, tmp_path / "resumed")
    assert (tmp_path / "resumed" / STUDENT).exists()
    same(straight, train_with_distillation(config, DATA, tmp_path / "resumed"))


@pytest.mark.slow
def test_without_checkpoints_the_first_model_is_still_there_when_the_second_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(guarded(distill_above_rate=0.0), checkpoint_every=-1)
    straight = train_with_distillation(config, DATA, tmp_path / "straight")
    taken = press_ctrl_c(monkeypatch, straight.steps + 3)
    with pytest.raises(Interrupted, match="run the same command again"):
        train_with_distillation(config, DATA, tmp_path / "resumed")
    found = train_with_distillation(config, DATA, tmp_path / "resumed")
    assert len(taken) == 2 * straight.steps  # none of the first model's again
    same(straight, found)


@pytest.mark.slow
def test_stopped_after_the_last_step_it_says_what_to_do_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(guarded(), checkpoint_every=-1)
    straight, original = train_with_distillation(config, DATA, tmp_path / "straight"), loop.validate
    looks = 0

    def validate(*given: Any) -> dict[str, float]:
        nonlocal looks
        looks += 1
        if looks == config.epochs:
            signal.raise_signal(signal.SIGINT)
        return original(*given)

    monkeypatch.setattr(loop, "validate", validate)
    with pytest.raises(Interrupted, match="run the same command again"):
        train_with_distillation(config, DATA, tmp_path / "resumed")
    same(straight, train_with_distillation(config, DATA, tmp_path / "resumed"))
    assert looks == config.epochs


@pytest.mark.slow
@pytest.mark.parametrize(("mr", "kept"), [(101.0, STUDENT), (-1.0, TEACHER)])
def test_teacher_and_student_keep_their_own_records_and_the_card_says_which_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mr: float, kept: str
) -> None:
    second_validates_at(mr, monkeypatch)
    config = guarded(distill_above_rate=0.0)
    train_with_distillation(config, DATA, tmp_path)
    for name, seed in ((TEACHER, config.seed), (STUDENT, config.seed + STUDENT_SEED)):
        folder = tmp_path / name
        assert json.loads((folder / "config.json").read_text())["seed"] == seed
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines if line["kind"] == "validation"] == [0, 1]
        assert latest_checkpoint(folder) is not None
        assert "Self-distillation" not in (folder / "model" / "README.md").read_text()
        same_weights = torch.equal(*(weights_in(run)["log_temperature"] for run in (tmp_path, folder)))
        assert same_weights == (name == kept)
    assert f"This is the {kept} of two models" in (tmp_path / "model" / "README.md").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == config.seed
    assert not (tmp_path / "metrics.jsonl").exists() and not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_a_refused_run_changes_no_file_of_teacher_and_student(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_validates_at(101.0, monkeypatch)
    config = guarded(distill_above_rate=0.0)
    train_with_distillation(config, DATA, tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = [(path, path.stat().st_mtime_ns) for path in files]
    with pytest.raises(CheckpointError, match=r"config\.seed: 0 then, 4 now"):
        train_with_distillation(replace(config, seed=4), DATA, tmp_path)
    assert before == [(path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()]


def test_a_teacher_s_records_are_moved_on_from_wherever_that_was_stopped(tmp_path: Path) -> None:
    for stop in range(len(MOVED) + 1):
        run = tmp_path / str(stop)
        for name in (*SHARED, *MOVED):
            (run / name).parent.mkdir(exist_ok=True)
            (run / name).write_text(name)
        if stop:
            (run / TEACHER).mkdir()
        for name in MOVED[:stop]:
            (run / name).rename(run / TEACHER / name)
        (run / "noise.json").write_text("of the whole run")
        divide(run, World())
        divide(run, World())
        assert {path.name for path in run.iterdir() if path.is_file()} - {".lock"} == {*SHARED, "noise.json"}
        assert {path.name: path.read_text() for path in (run / TEACHER).iterdir()} == {
            name: name for name in (*SHARED, *MOVED)
        }


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_outside_its_range_is_an_error(share: float) -> None:
    with pytest.raises(ConfigError, match="distill_above_rate"):
        find_method("pmpguard").read_settings("recommended", {"distill_above_rate": share})


@pytest.mark.slow
def test_a_finished_model_holds_no_gradients(tmp_path: Path) -> None:
    found = train(guarded(), DATA, tmp_path)
    assert all(parameter.grad is None for parameter in found.method.parameters())


@pytest.mark.slow
def test_a_taught_run_resumes_only_with_its_own_teacher(tmp_path: Path) -> None:
    config = guarded()
    teachers = [train(replace(config, seed=seed), DATA, tmp_path / f"{seed}").retriever for seed in (5, 6)]
    before = {name: value.clone() for name, value in teachers[0].state_dict().items()}
    train(config, DATA, tmp_path / "run", teacher=teachers[0])
    after = teachers[0].state_dict()
    # it teaches, and that is all
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    for other in (teachers[1], None):
        with pytest.raises(CheckpointError, match="teacher"):
            train(config, DATA, tmp_path / "run", teacher=other)


def test_a_checkpoint_that_names_no_teacher_is_of_a_run_without(tmp_path: Path) -> None:
    identity = RunIdentity({}, "data", "validation", "", 1)
    state = {"identity": asdict(identity), "position": asdict(Position(step=3))}
    del state["identity"]["teacher"]
    (tmp_path / "state.json").write_text(json.dumps(state))
    check_identity(tmp_path, identity)
    with pytest.raises(CheckpointError, match="teacher"):
        check_identity(tmp_path, replace(identity, teacher="another"))


def test_a_method_that_cannot_learn_from_a_teacher_says_so(tmp_path: Path) -> None:
    teacher = train(small_config(epochs=1), DATA, tmp_path / "first").retriever
    with pytest.raises(ConfigError, match="infonce cannot learn from a teacher"):
        train(small_config(epochs=1), DATA, tmp_path / "second", teacher=teacher)


@pytest.mark.slow
def test_pairs_are_judged_as_both_models_do_on_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def remembered(*given: Any, **more: Any) -> TrainResult:
        found = train(*given, **more)  # of so few pairs both models believe all
        drawn = torch.Generator().manual_seed(len(judged))
        found.method.p_match.copy_(torch.rand(len(found.method.p_match), generator=drawn))
        found.method.estimated_rate.fill_(0.3 + 0.2 * len(judged))
        judged.append((found.method.p_match.clone(), float(found.method.estimated_rate)))
        return found

    monkeypatch.setattr(distillation, "train", remembered)
    found = train_with_distillation(guarded(distill_above_rate=0.0), DATA, tmp_path)
    (first, rate), (second, other_rate) = judged
    assert not torch.equal(first, second)
    torch.testing.assert_close(found.method.p_match, (first + second) / 2)
    assert float(found.method.estimated_rate) == pytest.approx((rate + other_rate) / 2)
