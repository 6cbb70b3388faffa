"""Noise files: a corruption as a small JSON file that fits one dataset only.

The file names the rows whose captions were replaced and the rows the captions came from (or the captions
themselves where they were newly written), with seed, level, mode, rates and the clean dataset's fingerprint.
Each field has its own hash, so damage is found and named. The same corruption always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from pmpguard.data.pairs import PairTable
from pmpguard.errors import DataError, PmpguardError
from pmpguard.files import read_json, write_atomic
from pmpguard.noise.imported import is_mismatched
from pmpguard.noise.inject import Corruption, check_rate, move_captions, write_captions

FORMAT = "pmpguard-noise"
VERSION = 1
FIELDS: dict[str, type | tuple[type, ...]] = {
    "format": str,
    "version": int,
    "dataset": str,
    "fingerprint": str,
    "pairs": int,
    "split": str,
    "level": str,
    "mode": str,
    "seed": int,
    "requested_rate": (int, float),
    "effective_rate": (int, float),
    "over_threshold": int,
    "rows": list,
    "source_rows": list,
    "captions": list,
}
MAKE_AGAIN = "make the noise file again with `pmpguard corrupt`"


def save_manifest(corruption: Corruption, path: Path) -> None:
    """Write the noise file in one step."""
    write_atomic(path, manifest_text(corruption))


def manifest_text(corruption: Corruption) -> str:
    """The noise file: JSON, one field per line."""
    sources = corruption.source_rows
    rows = np.flatnonzero(sources != np.arange(len(sources)))
    written = sources[rows] < 0
    fields: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "dataset": corruption.table.name,
        "fingerprint": corruption.fingerprint,
        "pairs": len(sources),
        "split": corruption.split,
        "level": corruption.level,
        "mode": corruption.mode,
        "seed": corruption.seed,
        "requested_rate": corruption.requested_rate,
        "effective_rate": corruption.effective_rate,
        "over_threshold": corruption.over_threshold,
        "rows": rows.tolist(),
        "source_rows": sources[rows[~written]].tolist(),
        "captions": corruption.table.take(rows[written]).captions,
    }
    fields["sha256"] = {name: _digest(value) for name, value in fields.items()}
    lines = [f"  {json.dumps(name)}: {_compact(value)}" for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def apply_manifest(table: PairTable, path: Path) -> Corruption:
    """Repeat the corruption that `path` describes; any dataset but the one it was made for is refused."""
    fields = load_manifest(path)
    if fields["fingerprint"] != table.fingerprint:
        raise DataError(
            f"{path} was made for dataset {fields['dataset']!r} with fingerprint {fields['fingerprint']}, "
            f"but this is {table.name!r} with fingerprint {table.fingerprint}",
            fix=f"use that dataset unchanged, or {MAKE_AGAIN}",
        )
    rows = _row_numbers(fields, "rows", len(table), path)
    if len(rows) > 1 and not (np.diff(rows) > 0).all():
        raise DataError(f"{path}: field 'rows' is not in rising order", fix=MAKE_AGAIN)
    settings: dict[str, Any] = {
        "rate": float(fields["requested_rate"]),
        "seed": fields["seed"],
        "split": fields["split"],
    }
    if fields["mode"] == "partial":
        captions = fields["captions"]
        if len(captions) != len(rows) or not all(isinstance(caption, str) for caption in captions):
            raise DataError(f"{path}: field 'captions' does not hold one text per row", fix=MAKE_AGAIN)
        return write_captions(table, rows, captions, **settings)
    sources = _row_numbers(fields, "source_rows", len(table), path)
    if len(sources) != len(rows):
        raise DataError(f"{path}: field 'source_rows' does not hold one row per row", fix=MAKE_AGAIN)
    source_rows = np.arange(len(table))
    source_rows[rows] = sources
    return move_captions(
        table,
        source_rows,
        level=fields["level"],
        mode=fields["mode"],
        over_threshold=fields["over_threshold"],
        is_noisy=is_mismatched(table, source_rows, fields["split"]) if fields["mode"] == "imported" else None,
        **settings,
    )


def load_manifest(path: Path) -> dict[str, Any]:
    """Read a noise file and check every field's presence, type and hash."""
    try:
        fields = read_json(path)
    except PmpguardError as error:
        raise DataError(f"{error.message} (as a noise file)", fix=MAKE_AGAIN) from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise DataError(f'{path}: not a noise file (no "format": "{FORMAT}")', fix=MAKE_AGAIN)
    if fields.get("version") != VERSION:
        raise DataError(
            f"{path}: field 'version' is {fields.get('version')!r}, this pmpguard reads {VERSION}",
            fix=f"use the pmpguard that wrote it, or {MAKE_AGAIN}",
        )
    digests = fields.get("sha256")
    if not isinstance(digests, dict):
        raise DataError(f"{path}: field 'sha256' is missing or damaged", fix=MAKE_AGAIN)
    for name, kind in FIELDS.items():
        if name not in fields:
            raise DataError(f"{path}: field {name!r} is missing", fix=MAKE_AGAIN)
        if digests.get(name) != _digest(fields[name]) or not isinstance(fields[name], kind):
            raise DataError(f"{path}: field {name!r} is damaged", fix=f"restore the file, or {MAKE_AGAIN}")
    for name in fields.keys() - FIELDS.keys() - {"sha256"}:
        raise DataError(f"{path}: field {name!r} is unknown", fix=MAKE_AGAIN)
    check_rate(fields["requested_rate"])
    return fields


def _row_numbers(fields: dict[str, Any], name: str, count: int, path: Path) -> np.ndarray:
    """A field as int64 row numbers of a table of `count` rows."""
    values = fields[name]
    if not all(type(value) is int and 0 <= value < count for value in values):
        raise DataError(
            f"{path}: field {name!r} holds something that is not a row of the table", fix=MAKE_AGAIN
        )
    return np.array(values, dtype=np.int64)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _digest(value: Any) -> str:
    return hashlib.sha256(_compact(value).encode("utf-8", "surrogatepass")).hexdigest()
