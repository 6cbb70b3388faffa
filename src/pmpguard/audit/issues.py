"""What an audit leaves on disk for machines: `issues.parquet` and `summary.json`.

One row of `issues.parquet` for every judged pair, the most suspicious first, and for unreadable ones. Of each
kind of issue (`ISSUE_TYPES`) it has a score in [0, 1], low where it is bad, and a flag.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pmpguard.audit.row_list import blocks, evidence_names, in_order
from pmpguard.audit.rows import ISSUE_TYPES, AuditRow, AuditSummary, Proposal, WordVerdict
from pmpguard.config import from_dict, to_dict
from pmpguard.data.parquet_bounds import column_names, read_bounded
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import atomic_output, read_json, write_json

MISMATCHED = "mismatched"  # the kind of issue that `flag` and `p_match` tell of
LONG = ("words", "evidence")  # columns
ROWS_AT_ONCE = 2_000
ISSUES, SUMMARY, PAIRS = "issues.parquet", "summary.json", "pairs.parquet"
WORD = pa.struct(
    [
        ("start", pa.int32()),
        ("stop", pa.int32()),
        ("support", pa.float32()),
        ("wrong", pa.bool_()),
        ("regions", pa.list_(pa.float32())),
    ]
)
PROPOSAL = pa.struct(
    [
        ("caption", pa.string()),
        ("p_match", pa.float64()),
        ("source_pair", pa.string()),
        ("words", pa.list_(WORD)),
    ]
)


def write_issues(path: Path, rows: Sequence[AuditRow]) -> None:
    """Write the rows in order of their ranks, block by block, in one step."""
    ordered, names = in_order(rows), evidence_names(rows)
    with atomic_output(path) as stream, contextlib.ExitStack() as stack:
        writer = None
        for block in blocks(ordered):
            table = issues_table(block, names)
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(stream, table.schema, compression="zstd"))
            writer.write_table(table)


def issues_table(rows: Sequence[AuditRow], names: Sequence[str] | None = None) -> pa.Table:
    """The rows in order of their ranks; `names` are those of the evidence, where rows are but a part."""
    if names is None:
        every = evidence_names(rows)
        return pa.concat_tables([issues_table(block, every) for block in blocks(in_order(rows))])
    ordered = rows
    evidence = pa.struct([(name, pa.float64()) for name in names or ["score"]])  # parquet needs a field
    columns = {
        "pair_id": pa.array([row.pair_id for row in ordered], pa.string()),
        "image": pa.array([row.image for row in ordered], pa.string()),
        "caption": pa.array([row.caption for row in ordered], pa.string()),
        "split": pa.array([row.split for row in ordered], pa.string()),
        "label": pa.array([row.label for row in ordered], pa.string()),
        "p_match": pa.array([row.p_match for row in ordered], pa.float64(), from_pandas=True),
        "flag": pa.array([row.flag for row in ordered], pa.bool_()),
        "rank": pa.array([row.rank for row in ordered], pa.int64()),
        "evidence": pa.array([dict(row.evidence) for row in ordered], evidence),
        "words": pa.array([_words(row.words) for row in ordered], pa.list_(WORD)),
        "grid": pa.array([row.grid for row in ordered], pa.list_(pa.int32(), 2)),
        "proposals": pa.array([_proposals(row) for row in ordered], pa.list_(PROPOSAL)),
    }
    for kind in ISSUE_TYPES:
        scores = [row.issue_scores.get(kind) for row in ordered]
        flags = [
            None if score is None else kind in row.issues for score, row in zip(scores, ordered, strict=True)
        ]
        columns |= {
            f"{kind}_score": pa.array(scores, pa.float64()),
            f"is_{kind}": pa.array(flags, pa.bool_()),
        }
    columns["issue_notes"] = pa.array([row.issue_notes for row in ordered], pa.string())
    columns["shifted_from"] = pa.array([row.shifted_from for row in ordered], pa.string())
    return pa.table(columns)


def select_issues(table: pa.Table, kind: str) -> pa.Table:
    """The pairs of `issues_table` with one kind of issue, the worst first."""
    if kind == MISMATCHED:
        return table.filter(table["flag"])
    if kind not in ISSUE_TYPES:
        raise ConfigError(f"issue {kind!r} is unknown", fix=f"one of {', '.join((MISMATCHED, *ISSUE_TYPES))}")
    return table.filter(table[f"is_{kind}"]).sort_by([(f"{kind}_score", "ascending"), ("rank", "ascending")])


def issue_summary(summary: AuditSummary) -> pa.Table:
    """How many pairs have each kind of issue, and their share; null where it was not looked for."""
    counts = {MISMATCHED: summary.flagged, **{kind: summary.issues.get(kind) for kind in ISSUE_TYPES}}
    shares = [None if count is None else count / max(summary.pairs, 1) for count in counts.values()]
    return pa.table(
        {
            "type": pa.array(list(counts), pa.string()),
            "count": pa.array(list(counts.values()), pa.int64()),
            "share": pa.array(shares, pa.float64()),
        }
    )


def _words(words: Sequence[WordVerdict]) -> list[dict[str, Any]]:
    return [
        {"start": word.start, "stop": word.stop, "support": word.support, "wrong": word.wrong,
         "regions": word.regions}
        for word in words
    ]  # fmt: skip


def _proposals(row: AuditRow) -> list[dict[str, Any]]:
    return [
        {"caption": one.caption, "p_match": one.p_match, "source_pair": one.source_pair,
         "words": _words(one.words)}
        for one in row.proposals
    ]  # fmt: skip


def read_issues(path: Path) -> list[AuditRow]:
    """The rows of an audit, the most suspicious first."""
    return list(iter_issues(path))


def iter_issues(path: Path, *, brief: bool = False) -> Iterator[AuditRow]:
    """The same one by one; `brief` leaves out words and evidence, which take most of the space."""
    if not path.is_file():
        raise DataError(f"{path}: file not found", fix="give the folder that `pmpguard audit` wrote")
    names = [name for name in column_names(path) if not (brief and name in LONG)]
    table = read_bounded(path, names, fix="run the audit again")
    try:
        for batch in table.to_batches(ROWS_AT_ONCE):
            yield from map(_row, batch.to_pylist())
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not the issues of an audit ({error})", fix="run the audit again") from error


def _row(record: dict[str, Any]) -> AuditRow:
    return AuditRow(
        **{name: record[name] for name in ("pair_id", "image", "caption", "split", "label")},
        p_match=math.nan if record["p_match"] is None else record["p_match"],
        flag=record["flag"],
        rank=record["rank"],
        evidence={name: value for name, value in record.get("evidence", {}).items() if value is not None},
        words=_read_words(record.get("words", ())),
        grid=(record["grid"][0], record["grid"][1]),
        proposals=tuple(
            Proposal(one["caption"], one["p_match"], one["source_pair"], _read_words(one["words"]))
            for one in record["proposals"]
        ),
        issue_scores={
            kind: record[f"{kind}_score"] for kind in ISSUE_TYPES if record[f"{kind}_score"] is not None
        },
        issues=tuple(kind for kind in ISSUE_TYPES if record[f"is_{kind}"]),
        issue_notes=record["issue_notes"],
        shifted_from=record["shifted_from"],
    )


def _read_words(records: Sequence[dict[str, Any]]) -> tuple[WordVerdict, ...]:
    return tuple(
        WordVerdict(word["start"], word["stop"], word["support"], word["wrong"], tuple(word["regions"]))
        for word in records
    )


def write_summary(path: Path, summary: AuditSummary) -> None:
    write_json(path, to_dict(summary))


def read_summary(path: Path) -> AuditSummary:
    if not path.is_file():
        raise DataError(
            f"{path}: file not found", fix="give the folder of a finished audit, or run the audit again"
        )
    return from_dict(AuditSummary, read_json(path), str(path))
