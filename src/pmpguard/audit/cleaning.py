"""The cleaned dataset: what the audit and its reviewer decided, applied to the pairs.

The audited pairs are never changed. A cleaned table is a new one with three more columns: `provenance` says
what became of each pair, `original_caption` what it said before (null where it says the same), `p_match` what
the audit believed (null where it was not judged). Policy "weight" adds `weight`.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from pmpguard.audit.label_studio import decisions_of_tasks
from pmpguard.audit.rows import SURE_ENOUGH, AuditRow, AuditSummary, Proposal
from pmpguard.data.pair_rows import checked_caption
from pmpguard.data.pairs import PairTable
from pmpguard.data.text import normalise_caption
from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.files import read_json, write_atomic
from pmpguard.safe_text import one_line, spreadsheet_text

Policy = Literal["drop", "rematch", "weight"]
ACTIONS = ("keep", "drop", "accept", "edit")
ACTED_ON = {"unreadable", "shifted"}  # of the issues
KEPT, DROPPED, REMATCHED, WEIGHTED = "kept", "dropped", "rematched", "weighted"
NOT_JUDGED, REVIEWED_KEPT, REVIEWED_DROPPED = "not judged", "kept by reviewer", "dropped by reviewer"
MOVED = "moved back"
UNREADABLE = "dropped, cannot be read"
ACCEPTED, EDITED = "proposal accepted by reviewer", "edited by reviewer"


@dataclass(frozen=True)
class Decision:
    """What a reviewer decided about one pair; `caption` replaces its caption under accept and edit."""

    action: str
    caption: str | None = None


@dataclass(frozen=True)
class Change:
    """What happens to one pair. `caption` is None when it is dropped."""

    provenance: str
    caption: str | None
    source_pair: str = ""


@dataclass(frozen=True)
class CleanedPairs:
    """The cleaned table and what became of every pair of the audited one, in its order."""

    table: PairTable
    changes: tuple[Change, ...]

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(change.provenance for change in self.changes))


def read_decisions(path: Path, fingerprint: str, pair_ids: Sequence[str]) -> dict[str, Decision]:
    """The decisions saved from a report's page, or exported from Label Studio; of this dataset only."""
    if not path.is_file():
        raise DataError(f"{path}: file not found", fix="check the path")
    try:
        content = read_json(path)
    except PmpguardError as error:
        raise DataError(error.message, fix="save the decisions again from the report's page") from error
    if isinstance(content, list):
        content = decisions_of_tasks(content, str(path), fingerprint)
    if not isinstance(content, dict) or not isinstance(content.get("decisions"), dict):
        raise DataError(f"{path}: no decisions in it", fix="save them from the report's page")
    if content.get("dataset") != fingerprint:
        raise DataError(
            f"{path}: made for dataset {str(content.get('dataset'))[:16]}, this one is {fingerprint[:16]}",
            fix="use the decisions that were saved from this report's page",
        )
    known = set(pair_ids)
    return {pair: _decision(f"{path}: pair {pair!r}", pair, value, known)
            for pair, value in content["decisions"].items()}  # fmt: skip


def _decision(where: str, pair: str, value: Any, known: set[str]) -> Decision:
    if pair not in known:
        raise DataError(f"{where}: not a pair of this dataset", fix="remove it")
    action = value.get("action") if isinstance(value, dict) else None
    if action not in ACTIONS:
        raise DataError(f"{where}: action is {action!r}", fix=f"one of {', '.join(ACTIONS)}")
    caption = value.get("caption")
    if caption is not None and not isinstance(caption, str):
        raise DataError(f"{where}: caption is not text")
    if caption is not None and action in ("accept", "edit"):
        checked_caption(caption, where)
    if action == "edit" and not normalise_caption(caption or ""):
        raise DataError(f"{where}: edited, but there is no caption", fix="write one, or drop the pair")
    return Decision(action, caption)


