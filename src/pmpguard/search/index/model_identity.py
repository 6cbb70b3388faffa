"""Which model made an embedding or an index: a fingerprint of the files that decide what it computes."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pmpguard.config import fingerprint
from pmpguard.errors import ModelError
from pmpguard.files import MANIFEST, atomic_directory, read_json, recover_directory

DECISIVE = ("config.json", "model.safetensors", "tokenizer.json")  # the model card may change


@dataclass(frozen=True)
class ModelIdentity:
    """A model without its weights: what to compare before vectors are mixed."""

    fingerprint: str
    name: str
    dim: int

    def require(self, other: ModelIdentity, what: str) -> None:
        """Refuse `what` when it was made by another model."""
        if self.fingerprint != other.fingerprint:
            raise ModelError(
                f"{what} is of model {other.fingerprint} ({other.name}), "
                f"here everything is of {self.fingerprint} ({self.name})",
                fix="vectors of two models cannot be compared: embed again with the same model",
            )


def identify_model(folder: Path) -> ModelIdentity:
    """Read who a model directory is from its manifest and config; the weights are not opened."""
    recover_directory(folder)
    if not (folder / MANIFEST).is_file() or not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no model here", fix="give a model directory, such as RUN/model")
    hashes = read_json(folder / MANIFEST).get("sha256", {})
    missing = [name for name in DECISIVE if name not in hashes]
    if missing:
        raise ModelError(f"{folder / MANIFEST}: {missing[0]} is not listed", fix="restore it from a copy")
    config = read_json(folder / "config.json")["retriever"]
    name = f"{config['vision']} + {config['text']}, ranked by {config['ranking']}"
    return ModelIdentity(fingerprint({name: hashes[name] for name in DECISIVE}), name, int(config["dim"]))


def link_or_copy(source: Path, target: Path) -> None:
    """The same file under a second name; a copy where the file system cannot link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def keep_model(source: Path, target: Path) -> None:
    """Make `target` the same model as `source`, in one step; weights are linked where possible."""
    names = read_json(source / MANIFEST)["sha256"]
    with atomic_directory(target) as folder:
        for name in names:
            link_or_copy(source / name, folder / name)
