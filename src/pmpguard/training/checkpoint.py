"""Checkpoints: atomic directories of safetensors and JSON that resume a run bit for bit.

`checkpoints/step-N/` holds the method's weights and buffers, its plan of the epoch, the averaged weights, the
best weights so far, AdamW's moments and a state file. Random draws are functions of (seed, step), so no
generator is saved.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from pmpguard.config import first_difference, from_dict
from pmpguard.errors import CheckpointError, PmpguardError
from pmpguard.files import (
    atomic_directory,
    make_folder,
    read_json,
    recover_directory,
    remove_leftovers,
    verify_manifest,
    write_json,
)
from pmpguard.models.checkpoints import read_safetensors

_MOMENTS = ("exp_avg", "exp_avg_sq")
# What `atomic_directory` moves aside while it replaces a checkpoint of the same step.
ANOTHER = "remove that checkpoint to go on from the one before it, or choose another folder"
_REPLACED = ".old-step-"
IDENTITY = "identity.json"


@dataclass(frozen=True)
class RunIdentity:
    """What decides a run: resuming with any of these changed is refused."""

    config: dict[str, Any]
    dataset: str  # fingerprint of the training pairs as published
    validation: str  # fingerprint of the validation pairs
    noise: str  # fingerprint of the corruption, "" for none
    world_size: int
    teacher: str = ""  # fingerprint of the model that teaches, "" for none


@dataclass(frozen=True)
class Position:
    """Where a run stands, between two steps."""

    step: int = 0  # steps done
    begun_epoch: int = -1  # last epoch whose detection has run, -1 for none
    finished_epochs: int = 0  # epochs whose validation has run too
    best_epoch: int = -1
    best_score: float = -1.0
    metrics_bytes: int = 0  # length of metrics.jsonl at this point
    counted: int = 0  # steps summed up since the last line of it


def save_checkpoint(
    run: Path,
    identity: RunIdentity,
    position: Position,
    tensors: dict[str, dict[str, Tensor]],
    keep: int = 2,
) -> Path:
    """Write `checkpoints/step-N`, then drop all but the newest `keep`."""
    folder = run / "checkpoints"
    make_folder(folder)
    remove_leftovers(folder)
    target = folder / f"step-{position.step:08d}"
    try:
        with atomic_directory(target) as directory:
            for name, values in tensors.items():
                save_file(unshared(values), directory / f"{name}.safetensors")
            write_json(directory / "state.json", {"identity": asdict(identity), "position": asdict(position)})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{target} could not be written ({error})",
            fix="free some disk space and run the same command again: it continues from the last checkpoint",
        ) from error
    for old in sorted(folder.glob("step-*"))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def unshared(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU; one that is another's memory under a second name, as a T5's words, is copied."""
    result, known = {}, set()
    for key, value in values.items():
        plain = value.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        result[key] = plain.clone() if place in known else plain
        known.add(place)
    return result


def latest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are passed over."""
    folder = run / "checkpoints"
    for replaced in list(folder.glob(f"{_REPLACED}*")):  # the writer was killed between its two renames
        recover_directory(folder / replaced.name.removeprefix(".old-"))
    for directory in sorted(folder.glob("step-*"), reverse=True):
        try:
            verify_manifest(directory)
        except PmpguardError:
            continue
        return directory
    return None


def write_identity(run: Path, identity: RunIdentity) -> None:
    """Write down whose folder this is: a run may end without a checkpoint."""
    write_json(run / IDENTITY, asdict(identity))


def refuse_foreign(run: Path, identity: RunIdentity, resume: bool = True) -> None:
    """An error if `run` holds another run, or any where none is to be continued; nothing is written.

    A run that has left neither a checkpoint nor a model has nothing to lose.
    """
    checkpoint = latest_checkpoint(run)
    if checkpoint is None and not (run / "model").exists():
        return
    if not resume:
        raise CheckpointError(f"{run} already holds a run", fix="choose another folder, or resume it")
    if checkpoint is not None:
        check_identity(checkpoint, identity)
    elif (run / IDENTITY).is_file():
        refuse_difference(run, read_json(run / IDENTITY), identity)


def check_identity(directory: Path, identity: RunIdentity) -> None:
    """An error if the checkpoint belongs to another run; nothing is written."""
    refuse_difference(directory.parent.parent, read_state(directory)["identity"], identity)


def refuse_difference(run: Path, stored: Any, identity: RunIdentity) -> None:
    before = {"teacher": "", **stored} if isinstance(stored, dict) else {}
    difference = first_difference(before, asdict(identity))
    if difference:
        raise CheckpointError(
            f"{run} cannot be resumed: {difference}",
            fix="use the settings it was started with, or another run folder",
        )


def read_state(directory: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, of the form it is written in."""
    stored = read_json(directory / "state.json")
    parts = [stored.get(name) for name in ("identity", "position")] if isinstance(stored, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(f"{directory}/state.json: damaged", fix=ANOTHER)
    return dict(stored)


def load_checkpoint(directory: Path, identity: RunIdentity) -> tuple[Position, dict[str, dict[str, Tensor]]]:
    """Read a checkpoint after making sure it belongs to this very run."""
    check_identity(directory, identity)
    state = read_state(directory)
    tensors = {path.stem: read_safetensors(path) for path in sorted(directory.glob("*.safetensors"))}
    if "plan" not in tensors:
        raise CheckpointError(f"{directory}: the method's plan is missing", fix=ANOTHER)
    return from_dict(Position, state["position"], where=f"{directory}/state.json"), tensors


def optimiser_tensors(optimiser: torch.optim.AdamW, names: dict[nn.Parameter, str]) -> dict[str, Tensor]:
    """AdamW's moments and step counts by parameter name."""
    found: dict[str, Tensor] = {}
    for parameter, name in names.items():
        state = optimiser.state.get(parameter)
        if state:
            for moment in _MOMENTS:
                found[f"{name}|{moment}"] = state[moment]
            found[f"{name}|step"] = torch.as_tensor(state["step"], dtype=torch.float32)
    return found


def restore_optimiser(
    optimiser: torch.optim.AdamW, names: dict[nn.Parameter, str], tensors: dict[str, Tensor]
) -> None:
    """Put saved moments back."""
    capturable = any(group.get("capturable") for group in optimiser.param_groups)
    for parameter, name in names.items():
        if f"{name}|step" not in tensors:
            continue
        step = tensors[f"{name}|step"]
        optimiser.state[parameter] = {
            "step": step.to(parameter.device) if capturable else step,
            **{moment: tensors[f"{name}|{moment}"].to(parameter.device) for moment in _MOMENTS},
        }
