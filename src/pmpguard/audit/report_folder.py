"""Where a report may be written: never over a dataset or anything else that is not a report."""

from __future__ import annotations

from pathlib import Path

from pmpguard.audit.issues import ISSUES, PAIRS, SUMMARY
from pmpguard.errors import ConfigError

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
