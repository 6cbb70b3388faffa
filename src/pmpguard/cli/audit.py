"""`pmpguard audit`: which captions are wrong, why, and what they should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pmpguard.audit.api import holds_embeddings_only
from pmpguard.audit.audit import AuditConfig, AuditOutcome, audit_dataset
from pmpguard.audit.crossfit import CrossfitConfig, check_judges
from pmpguard.audit.issues import ISSUES, SUMMARY
from pmpguard.audit.report import REPORT_PAIRS
from pmpguard.audit.report_folder import check_report_folder
from pmpguard.audit.rows import SURE_ENOUGH, AuditSummary
from pmpguard.config import to_dict
from pmpguard.data.formats import read_pairs
from pmpguard.data.formats.embeddings import read_clip_embeddings
from pmpguard.device import pick_device
from pmpguard.engine.parts import Engine, EngineName
from pmpguard.files import require_writable
from pmpguard.remote import full_path, is_remote, shown
from pmpguard.remote_outputs import output_folder
from pmpguard.safe_text import tell
from pmpguard.training.interrupt import Interrupted

USUAL = CrossfitConfig()
PARTIAL = 3  # exit code: a report was written, but some pairs could not be judged
SHOWN = 5  # pairs printed


@dataclass(frozen=True)
class AuditReport:
    """What `pmpguard audit` prints; `exit_code` is 3 when pairs had to be left out."""

    out: Path
    outcome: AuditOutcome

    @property
    def exit_code(self) -> int:
        return PARTIAL if self.outcome.unjudged else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "out": shown(self.out),
            "page": shown(self.outcome.page),
            "unjudged": self.outcome.unjudged,
            "summary": to_dict(self.outcome.summary),
        }

    def as_text(self) -> str:
        found = self.outcome.summary
        rate = f"{found.mismatch_rate:.1%}"
        if found.mismatch_interval is not None:
            low, high = found.mismatch_interval
            rate += f" (95 %: {low:.1%} to {high:.1%})"
        copies = "not looked at" if found.duplicate_images is None else f"{found.duplicate_images:,}"
        unreadable = "not looked at" if found.unreadable is None else f"{len(found.unreadable):,}"
        lines = [
            f"{found.pairs:,} pairs of {found.images:,} images, judged by {found.model}",
            f"estimated mismatch rate {rate}; pairs judged wrong: {found.flagged:,}",
            f"repeated pairs {found.duplicate_pairs:,}, copies of images {copies}, "
            f"unreadable images {unreadable}",
            issue_line(found),
            *(f"note: {warning}" for warning in found.warnings),
            "most suspicious, with p(match):",
        ]
        for row in self.outcome.rows[:SHOWN]:
            lines.append(f"  {row.p_match:.3f}  {row.pair_id}  {row.image}: {row.caption!r}")
            best = row.proposals[0] if row.proposals else None
            if best is not None and best.p_match >= SURE_ENOUGH:
                lines.append(f"         better ({best.p_match:.2f}): {best.caption!r}")
        lines.append(f"review it in a browser: {shown(self.outcome.page)}")
        lines.append(
            f"then: pmpguard clean {shown(self.out)} --decisions decisions.json --out cleaned.parquet"
        )
        return "\n".join(lines)


@dataclass(frozen=True)
class AuditStopped:
    """An audit that was interrupted while training a judge."""

    out: Path
    text: str
    exit_code: int = 130

    def as_dict(self) -> dict[str, Any]:
        return {"out": str(self.out), "interrupted": self.text}

    def as_text(self) -> str:
        return self.text


def audit(
    dataset: Path,
    out: Path = Path("audit"),
    model: Path | None = None,
    embeddings: Path | None = None,
    splits: str | None = None,
    images: Path | None = None,
    format: str | None = None,
    proposals: int = 3,
    heat_maps: int = 2000,
    bootstrap: int = 100,
    quick: bool = False,
    report_pairs: int = REPORT_PAIRS,
    crossfit: CrossfitConfig = USUAL,
    judge: Path | None = None,
    columns: str | None = None,
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
) -> AuditReport | AuditStopped:
    """Judge every pair of a dataset and write a report to review: wrong captions, and better ones.

    Without a model or embeddings, judges are trained on the dataset itself, each on other images than those
    it judges; running the same command again continues an interrupted audit. Exit code 3 says that the
    report is there but some pairs could not be judged (unreadable images, captions without words).

    Args:
        dataset: a dataset in any known format; a folder of embeddings is one, too, judged by them.
        out: the folder to write the report to: a new one, or an earlier report, which is replaced; also at an
            address (s3://, gs://, hf://).
        model: folder of a trained model that judges, instead of judges trained on the dataset.
        embeddings: folder to judge by, with img_emb, text_emb and metadata as clip-retrieval and `pmpguard
            embed` write them.
        splits: which splits to audit, separated by commas; all by default.
        images: the folder that holds the images, when it is not beside the dataset.
        format: the dataset's format, when it cannot be told from the path.
        proposals: how many better captions to name for each pair judged wrong.
        heat_maps: for how many of the most suspicious pairs to store where in the image each word is found.
        bootstrap: number of resamples for the interval of the mismatch rate; 0 for no interval.
        quick: judge by pretrained encoders without any training; single words are not judged.
        report_pairs: how many of the most suspicious pairs the page shows; issues.parquet has all.
        crossfit: how judges are trained, where neither a model nor embeddings are given.
        judge: one more kind of evidence: a folder of embeddings of any CLIP, as for --embeddings, or a model
            directory. It counts as far as it agrees with the dataset's own evidence.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
        workers: processes of this machine that scan the images and, with --quick, encode them.
        engine: local, or ray: the tasks of a Ray cluster do that work, and OUT is a folder all nodes see.
        address: HOST:PORT of the Ray cluster; without one a cluster of --workers is started here.
    """
    chosen = None if splits is None else tuple(name.strip() for name in splits.split(",") if name.strip())
    config = AuditConfig(chosen, proposals, heat_maps, bootstrap, crossfit, quick, report_pairs)
    check_report_folder(out, dataset)
    if not is_remote(out):
        require_writable(out)
    if model is None and embeddings is None and holds_embeddings_only(dataset):
        tell(f"{dataset}: a folder of embeddings, judged by them (--embeddings {dataset})")
        embeddings = dataset
    pick_device(crossfit.device)
    if model is None and embeddings is None:
        check_judges(crossfit, quick)
    if embeddings is not None and full_path(dataset) == full_path(embeddings):
        table = read_clip_embeddings(embeddings).table
        table = table if images is None else replace(table, root=images)
    else:
        table = read_pairs(dataset, columns, format=format, images=images)
    try:
        with output_folder(out, ISSUES, SUMMARY, goes_on=False) as folder:
            outcome = audit_dataset(
                table,
                folder,
                config,
                model=model,
                embeddings=embeddings,
                judge=judge,
                tell=tell,
                engine=Engine(workers, engine, address, folder / ".parts"),
            )
    except Interrupted as stop:
        return AuditStopped(out, str(stop))
    return AuditReport(out, replace(outcome, page=out / outcome.page.name))


def issue_line(summary: AuditSummary) -> str:
    """How many pairs have each other kind of issue."""
    counts = [f"{kind} {count:,}" for kind, count in summary.issues.items() if count]
    unknown = [kind for kind, count in summary.issues.items() if count is None]
    not_looked = f"; not looked for: {', '.join(unknown)}" if unknown else ""
    return f"other issues: {', '.join(counts) or 'none'}{not_looked}"
