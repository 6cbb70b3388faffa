"""`pmpguard clean`: write the dataset that an audit, and whoever reviewed it, left over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pmpguard import __version__
from pmpguard.audit.cleaning import (
    CleanedPairs,
    Policy,
    check_informative,
    clean_pairs,
    difference_files,
    read_decisions,
    write_difference,
)
from pmpguard.audit.issues import ISSUES, PAIRS, SUMMARY, iter_issues, read_summary
from pmpguard.audit.rows import SURE_ENOUGH, AuditSummary
from pmpguard.cli.convert_data import format_of_target
from pmpguard.data.formats import FORMATS, read_pairs, write_pairs
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import new_together
from pmpguard.remote import full_path


@dataclass(frozen=True)
class CleanReport:
    """What became of the pairs, and where it was written."""

    out: Path
    format: str
    before: int
    after: int
    changes: dict[str, int]
    diff: tuple[Path, Path]
    notes: tuple[str, ...] = ()

    def as_text(self) -> str:
        lines = [f"{self.before:,} pairs before, {self.after:,} after, written to {self.out} ({self.format})"]
        lines += [f"  {name}: {count:,}" for name, count in self.changes.items()]
        lines += [f"what changed: {path}" for path in self.diff]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def clean(
    report: Path,
    out: Path = Path("cleaned.parquet"),
    policy: Policy = "drop",
    decisions: Path | None = None,
    format: str | None = None,
    min_probability: float = SURE_ENOUGH,
    images: Path | None = None,
) -> CleanReport:
    """Write the cleaned dataset of an audit; the audited one stays as it is.

    Policy 'drop' leaves pairs judged wrong out, 'rematch' gives them their best proposed caption (or leaves
    them out where none is good enough) and puts runs of shifted captions back where they belong, 'weight'
    keeps all and adds p(match) as a column. Decisions from the
    report's page go before the policy.

    Args:
        report: folder that `pmpguard audit` wrote.
        out: the file or folder to write; neither it nor its .diff files may exist yet.
        policy: what becomes of pairs judged wrong that no decision is about.
        decisions: JSON file saved from the report's page, or exported from Label Studio.
        format: format of the result, when its ending does not tell; a name without an ending is an image
            folder as load_dataset reads it; hub (parquet with images), coco and webdataset are folders, too.
        min_probability: how sure a proposal must be under policy 'rematch', 0 to 1.
        images: the folder that holds the images, when they have moved since the audit.
    """
    chosen = format or format_of_name(out)
    if chosen not in FORMATS or FORMATS[chosen].write is None:
        known = ", ".join(name for name, kind in FORMATS.items() if kind.write)
        raise ConfigError(f"format {chosen!r} cannot be written", fix=f"one of {known}")
    if policy == "weight" and not FORMATS[chosen].keeps_columns:
        keeping = ", ".join(name for name, kind in FORMATS.items() if kind.write and kind.keeps_columns)
        raise ConfigError(f"{chosen} has no place for weights", fix=f"use one of {keeping}")
    summary, rows = read_summary(report / SUMMARY), iter_issues(report / ISSUES, brief=True)
    if decisions is None:
        check_informative(summary, policy, None)
    table = read_pairs(report / PAIRS, format="parquet", images=images)
    if table.fingerprint != summary.dataset:
        raise DataError(
            f"{report / PAIRS}: not the pairs that were audited", fix="restore it, or run the audit again"
        )
    decided = read_decisions(decisions, summary.dataset, table.column("pair_id")) if decisions else {}
    cleaned = clean_pairs(table, rows, policy, decided, min_probability=min_probability)
    with new_together(out, *difference_files(out)):
        difference = write_difference(out, table, cleaned)
        write_pairs(cleaned.table, out, chosen, _provenance(summary, cleaned, policy))
    notes = [f"the audit said: {warning}" for warning in summary.warnings]
    if not FORMATS[chosen].keeps_columns:
        notes.append(f"{chosen} has no place for the provenance of pairs; it is in the list of changes")
    if not FORMATS[chosen].copies_images and chosen != "parquet":
        root = full_path(table.root)
        notes.append(f"images stay in {root}; read the result with --images {root}")
    return CleanReport(
        out, chosen, len(table), len(cleaned.table), cleaned.counts,
        difference, tuple(notes),
    )  # fmt: skip


def _provenance(summary: AuditSummary, cleaned: CleanedPairs, policy: Policy) -> list[str]:
    """Lines for a dataset's card: what was audited, by what, and what was done."""
    interval = summary.mismatch_interval
    said = "" if interval is None else f" (95 % interval {interval[0]:.1%} to {interval[1]:.1%})"
    return [
        f"Cleaned by pmpguard {__version__} under policy {policy!r} from the {summary.pairs:,} pairs with "
        f"fingerprint {summary.dataset}.",
        f"Estimated noise rate before cleaning: {summary.mismatch_rate:.1%}{said}.",
        f"Judged by: {summary.model}.",
        f"Pairs: {', '.join(f'{count:,} {what}' for what, count in cleaned.counts.items())}.",
        *(f"The audit said: {warning}" for warning in summary.warnings),
    ]


def format_of_name(out: Path) -> str:
    """The format a target's name asks for: a folder of images where it is one or has no ending.

    >>> format_of_name(Path("cleaned/")), format_of_name(Path("cleaned.parquet"))
    ('folder', 'parquet')
    """
    if out.is_dir() or not out.suffix:
        return "folder"
    try:
        return format_of_target(out)
    except ConfigError as error:
        known = ", ".join(name for name, kind in FORMATS.items() if kind.write)
        raise ConfigError(error.message, fix=f"say which with --format, one of {known}") from error
