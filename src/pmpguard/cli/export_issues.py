"""`pmpguard audit export`: an audit's issues for FiftyOne, Label Studio or a spreadsheet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pmpguard.audit.exports import LOCAL_FILES, Pairs, Tool, choose_rows, export_issues
from pmpguard.audit.issues import ISSUES, PAIRS, SUMMARY, read_issues, read_summary
from pmpguard.data.formats import read_pairs
from pmpguard.errors import DataError

NEXT: dict[str, str] = {
    "fiftyone": "fiftyone datasets create --name NAME --dataset-dir {out} --type "
    "fiftyone.types.FiftyOneDataset",
    "label-studio": "import {out}/tasks.json into a project with the labelling page {out}/labeling.xml; "
    "start Label Studio with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
    "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={root}; then export as JSON and "
    "pmpguard clean {report} --decisions EXPORT.json",
    "csv": "open {out}/issues.csv",
}


@dataclass(frozen=True)
class ExportedIssues:
    """What was written, and what to do with it."""

    out: Path
    tool: str
    pairs: int
    images: Path  # the folder that images are named from
    next: str

    def as_text(self) -> str:
        return (
            f"{self.pairs:,} pairs for {self.tool} in {self.out}; images in {self.images}\nnext: {self.next}"
        )


def export(
    report: Path,
    out: Path,
    to: Tool = "label-studio",
    pairs: Pairs = "flagged",
    url: str = LOCAL_FILES,
    images: Path | None = None,
) -> ExportedIssues:
    """Write an audit's issues for another tool.

    Args:
        report: folder that `pmpguard audit` wrote.
        out: the new folder to write.
        to: fiftyone (samples to import), label-studio (tasks and their page) or csv (for spreadsheets).
        pairs: which pairs: flagged as mismatched, with any of the issues, or all.
        url: what Label Studio's image addresses begin with; an image's name follows.
        images: the folder that holds the images, when they have moved since the audit.
    """
    summary = read_summary(report / SUMMARY)
    rows = choose_rows(read_issues(report / ISSUES), pairs)
    if not rows:
        raise DataError(f"{report}: no pair is {pairs}", fix="export --pairs all")
    table = read_pairs(report / PAIRS, format="parquet", images=images)
    root = export_issues(table, rows, out, to, summary.dataset, url)
    told = NEXT[to].format(out=out, root=root, report=report)
    return ExportedIssues(out, to, len(rows), root, told)
