"""Checkpoints on disk: whole or absent, the newest whole one wins, nothing foreign is resumed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pmpguard.errors import CheckpointError
from pmpguard.training.checkpoint import (
    Position,
    RunIdentity,
    latest_checkpoint,
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
)

IDENTITY = RunIdentity({"seed": 0, "model": {"dim": 8}}, "data", "val", "noise", 1)


def tensors(value: float) -> dict[str, dict[str, Tensor]]:
    return {"method": {"weight": torch.full((2, 3), value)}, "averaged": {}, "plan": {}}


def save(run: Path, step: int, keep: int = 2) -> Path:
    return save_checkpoint(run, IDENTITY, Position(step=step, best_score=0.1 + step), tensors(step), keep)


def test_what_was_saved_comes_back_exactly(tmp_path: Path) -> None:
    position = Position(7, 1, 1, 0, 0.1 + 0.2, 123, 4)
    transposed = {
        "method": {"weight": torch.randn(3, 2).T},
        "sums": {"loss": torch.tensor(1 / 3)},
        "plan": {},
    }
    folder = save_checkpoint(tmp_path, IDENTITY, position, transposed)
    assert folder.name == "step-00000007" and latest_checkpoint(tmp_path) == folder
    found, loaded = load_checkpoint(folder, IDENTITY)
    assert found == position
    assert torch.equal(loaded["method"]["weight"], transposed["method"]["weight"])
    assert torch.equal(loaded["sums"]["loss"], transposed["sums"]["loss"])


def test_one_tensor_under_two_names_is_kept_under_both(tmp_path: Path) -> None:
    words = torch.randn(5, 3)  # as the texts' words of a T5
    shared = {"method": {"shared": words, "embed": words, "first": words[0]}, "averaged": {}, "plan": {}}
    _, loaded = load_checkpoint(save_checkpoint(tmp_path, IDENTITY, Position(step=1), shared), IDENTITY)
    for name, value in shared["method"].items():
        assert torch.equal(loaded["method"][name], value)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 9):
        save(tmp_path, step)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert kept == ["step-00000009", "step-00000010"]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    older, newer = save(tmp_path, 1), save(tmp_path, 2)
    weights = newer / "method.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(bytes(damaged))
    assert latest_checkpoint(tmp_path) == older
    (older / "state.json").unlink()
    assert latest_checkpoint(tmp_path) is None


def test_a_writer_killed_between_its_two_renames_loses_nothing(tmp_path: Path) -> None:
    """Replacing a checkpoint of the same step moves the old one aside before the new one takes its place."""
    folder = save(tmp_path, 5)
    folder.rename(folder.with_name(".old-step-00000005"))
    assert latest_checkpoint(tmp_path) == folder
    load_checkpoint(folder, IDENTITY)


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    shutil.copytree(folder, folder.with_name(".old-step-00000005"))
    save(tmp_path, 6)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["step-00000005", "step-00000006"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (replace(IDENTITY, config={"seed": 0, "model": {"dim": 16}}), "config.model.dim: 8 then, 16 now"),
        (replace(IDENTITY, dataset="other"), "dataset: 'data' then, 'other' now"),
        (replace(IDENTITY, validation="other"), "validation: 'val' then, 'other' now"),
        (replace(IDENTITY, noise="other"), "noise: 'noise' then, 'other' now"),
        (replace(IDENTITY, world_size=2), "world_size: 1 then, 2 now"),
    ],
)
def test_another_run_is_refused_by_the_field_that_differs(
    tmp_path: Path, changed: RunIdentity, named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        load_checkpoint(save(tmp_path, 1), changed)


def test_a_checkpoint_that_cannot_be_written_leaves_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pmpguard.training.checkpoint.save_file", full)
    with pytest.raises(CheckpointError, match=r"step-00000002 could not be written .*No space left"):
        save(tmp_path, 2)
    assert latest_checkpoint(tmp_path) == first
    assert sorted(path.name for path in first.parent.iterdir()) == ["step-00000001"]


def build() -> tuple[nn.Linear, torch.optim.AdamW, dict[nn.Parameter, str]]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    return layer, torch.optim.AdamW(layer.parameters(), lr=0.1), {v: k for k, v in layer.named_parameters()}


def step(layer: nn.Linear, optimiser: torch.optim.AdamW, number: int) -> None:
    torch.manual_seed(number)
    optimiser.zero_grad()
    layer(torch.randn(4, 3)).square().sum().backward()
    optimiser.step()


def test_a_restored_optimiser_takes_the_same_next_step() -> None:
    layer, optimiser, names = build()
    for number in range(3):
        step(layer, optimiser, number)
    saved = {name: value.clone() for name, value in optimiser_tensors(optimiser, names).items()}
    assert set(saved) == {
        f"{name}|{part}" for name in names.values() for part in ("exp_avg", "exp_avg_sq", "step")
    }
    other, fresh, other_names = build()
    other.load_state_dict(layer.state_dict())
    restore_optimiser(fresh, other_names, saved)
    step(layer, optimiser, 3)
    step(other, fresh, 3)
    assert torch.equal(layer.weight, other.weight) and torch.equal(layer.bias, other.bias)


def test_an_optimiser_that_has_not_stepped_has_nothing_to_save() -> None:
    _, optimiser, names = build()
    assert optimiser_tensors(optimiser, names) == {}
    restore_optimiser(optimiser, names, {})
    assert not optimiser.state
