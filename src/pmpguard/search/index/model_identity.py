"""Which model made an embedding or an index: a fingerprint of the files that decide what it computes."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pmpguard.config import fingerprint
from pmpguard.errors import ModelError
from pmpguard.files import MANIFEST, atomic_directory, read_json, recover_directory, sha256_file
from pmpguard.models.clip_folder import TOKENIZER_FILES, is_hugging_face, model_summary

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
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no model here", fix="give a model directory, such as RUN/model")
    stored = read_json(folder / "config.json")
    if not (folder / MANIFEST).is_file() and not is_hugging_face(stored):
        raise ModelError(f"{folder}: no model here", fix="give a model directory, such as RUN/model")
    hashes = file_hashes(folder)
    missing = [name for name in DECISIVE if name not in hashes]
    if missing:
        raise ModelError(f"{folder}: no {missing[0]} that is listed", fix="restore it from a copy")
    name, dim = model_summary(stored)
    return ModelIdentity(fingerprint({name: hashes[name] for name in DECISIVE}), name, dim)


def file_hashes(folder: Path) -> dict[str, str]:
    """The hashes a model's manifest lists; of a folder from elsewhere, those of the files that decide."""
    hashes = read_json(folder / MANIFEST).get("sha256", {}) if (folder / MANIFEST).is_file() else {}
    if is_hugging_face(read_json(folder / "config.json")):
        kept = (*DECISIVE, *TOKENIZER_FILES, "preprocessor_config.json")
        hashes |= {
            name: sha256_file(folder / name)
            for name in dict.fromkeys(kept)
            if name not in hashes and (folder / name).is_file()
        }
    return dict(hashes)


def link_or_copy(source: Path, target: Path) -> None:
    """The same file under a second name; a copy where the file system cannot link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def keep_model(source: Path, target: Path) -> None:
    """Make `target` the same model as `source`, in one step; weights are linked where possible."""
    with atomic_directory(target) as folder:
        for name in file_hashes(source):
            link_or_copy(source / name, folder / name)
