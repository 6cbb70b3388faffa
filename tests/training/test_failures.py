"""Runs that are struck: the last whole checkpoint stays, the error says what happened, the run goes on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers import struck_run
from helpers.small_runs import coloured_squares, small_config, training_data
from safetensors.torch import load_file, save_file

from pmpguard.errors import CheckpointError, PmpguardError, TrainingError
from pmpguard.files import write_manifest
from pmpguard.methods.infonce import InfoNce
from pmpguard.methods.method import EncodedBatch
from pmpguard.training.checkpoint import latest_checkpoint
from pmpguard.training.loop import train

TABLE, IMAGES = coloured_squares(copies=3)


class Steep(InfoNce):
    """A finite loss whose gradient is not a number, as that of a root at zero, from the fourth batch on."""

    seen = 0

    def losses(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        Steep.seen += 1
        size = batch.texts.pooled.square().sum()
        root = (size * (Steep.seen <= 3)).sqrt()
        return {name: value + 0 * root for name, value in super().losses(batch).items()}


def test_weights_lost_by_a_gradient_never_become_a_checkpoint(tmp_path: Path) -> None:
    Steep.seen = 0
    config = small_config(method=f"{__name__}:Steep", checkpoint_every=2)
    with pytest.raises(TrainingError, match="the loss or its gradient at step 3 is not finite"):
        train(config, training_data(TABLE, IMAGES), tmp_path)
    kept = latest_checkpoint(tmp_path)
    assert kept is not None and kept.name == "step-00000002"
    assert all(value.isfinite().all() for value in load_file(kept / "method.safetensors").values())


def test_a_checkpoint_of_another_form_is_an_error_of_ours(tmp_path: Path) -> None:
    config, data = small_config(checkpoint_every=2, epochs=1), training_data(TABLE, IMAGES)
    train(config, data, tmp_path)
    kept = latest_checkpoint(tmp_path)
    assert kept is not None
    save_file({"a": torch.zeros(1)}, kept / "method.safetensors")
    write_manifest(kept)
    with pytest.raises(CheckpointError, match=f"{kept.name}: damaged"):
        train(config, data, tmp_path)
    (kept / "method.safetensors").write_bytes(b"no tensors")
    write_manifest(kept)
    with pytest.raises(PmpguardError, match="not a safetensors file"):
        train(config, data, tmp_path)


def test_a_changed_dataset_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    config = small_config(checkpoint_every=2, epochs=1)
    train(config, training_data(TABLE, IMAGES), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    captions = TABLE.captions
    changed = TABLE.with_column("caption", ["another caption", *captions[1:]])
    with pytest.raises(CheckpointError, match="cannot be resumed: dataset"):
        train(config, training_data(changed, IMAGES), tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def struck(run: Path, kind: str, part: float = -1.0, how: str = "") -> tuple[int, str]:
    """Exit code of a run in a child that is struck at that part of its steps, and what its error said."""
    said = run.with_suffix(".said")
    said.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        code = 70
        try:
            code = struck_run.main(run, kind, part, how)
        except BaseException as error:
            said.write_text(str(error))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, said.read_text() if said.is_file() else ""


def weights_and_records(run: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "metrics.jsonl", "config.json")
    kept = [path for name in names for path in run.rglob(name) if "checkpoints" not in path.parts]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in kept}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_a_run_struck_in_every_way_one_after_the_other_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    """Of a teacher and its student, in one process; `make torture` strikes the other kinds of runs so."""
    straight, run = tmp_path / "straight", tmp_path / "struck"
    assert struck(straight, "distilled")[0] == 0
    for number, (how, said) in enumerate(struck_run.HOW.items()):
        code, error = struck(run, "distilled", (number + 0.7) / len(struck_run.HOW), how)
        assert code != 0 and said in error, (how, code, error)
    before = weights_and_records(run)
    code, error = struck(run, "distilled", how="other data")
    assert code == 70 and "cannot be resumed: dataset" in error
    assert weights_and_records(run) == before
    assert struck(run, "distilled")[0] == 0
    ended = weights_and_records(run)
    assert ended == weights_and_records(straight)
    assert sum(name.endswith("model.safetensors") for name in ended) == 3  # teacher's, student's, the better


# ------------------------------------------------------------- two processes, struck at whatever moment

HELPERS = Path(__file__).parents[1] / "helpers"


def launched(run: Path, strikes: Sequence[tuple[float, str]] = ()) -> None:
    """Teacher and student in two processes until both are finished; struck on the way, and started again.

    A strike is a part of their steps and what happens there.
    """
    for part, how in (*strikes, (-1.0, "")):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        script = [str(HELPERS / "struck_run.py"), str(run), "distilled", str(part), how]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [sys.executable, *launcher, *script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (part < 0), done.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_struck_while_one_teaches_the_other_end_as_the_undisturbed_run(tmp_path: Path) -> None:
    """SIGTERM at any moment, then one of the two killed; `make torture` strikes all kinds of runs."""
    draw = random.Random(3)
    launched(tmp_path / "straight")
    launched(tmp_path / "stopped", [(0.6 * draw.random(), "SIGTERM"), (0.6 + 0.4 * draw.random(), "SIGKILL")])
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("straight", "stopped")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    records = [sorted((tmp_path / name).rglob("metrics.jsonl")) for name in ("straight", "stopped")]
    assert [path.read_bytes() for path in records[0]] == [path.read_bytes() for path in records[1]]
    assert len(records[0]) == 2
