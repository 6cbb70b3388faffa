"""Which model made an embedding or an index: a fingerprint of the files that decide what it computes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmpguard.config import fingerprint
from pmpguard.errors import ModelError, damage_named
from pmpguard.files import (
    MANIFEST,
    atomic_directory,
    read_json,
    read_manifest,
    recover_directory,
    sha256_file,
)
from pmpguard.models.clip_folder import (
    TOKENIZER_FILES,
    is_hugging_face,
    model_summary,
    weight_files,
    what_to_give,
)
from pmpguard.models.encoders.pretrained import PREPROCESSORS
from pmpguard.models.hub import DEFAULT, local_folder
from pmpguard.models.model_folder import ENCODERS
from pmpguard.models.vision_folder import is_vision_only, vision_summary

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
    folder = local_folder(folder)
    recover_directory(folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no model here", fix=what_to_give(folder))
    stored = read_json(folder / "config.json")
    if not isinstance(stored, dict):
        raise ModelError(f"{folder}/config.json: no settings of a model", fix="restore it from a copy")
    if not (folder / MANIFEST).is_file() and not is_hugging_face(stored):
        raise ModelError(f"{folder}: no model here", fix=what_to_give(folder))
    hashes = file_hashes(folder)
    names: Sequence[str] = DECISIVE if has_own_tokenizer(stored) else DECISIVE[:-1]
    if is_hugging_face(stored):
        words = ("tokenizer.json",) if "tokenizer.json" in hashes else ("vocab.json", "merges.txt")
        names = ("config.json", *weight_files(folder), *words, "spiece.model", *PREPROCESSORS)
        names = [name for name in names if name in hashes]
    missing = [name for name in names if name not in hashes]
    if missing:
        raise ModelError(f"{folder}: no {missing[0]} that is listed", fix="restore it from a copy")
    decisive = {name: hashes[name] for name in names}
    with damage_named(folder / "config.json", "restore it from a copy", ModelError):
        name, dim = vision_summary(stored) if is_vision_only(stored) else model_summary(stored)
    if ENCODERS in stored:
        name = f"{DEFAULT}: {name}"
    return ModelIdentity(fingerprint(decisive), name, dim)


def has_own_tokenizer(stored: Mapping[str, Any]) -> bool:
    """Whether a model's folder holds a tokenizer: not where it is a head alone, or reads no texts."""
    return not is_vision_only(stored) and ENCODERS not in stored


def file_hashes(folder: Path) -> dict[str, str]:
    """The hashes a model's manifest lists; of a folder from elsewhere, those of the files that decide."""
    hashes = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
    if is_hugging_face(read_json(folder / "config.json")):
        kept = ("config.json", *weight_files(folder), *TOKENIZER_FILES, *PREPROCESSORS)
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
        os.link(source.resolve(), target)  # the Hub's cache holds links
    except OSError:
        shutil.copyfile(source, target)


def keep_model(source: Path, target: Path) -> None:
    """Make `target` the same model as `source`, in one step; weights are linked where possible."""
    source = local_folder(source)
    with atomic_directory(target) as folder:
        for name in file_hashes(source):
            link_or_copy(source / name, folder / name)