def clean_pairs(
    table: PairTable,
    rows: Iterable[AuditRow],
    policy: Policy,
    decisions: Mapping[str, Decision] | None = None,
    *,
    min_probability: float = SURE_ENOUGH,
) -> CleanedPairs:
    """Apply the policy to every pair judged wrong, and decisions to the pairs they are about.

    `rematch` replaces a wrong caption by the best proposal that its image has not got yet, if that is
    `min_probability` sure or more, and else drops the pair. Captions of a shifted run go back to their images
    under `rematch`, and images that no caption is left for are dropped; under `drop` the whole run is. Pairs
    whose image or caption cannot be read are dropped under every policy, since nothing can be trained on
    them. Other pairs that were not judged stay.
    """
    if policy not in get_args(Policy):
        raise ConfigError(f"policy {policy!r} is not known", fix=f"one of {', '.join(get_args(Policy))}")
    if not 0 <= min_probability <= 1:
        raise ConfigError(
            f"min_probability: {min_probability} is not between 0 and 1", fix=f"{SURE_ENOUGH} is usual"
        )
    decided = decisions or {}
    pairs = list(zip(table.column("pair_id"), table.column("image_id"), table.captions, strict=True))
    caption_of = {pair: caption for pair, _, caption in pairs}
    judged = Judged.of(rows, caption_of, decided)
    reviewed = {
        pair: _reviewed(pair, caption, judged.suspected.get(pair), decided[pair])
        for pair, _, caption in pairs
        if pair in decided
    }
    given = {(image, reviewed[pair].caption) for pair, image, _ in pairs if pair in reviewed}
    given |= {
        (image, caption_of[row.shifted_from])
        for pair, image, _ in pairs
        for row in [judged.suspected.get(pair)]
        if row is not None and pair not in reviewed and row.shifted_from in caption_of
    }
    changes = []
    for pair, image, caption in pairs:
        if pair in reviewed:
            changes.append(reviewed[pair])
            continue
        row = judged.suspected.get(pair)
        if policy == "rematch" and row is not None and row.shifted_from in caption_of:
            changes.append(Change(MOVED, caption_of[row.shifted_from], row.shifted_from))
            continue
        if row is None:
            changes.append(_unsuspected(caption, judged.p_match.get(pair), policy))
        else:
            offers = [one for one in row.proposals if (image, one.caption) not in given]
            changes.append(_by_policy(caption, row, policy, offers, min_probability))
        given.add((image, changes[-1].caption))
    return CleanedPairs(_cleaned_table(table, judged.p_match, changes, policy), tuple(changes))


@dataclass(frozen=True)
class Judged:
    """What is kept of an audit's rows: the probabilities of all, and those anything may be done about."""

    p_match: dict[str, float]  # by pair; none where it could not be judged
    suspected: dict[str, AuditRow]

    @classmethod
    def of(cls, rows: Iterable[AuditRow], captions: Mapping[str, str], decided: Container[str]) -> Judged:
        found = cls({}, {})
        for row in rows:
            caption = captions.get(row.pair_id, row.caption)
            if row.caption != caption:
                raise DataError(
                    f"pair {row.pair_id!r}: the audit judged {row.caption!r}, the dataset has {caption!r}",
                    fix="audit the dataset again",
                )
            if not math.isnan(row.p_match):
                found.p_match[row.pair_id] = row.p_match
            acted_on = row.flag or row.shifted_from or not ACTED_ON.isdisjoint(row.issues)
            if acted_on or row.pair_id in decided:
                found.suspected[row.pair_id] = row
        return found


def _unsuspected(caption: str, p_match: float | None, policy: Policy) -> Change:
    if p_match is None:
        return Change(NOT_JUDGED, caption)
    return Change(WEIGHTED if policy == "weight" else KEPT, caption)


def check_informative(
    summary: AuditSummary, policy: Policy, decisions: Mapping[str, Decision] | None
) -> None:
    """Refuse to drop, without anybody's review, what evidence that tells nothing has flagged."""
    if policy == "drop" and not decisions and not summary.informative:
        raise ConfigError(
            f"policy drop: the audit could not tell which pairs are wrong, and flags {summary.flagged:,} of "
            f"{summary.pairs:,}",
            fix="review the report and give --decisions, choose policy weight, or judge with another --model",
        )


