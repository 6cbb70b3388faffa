"""`pmpguard push`: a model on the Hugging Face Hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pmpguard
from pmpguard.errors import DataError


@dataclass(frozen=True)
class Pushed:
    """Where a model is now."""

    repository: str
    commit: str

    def as_text(self) -> str:
        name = f"hub:{self.repository}"
        return f"{self.commit}\nload it with pmpguard.load({name!r}) or --model {name}"


def push(model: Path, repository: str, results: Path | None = None, private: bool = False) -> Pushed:
    """Upload a model to the Hugging Face Hub, with a card; `hf auth login` or HF_TOKEN says who you are.

    Args:
        model: a model directory, or the folder of a CLIP.
        repository: where to, as org/name; it is made if it is not there.
        results: a file with what `pmpguard evaluate --json` printed of this model, or rows of results, which
            the card lists.
        private: make the repository private, if it is new.
    """
    from pmpguard.models.hub import push_to_hub

    rows = [] if results is None else read_results(results)
    loaded = pmpguard.load(model)
    return Pushed(repository, push_to_hub(loaded, repository, results=rows, private=private or None))


def read_results(path: Path) -> list[dict[str, Any]]:
    """One JSON object, or one on each line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})", fix="give one object on each line") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: holds no results", fix="give one JSON object on each line")
    return rows
