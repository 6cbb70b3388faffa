"""The issues of an audit for other tools, and the decisions that come back.

FiftyOne imports a folder of samples, Label Studio a list of tasks and a labelling page; what was decided
there, exported as JSON, is read by `pmpguard clean --decisions`. A CSV opens in any spreadsheet, without
formulas.
Images that are plain files stay where they are; those inside shards or tables are written beside.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

from pmpguard.audit.label_studio import LABELING, task_of
from pmpguard.audit.rows import ISSUE_TYPES, AuditRow
from pmpguard.data.formats.image_folder import place_image
from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import split_reference
from pmpguard.errors import ConfigError
from pmpguard.files import file_name_of, new_directory, write_json
from pmpguard.remote import full_path
from pmpguard.safe_text import spreadsheet_text

Tool = Literal["fiftyone", "label-studio", "csv"]
Pairs = Literal["flagged", "issues", "all"]
LOCAL_FILES = "/data/local-files/?d="  # how Label Studio addresses files of its own machine


def export_issues(
    table: PairTable,
    rows: Sequence[AuditRow],
    out: Path,
    tool: Tool,
    fingerprint: str,
    url: str = LOCAL_FILES,
) -> Path:
    """Write the rows, the most suspicious first, into the new folder `out`; the image folder they name."""
    if tool not in get_args(Tool):
        raise ConfigError(f"tool {tool!r} is unknown", fix=f"one of {', '.join(get_args(Tool))}")
    ordered = sorted(rows, key=lambda row: row.rank)
    with new_directory(out) as folder:
        if tool == "csv":
            (folder / "issues.csv").write_text(issues_csv(ordered), encoding="utf-8")
            return full_path(table.root)
        root, places = _image_files(table, ordered, folder, out)
        if tool == "fiftyone":
            _write_fiftyone(folder, table.name, ordered, root, places)
        else:
            tasks = [task_of(row, url + quote(places[row.image]), fingerprint) for row in ordered]
            write_json(folder / "tasks.json", tasks)
            (folder / "labeling.xml").write_text(LABELING, encoding="utf-8")
    return root


def choose_rows(rows: Sequence[AuditRow], pairs: Pairs) -> list[AuditRow]:
    """The pairs judged wrong, those with any issue, or all."""
    if pairs == "all":
        return list(rows)
    return [row for row in rows if row.flag or (pairs == "issues" and row.issues)]


def _image_files(
    table: PairTable, rows: Sequence[AuditRow], folder: Path, out: Path
) -> tuple[Path, dict[str, str]]:
    """The folder that images are named from, and their names there; stored ones are written out."""
    images = list(dict.fromkeys(row.image for row in rows))
    if all(split_reference(image)[1] is None for image in images):
        return full_path(table.root), {image: image for image in images}
    return out.resolve(), {image: place_image(table, image, folder) for image in images}


# ------------------------------------------------------------------------------------------- spreadsheets


def issues_csv(rows: Sequence[AuditRow]) -> str:
    """One line a pair; no cell is taken for a formula."""
    names = list(dict.fromkeys(name for row in rows for name in row.evidence))
    head = ["rank", "pair_id", "image", "caption", "split", "label", "p_match", "flag"]
    head += ["proposal", "proposal_p_match", "proposal_from", "issues", "notes"]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*head, *names])
    for row in rows:
        best = row.proposals[0] if row.proposals else None
        cells = [row.rank, row.pair_id, row.image, row.caption, row.split, row.label, row.p_match, row.flag]
        cells += ["", "", ""] if best is None else [best.caption, best.p_match, best.source_pair]
        cells += [" ".join(row.issues), row.issue_notes, *(row.evidence.get(name, "") for name in names)]
        writer.writerow(
            [spreadsheet_text(cell) if isinstance(cell, str) else _number(cell) for cell in cells]
        )
    return stream.getvalue()


def _number(value: Any) -> Any:
    return "" if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------- FiftyOne


def _write_fiftyone(
    folder: Path, name: str, rows: Sequence[AuditRow], root: Path, places: Mapping[str, str]
) -> None:
    """A `FiftyOneDataset`: a sample for each pair, its issues as tags."""
    samples = [_sample(row, str(root / places[row.image])) for row in rows]
    write_json(folder / "metadata.json", {"name": file_name_of(name), "media_type": "image", "info": {}})
    write_json(folder / "samples.json", {"samples": samples})


def _sample(row: AuditRow, path: str) -> dict[str, Any]:
    known = None if math.isnan(row.p_match) else row.p_match
    verdict: dict[str, Any] = {"_cls": "Classification", "tags": [], "confidence": known}
    verdict["label"] = "not judged" if known is None else "mismatched" if row.flag else "matching"
    fields = {"pair_id": row.pair_id, "caption": row.caption, "split": row.split, "rank": row.rank}
    fields |= {"p_match": known, "flag": row.flag, "scene_class": row.label or None}
    fields |= {"proposals": [one.caption for one in row.proposals], "issue_notes": row.issue_notes or None}
    fields |= {f"{kind}_score": row.issue_scores.get(kind) for kind in ISSUE_TYPES}
    tags = [*(["mismatched"] if row.flag else []), *row.issues]
    return {"filepath": path, "tags": tags, "metadata": None, **fields, "verdict": verdict}
