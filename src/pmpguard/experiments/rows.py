"""Result rows: one JSON line per finished run, safe to append to while being killed, and their summaries."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pmpguard.config import fingerprint, from_dict, to_dict
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import full_disk_named, make_folder, sync
from pmpguard.posix import lock

# "given": only those that were given to the run are on record, not the method's own defaults of its day.
SettingsKnown = Literal["all", "given"]


@dataclass(frozen=True)
class ResultRow:
    """What one run achieved, and everything needed to say how."""

    dataset: str
    method: str
    level: str  # of the noise: "caption" or "image"
    rate: float  # requested mismatch rate
    seed: int
    encoder: str
    selected_on: str  # the split that chose the epoch
    metrics: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)  # everything that decided the run
    settings_known: SettingsKnown = "all"
    fingerprint: str = ""  # of the row's name and its settings
    noise_sha256: str = ""  # of the run's noise file; the protocol lists those of its datasets
    commit: str = ""
    hardware: str = ""
    seconds: float = 0.0
    time: str = ""


@dataclass(frozen=True)
class Statistic:
    """Mean over seeds, and the sample deviation where there are at least two."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Summary:
    """All seeds of one method in one setting."""

    dataset: str
    encoder: str
    level: str
    rate: float
    method: str
    seeds: tuple[int, ...]
    metrics: dict[str, Statistic]


def row_fingerprint(name: str, settings: dict[str, Any]) -> str:
    """Identifies a run by the name of its line and its settings."""
    return fingerprint([name, settings])


def append_row(path: Path, row: ResultRow) -> None:
    """Add one line and sync it to disk; a line that a killed writer left half-written is removed first."""
    make_folder(path.parent)
    bad = [name for name, value in row.metrics.items() if not math.isfinite(value)]
    if bad:
        raise DataError(f"{path}: metric {bad[0]!r} of {row.method} is {row.metrics[bad[0]]}, not a number")
    line = json.dumps(to_dict(row), ensure_ascii=False, allow_nan=False) + "\n"
    with full_disk_named(path), path.open("ab+") as stream:
        lock(stream.fileno(), wait=True)
        stream.seek(0)
        whole, _, torn = stream.read().rpartition(b"\n")
        if torn:
            if _is_json(torn):  # whole, only its line end is missing
                line = "\n" + line
            else:
                stream.truncate(len(whole) + 1 if whole else 0)
        stream.seek(0, os.SEEK_END)
        stream.write(line.encode("utf-8"))
        stream.flush()
        os.fsync(stream.fileno())
    sync(path.parent)


def read_rows(path: Path) -> list[ResultRow]:
    """All rows of a file; a half-written last line is ignored, any other bad line is an error."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise DataError(f"{path}: file not found", fix="run the table first") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (number == len(lines) and not _is_json(line)):
            continue
        try:
            stored = json.loads(line)
            json.dumps(stored, ensure_ascii=False).encode()  # half a character could not be written again
            rows.append(from_dict(ResultRow, stored, where=f"{path} line {number}"))
        except (ValueError, RecursionError, ConfigError) as error:
            raise DataError(
                f"{path} line {number}: not a result row ({error})", fix="remove the line"
            ) from error
    return rows


def line_digest(row: ResultRow) -> str:
    """Identifies the settings of a row but for its seeds: what all rows of one line share."""
    parts = {name: {key: value for key, value in row.settings.get(name, {}).items() if key != "seed"}
             for name in ("train", "noise")}  # fmt: skip
    return fingerprint(row.settings | parts)


def lines_of(rows: Iterable[ResultRow]) -> list[list[ResultRow]]:
    """The rows of each line, one per seed, in order of first appearance; of a seed that ran twice the later.

    A line has one dataset, encoder, noise, name and settings. Where not every setting of a row is known, it
    stands with the first line of its name that contradicts none of those that are.
    """
    groups: dict[tuple[Any, ...], dict[int, ResultRow]] = {}
    rows = list(rows)
    whole = {(*_place(row), line_digest(row)): row for row in rows if row.settings_known == "all"}
    for row in rows:
        place = _place(row)
        key = (*place, line_digest(row))
        if row.settings_known != "all":
            alike = (name for name, each in whole.items() if _agree(row.settings, each.settings))
            key = next((name for name in alike if name[:-1] == place), key)
        groups.setdefault(key, {})[row.seed] = row
    return [[by_seed[seed] for seed in sorted(by_seed)] for by_seed in groups.values()]


def summarise(rows: Iterable[ResultRow]) -> list[Summary]:
    """Means and deviations over the seeds of each line."""
    return [
        Summary(*_place(line[0]), tuple(row.seed for row in line), over_seeds(line))
        for line in lines_of(rows)
    ]


def over_seeds(rows: Iterable[ResultRow]) -> dict[str, Statistic]:
    """Mean and deviation of every metric over the runs that have it."""
    metrics = [{**filtered(row.metrics), **row.metrics} for row in rows]
    result = {}
    for name in dict.fromkeys(name for values in metrics for name in values):
        values = [run[name] for run in metrics if name in run]
        std = statistics.stdev(values) if len(values) > 1 else None
        result[name] = Statistic(statistics.fmean(values), std, len(values))
    return result


def filtered(metrics: dict[str, float]) -> dict[str, float]:
    """What a run's flags leave and cost: mismatched pairs among the unflagged, and right pairs flagged.

    Both follow from how many pairs are wrong, how many are flagged, and F1, also for rows that say neither.

    >>> found = {"true_rate": 0.4, "flagged_rate": 0.5, "f1": 2 * 0.38 / 0.9}  # 0.38 are both
    >>> told = filtered({f"detection_{name}": value for name, value in found.items()})
    >>> {name: round(value, 6) for name, value in told.items()}
    {'detection_residual_rate': 0.04, 'detection_right_flagged_rate': 0.2}
    """
    wrong, flagged, f1 = (metrics.get(f"detection_{name}") for name in ("true_rate", "flagged_rate", "f1"))
    if wrong is None or flagged is None or f1 is None or flagged == 1:
        return {}
    both = f1 * (flagged + wrong) / 2
    return {
        "detection_residual_rate": max(0.0, (wrong - both) / (1 - flagged)),
        "detection_right_flagged_rate": max(0.0, (flagged - both) / (1 - wrong)),
    }


def _place(row: ResultRow) -> tuple[str, str, str, float, str]:
    return row.dataset, row.encoder, row.level, row.rate, row.method


def _agree(known: Any, other: Any) -> bool:
    """Whether settings say the same of all that both say; seeds are no matter.

    >>> _agree({"a": 1, "b": {"c": 2, "seed": 1}}, {"b": {"c": 2, "seed": 0}, "d": 3})
    True
    """
    if not isinstance(known, dict) or not isinstance(other, dict):
        return bool(known == other)
    return all(_agree(known[name], other[name]) for name in known.keys() & other.keys() - {"seed"})


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
