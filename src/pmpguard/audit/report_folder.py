"""The folder of a report: where it may be written, and everything in it.

It holds the pairs as they were judged, the issues, the page and, written last, the summary: a report with a
summary is whole. It never goes over a dataset or anything else that is not a report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pmpguard.audit.issues import ISSUES, PAIRS, SUMMARY, write_issues, write_summary
from pmpguard.audit.report import write_report
from pmpguard.audit.report_columns import PairTruth
from pmpguard.audit.rows import AuditRow, AuditSummary
from pmpguard.audit.sprites import LoadThumbnail
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError
from pmpguard.files import writer_lock

OURS = {PAIRS, ISSUES, SUMMARY, "index.html", "sprites", "folds"}


def check_report_folder(out: Path, dataset: Path | None = None) -> None:
    """Refuse a folder in use for something else; `dataset` is the file or folder to be audited.

    A new or an empty folder will do, one that holds a report, which is replaced, and one that a stopped audit
    began: that holds the lock every audit leaves and nothing but parts of a report.
    """
    if out.is_file():
        raise ConfigError(f"{out}: is a file, the report is a folder", fix="give another name with --out")
    if dataset is not None and dataset.exists():
        written = {out.resolve(), *((out / name).resolve() for name in OURS)}
        if dataset.resolve() in written:
            raise ConfigError(f"{out}: the report would overwrite {dataset}", fix="name a new folder (--out)")
    names = {path.name for path in out.iterdir() if path.name[0] != "."} if out.is_dir() else set()
    is_report = {PAIRS, ISSUES, "index.html"} <= names
    is_begun = (out / ".lock").is_file() and names <= OURS
    if names and not is_report and not is_begun:
        raise ConfigError(
            f"{out}: holds {min(names)!r} and no report", fix="name a new or an empty folder (--out)"
        )


class Reported(Protocol):
    """Judged pairs, ready to be written."""

    @property
    def table(self) -> PairTable: ...
    @property
    def rows(self) -> Sequence[AuditRow]: ...
    @property
    def summary(self) -> AuditSummary: ...
    @property
    def truth(self) -> Mapping[str, PairTruth] | None: ...
    @property
    def load_thumbnail(self) -> LoadThumbnail: ...


def write_report_folder(out: Path, judged: Reported) -> Path:
    """Write all files of a report, the summary last; returns the page."""
    check_report_folder(out)
    with writer_lock(out):
        (out / SUMMARY).unlink(missing_ok=True)  # of an earlier report, which is whole up to here
        judged.table.write_parquet(out / PAIRS)
        write_issues(out / ISSUES, judged.rows)
        page = write_report(out, judged.rows, judged.summary, judged.load_thumbnail, truth=judged.truth)
        write_summary(out / SUMMARY, judged.summary)
    return page