def _reviewed(pair: str, caption: str, row: AuditRow | None, decision: Decision) -> Change:
    if decision.action == "drop":
        return Change(REVIEWED_DROPPED, None)
    if decision.action == "keep":
        return Change(REVIEWED_KEPT, caption)
    proposals = row.proposals if row is not None else ()
    if decision.action == "edit":
        return Change(EDITED, normalise_caption(decision.caption or ""))
    chosen = decision.caption or (proposals[0].caption if proposals else "")
    if all(one.caption != chosen for one in proposals):
        chosen = normalise_caption(chosen)
    if not chosen:
        raise DataError(f"pair {pair!r}: a proposal was accepted, but there is none", fix="edit the pair")
    source = next((one.source_pair for one in proposals if one.caption == chosen), "")
    return Change(ACCEPTED, chosen, source)


def _by_policy(
    caption: str, row: AuditRow, policy: Policy, offers: Sequence[Proposal], min_probability: float
) -> Change:
    if "unreadable" in row.issues:
        return Change(UNREADABLE, None)
    suspected = row.flag or "shifted" in row.issues
    if math.isnan(row.p_match) or policy == "weight" or not suspected:
        return _unsuspected(caption, None if math.isnan(row.p_match) else row.p_match, policy)
    if policy == "rematch" and offers and offers[0].p_match >= min_probability:
        return Change(REMATCHED, offers[0].caption, offers[0].source_pair)
    return Change(DROPPED, None)


def _cleaned_table(
    table: PairTable, judged: Mapping[str, float], changes: Sequence[Change], policy: Policy
) -> PairTable:
    stays = np.array([change.caption is not None for change in changes], dtype=bool)
    if not stays.any():
        raise DataError(f"{table.name}: no pair is left", fix="choose policy weight, or keep some pairs")
    kept = [change for change in changes if change.caption is not None]
    result = table.filter(stays)
    before, pairs = result.captions, result.column("pair_id")
    now = [change.caption for change in kept]
    p_match = [judged.get(pair) for pair in pairs]
    provenance = [f"{c.provenance} from {c.source_pair}" if c.source_pair else c.provenance for c in kept]
    original = [old if old != new else None for old, new in zip(before, now, strict=True)]
    result = result.with_column("caption", pa.array(now, pa.string()))
    result = result.with_column("provenance", pa.array(provenance, pa.string()))
    result = result.with_column("original_caption", pa.array(original, pa.string()))
    result = result.with_column("p_match", pa.array(p_match, pa.float64()))
    if policy == "weight":
        weights = [
            1.0 if p is None or change.provenance != WEIGHTED else p
            for p, change in zip(p_match, kept, strict=True)
        ]
        result = result.with_column("weight", pa.array(weights, pa.float64()))
    return result


def difference_files(target: Path) -> tuple[Path, Path]:
    """The lists of changes beside a cleaned dataset, for machines and for people."""
    return target.with_name(f"{target.name}.diff.csv"), target.with_name(f"{target.name}.diff.txt")


def write_difference(target: Path, table: PairTable, cleaned: CleanedPairs) -> tuple[Path, Path]:
    """What changed, for machines (`.diff.csv`) and for people (`.diff.txt`), beside the cleaned dataset."""
    ids, images, captions = table.column("pair_id"), table.column("image"), table.captions
    rows = [
        (pair, image, change, before)
        for pair, image, before, change in zip(ids, images, captions, cleaned.changes, strict=True)
        if change.caption != before or change.provenance in (REVIEWED_KEPT, EDITED, ACCEPTED)
    ]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("pair_id", "image", "change", "before", "after", "source_pair"))
    for pair, image, change, before in rows:
        cells = (pair, image, change.provenance, before, change.caption or "", change.source_pair)
        writer.writerow(map(spreadsheet_text, cells))
    lines = [f"{one_line(table.name)}: {len(table):,} pairs before, {len(cleaned.table):,} after"]
    lines += [f"  {provenance}: {count:,}" for provenance, count in cleaned.counts.items()]
    for pair, image, change, before in rows:
        lines += ["", f"{one_line(pair)} ({one_line(image)}): {change.provenance}", f"- {before}"]
        if change.caption is not None and change.caption != before:
            lines.append(
                f"+ {change.caption}" + (f"   (from {change.source_pair})" if change.source_pair else "")
            )
    machine, human = difference_files(target)
    write_atomic(machine, buffer.getvalue())
    write_atomic(human, "\n".join(lines) + "\n")
    return machine, human
