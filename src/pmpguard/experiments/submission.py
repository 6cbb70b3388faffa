"""Rows that someone hands in: whether their form holds, and whether a run gives them again.

A submission is a JSONL file of rows as `pmpguard table` writes them. A row carries its resolved settings,
their fingerprint and the hash of its noise file; `noise_files.json` lists those of the protocol.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pmpguard.config import from_dict
from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.evaluation.recall import recall_names
from pmpguard.experiments.rows import ResultRow, line_digest, read_rows, row_fingerprint
from pmpguard.experiments.run import (
    SCENES,
    ExperimentConfig,
    deciding_settings,
    resolve_experiment,
    run_experiment,
)

SEEDS = (0, 1, 2)
TOLERANCE = 1.0  # points of mR; two runs of one setting on a GPU differ by up to 0.6
SHARES = ("detection_auroc", "detection_estimated_rate", "detection_residual_rate", "effective_rate")


@dataclass(frozen=True)
class CheckReport:
    """What is wrong with a file of rows, what is worth knowing, and how a run compared."""

    rows: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return int(bool(self.problems))

    def as_text(self) -> str:
        told = [*self.problems, *(f"note: {note}" for note in self.notes)]
        verdict = f"{len(self.problems)} problems" if self.problems else "in order"
        return "\n".join([*told, f"{self.rows} rows: {verdict}"])


def check_submission(
    path: Path, rerun: int | None = None, dataset: str | None = None, images: Path | None = None,
    work: Path = Path("runs"),
) -> CheckReport:  # fmt: skip
    """Verify the rows of a file and, with `rerun`, train the row of that number again and compare."""
    rows = read_rows(path)
    if not rows:
        raise DataError(f"{path}: no rows in it", fix="give the JSONL file that `pmpguard table` wrote")
    problems = [
        f"{path} row {number}: {what}" for number, row in enumerate(rows, 1) for what in row_problems(row)
    ]
    places = Counter((*_line_of(row), row.seed) for row in rows)
    problems += [f"{path}: {_named(place)} stands there {count} times" for place, count in places.items()
                 if count > 1]  # fmt: skip
    notes = [
        f"{_named((*line, ', '.join(map(str, seeds))))}: the protocol asks for 0, 1 and 2"
        for line, seeds in _seeds(rows).items()
        if seeds != list(SEEDS)
    ]
    if rerun is not None:
        if not 1 <= rerun <= len(rows):
            raise ConfigError(f"rerun: there is no row {rerun}", fix=f"give 1 to {len(rows)}")
        told = compare(rows[rerun - 1], run_again(rows[rerun - 1], dataset, images, work))
        problems += [f"{path} row {rerun}: {what}" for what in told.problems]
        notes += told.notes
    return CheckReport(len(rows), tuple(problems), tuple(notes))


def row_problems(row: ResultRow) -> list[str]:
    """Everything about one row that does not hold together."""
    return [*_settings_problems(row), *_noise_problems(row), *_metric_problems(row)]


def _settings_problems(row: ResultRow) -> list[str]:
    found = []
    if row.settings_known != "all":
        found.append("not every setting is known (settings_known is not 'all')")
    if row.fingerprint != row_fingerprint(row.method, row.settings):
        found.append("fingerprint is not that of its name and settings")
    try:
        config = row_config(row)
    except PmpguardError as error:
        return [*found, f"settings: {error.message}"]
    changed = differing(row.settings, deciding_settings(resolve_experiment(config)))
    if changed:
        found.append(f"settings are not resolved, or not by this version: {', '.join(changed[:5])}")
    model, noise = config.train.model, config.noise
    said = {
        "seed": (row.seed, config.train.seed), "seed of the noise": (row.seed, noise.seed),
        "rate": (row.rate, noise.rate), "level": (row.level, noise.level),
        "encoder": (row.encoder, f"{model.vision}+{model.text}"),
    }  # fmt: skip
    found += [
        f"{name} is {own!r}, its settings say {set_!r}" for name, (own, set_) in said.items() if own != set_
    ]
    found += [f"{name} is missing" for name in ("commit", "hardware") if not getattr(row, name)]
    return found


def row_config(row: ResultRow, dataset: str | None = None, images: Path | None = None) -> ExperimentConfig:
    """The experiment a row is of, on the dataset at hand."""
    config = from_dict(ExperimentConfig, row.settings, where="settings")
    if config.noise.file is not None:
        raise ConfigError("noise.file: only its name is on record", fix="hand in rows with drawn noise")
    return replace(config, dataset=dataset or config.dataset, images=images)


def differing(given: Any, resolved: Any, where: str = "") -> list[str]:
    """Names of settings of which two nested mappings do not say the same.

    >>> differing({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3, "d": 4}})
    ['b.c', 'b.d']
    """
    if not isinstance(given, dict) or not isinstance(resolved, dict):
        return [] if given == resolved else [where]
    names = dict.fromkeys([*given, *resolved])
    missing = object()
    return [
        place
        for name in names
        for place in differing(
            given.get(name, missing), resolved.get(name, missing), f"{where}.{name}".lstrip(".")
        )
    ]


def _noise_problems(row: ResultRow) -> list[str]:
    if not row.rate or row.dataset.startswith(SCENES):  # synthetic scenes are drawn, with their noise
        return []
    if not row.noise_sha256:
        return ["noise_sha256 is missing: the hash of the run's noise file"]
    listed = protocol_noise().get(row.noise_sha256)
    if listed is None:
        return [f"noise_sha256 {row.noise_sha256[:12]}… is of no noise file of the protocol"]
    own = noise_place(row)
    return [] if listed == own else [f"noise_sha256 is of {_named(listed)}, the row says {_named(own)}"]


def noise_place(row: ResultRow) -> tuple[str, str, float, int]:
    """Which noise of the protocol a row is of: dataset, level, rate and seed."""
    dataset = f"{row.dataset}, one caption" if row.settings.get("one_caption") else row.dataset
    return dataset, row.level, row.rate, row.seed


@cache
def protocol_noise() -> dict[str, tuple[str, str, float, int]]:
    """Hash of each noise file of the protocol -> dataset, level, rate and seed."""
    text = resources.files("pmpguard.experiments").joinpath("noise_files.json").read_text(encoding="utf-8")
    return {
        file["sha256"]["noise.json"]: (dataset, file["level"], file["rate"], file["seed"])
        for dataset, each in json.loads(text).items()
        for file in each["files"]
    }


def _metric_problems(row: ResultRow) -> list[str]:
    names = recall_names()
    missing = [name for name in names if name not in row.metrics]
    if missing:
        return [f"{', '.join(missing)} missing"]
    found = []
    recalls = [row.metrics[name] for name in names[:-1]]
    for name, value in zip(names, [*recalls, row.metrics["mr"]], strict=True):
        if not 0 <= value <= 100:
            found.append(f"{name} is {value:g}, not a percentage")
    mean = sum(recalls) / len(recalls)
    if abs(mean - row.metrics["mr"]) > 1e-6:
        found.append(f"mr is {row.metrics['mr']:.4f}, the mean of its recalls {mean:.4f}")
    for way in (recalls[:3], recalls[3:]):
        if sorted(way) != way:
            found.append("a recall falls as K grows")
    found += [
        f"{name} is {row.metrics[name]:g}, not a share"
        for name in SHARES
        if not 0 <= row.metrics.get(name, 0) <= 1
    ]
    if row.selected_on != "val":
        found.append(f"selected_on is {row.selected_on!r}: models are selected on val")
    return found


def run_again(row: ResultRow, dataset: str | None, images: Path | None, work: Path) -> ResultRow:
    """The row that a run with the same settings gives here."""
    config = row_config(row, dataset, images)
    return run_experiment(config, work / f"again-{row.fingerprint}").row


def compare(given: ResultRow, again: ResultRow, tolerance: float = TOLERANCE) -> CheckReport:
    """Whether a run gave a row again: the same noise, and mR within `tolerance` points."""
    own, found = given.metrics["mr"], again.metrics["mr"]
    told = f"mR {found:.2f}, the row says {own:.2f}"
    problems = [] if abs(own - found) <= tolerance else [f"run again: {told}; more than {tolerance:g} apart"]
    if given.noise_sha256 and given.noise_sha256 != again.noise_sha256:
        problems.append("run again: other noise, so another dataset or version of it")
    return CheckReport(1, tuple(problems), (f"run again: {told} (tolerance {tolerance:g})",))


def _line_of(row: ResultRow) -> tuple[str, str, float, str, str, str]:
    captions = "one caption" if row.settings.get("one_caption") else "all captions"
    settings = f"settings {line_digest(row)[:8]}"
    return row.dataset, row.level, row.rate, f"{row.method}, {row.encoder}", captions, settings


def _seeds(rows: Sequence[ResultRow]) -> dict[tuple[str, str, float, str, str, str], list[int]]:
    found: dict[tuple[str, str, float, str, str, str], list[int]] = {}
    for row in rows:
        found.setdefault(_line_of(row), []).append(row.seed)
    return {line: sorted(seeds) for line, seeds in found.items()}


def _named(place: tuple[Any, ...]) -> str:
    dataset, level, rate, *more, seed = place
    return ", ".join([dataset, f"{rate:.0%} at {level} level", *map(str, more), f"seed {seed}"])
