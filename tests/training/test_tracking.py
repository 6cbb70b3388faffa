"""metrics.jsonl: one object per line, cut back to the checkpoint when a run is resumed."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pmpguard.training.tracking import Tracker, current_commit, environment, write_environment


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    with Tracker(tmp_path) as tracker:
        tracker.log("step", 10, {"loss": 1.5})
        saved = tracker.synced_bytes()
        tracker.log("step", 20, {"loss": 1.0})
    with Tracker(tmp_path, keep_bytes=saved) as tracker:
        assert tracker.synced_bytes() == saved
        tracker.log("step", 20, {"loss": 0.5})
    assert lines(tmp_path) == [
        {"kind": "step", "step": 10, "loss": 1.5},
        {"kind": "step", "step": 20, "loss": 0.5},
    ]


def test_a_fresh_run_does_not_append_to_old_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("old\n")
    with Tracker(tmp_path) as tracker:
        tracker.log("step", 1, {"loss": 2.0})
    assert lines(tmp_path) == [{"kind": "step", "step": 1, "loss": 2.0}]


def test_a_lost_file_is_begun_again_instead_of_padded(tmp_path: Path) -> None:
    with Tracker(tmp_path, keep_bytes=500) as tracker:
        tracker.log("step", 1, {"loss": 2.0})
    assert lines(tmp_path) == [{"kind": "step", "step": 1, "loss": 2.0}]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with Tracker(tmp_path / "run", active=False) as tracker:
        tracker.log("step", 1, {"loss": 2.0})
        assert tracker.synced_bytes() == 0
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_the_numbers_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []

    purged: list[int | None] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            assert folder == str(tmp_path / "tensorboard")
            purged.append(purge_step)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0, 0))

    stand_in = types.ModuleType("torch.utils.tensorboard")
    vars(stand_in)["SummaryWriter"] = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    with Tracker(tmp_path) as tracker:
        tracker.log("step", 7, {"loss": 1.5, "note": "text"})
    assert written == [("step/loss", 1.5, 7), ("closed", 0, 0)]
    with Tracker(tmp_path, step=6):  # resumed after step 6: what stood at 7 is hidden
        pass
    assert purged == [None, 7]


def test_tensorboard_reads_back_what_a_run_wrote(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Tracker(tmp_path) as tracker:
        tracker.log("step", 7, {"loss": 1.5, "note": "text"})
        tracker.log("validation", 7, {"mr": 20.0})
    read = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {
        name: [(each.step, each.value) for each in read.Scalars(name)] for name in read.Tags()["scalars"]
    }
    assert found == {"step/loss": [(7, 1.5)], "validation/mr": [(7, 20.0)]}


def test_the_environment_names_versions_hardware_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMPGUARD_COMMIT", "abc123")
    assert current_commit() == "abc123"
    write_environment(tmp_path, "cpu")
    stored = json.loads((tmp_path / "environment.json").read_text())
    assert stored["commit"] == "abc123" and "threads" in stored["hardware"]
    assert set(stored) == set(environment())
