"""`pmpguard.audit`: which pairs of a dataset are mismatched, from Python, with or without a report."""

from __future__ import annotations

import html
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch import Tensor

from pmpguard.audit.audit import AuditConfig, JudgedPairs, choose_splits, judge_pairs, write_audit
from pmpguard.audit.cleaning import Decision, Policy, check_informative, clean_pairs
from pmpguard.audit.crossfit import CrossfitConfig
from pmpguard.audit.given_data import holds_pairs, pairs_of_data
from pmpguard.audit.issues import ISSUES, SUMMARY, issue_summary, issues_table, select_issues
from pmpguard.audit.report_folder import check_report_folder
from pmpguard.audit.rows import SURE_ENOUGH, AuditRow, AuditSummary
from pmpguard.data.column_names import Columns
from pmpguard.data.formats import group_by_format, read_pairs
from pmpguard.data.formats.embeddings import ClipEmbeddings, is_clip_folder, read_clip_embeddings
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import writer_lock
from pmpguard.models.retriever import Retriever
from pmpguard.remote import as_path, is_remote
from pmpguard.remote_outputs import output_folder
from pmpguard.training.outside_judge import Judge, read_judge

log = logging.getLogger("pmpguard")
SHOWN = 5  # pairs in a representation
Vectors = npt.ArrayLike | Tensor


@dataclass(frozen=True, repr=False)
class Audit:
    """What an audit says of a dataset. Nothing is on disk until `report` writes it."""

    table: PairTable  # all pairs
    judged: JudgedPairs
    # images of data frames lie here as long as the audit does
    _written: tempfile.TemporaryDirectory[str] | None = field(default=None, compare=False)

    @property
    def issues(self) -> pa.Table:
        """One row for every judged pair, the most suspicious first, then unreadable ones: issues.parquet."""
        return issues_table(self.judged.rows)

    @property
    def issue_summary(self) -> pa.Table:
        """How many pairs have each kind of issue, and their share; null where it was not looked for."""
        return issue_summary(self.summary)

    def get_issues(self, kind: str) -> pa.Table:
        """The rows of `issues` with one kind of issue, the worst first: "mismatched", "shifted", ..."""
        return select_issues(self.issues, kind)

    @property
    def rows(self) -> Sequence[AuditRow]:
        """The same as objects."""
        return self.judged.rows

    @property
    def summary(self) -> AuditSummary:
        return self.judged.summary

    @property
    def unjudged(self) -> dict[str, int]:
        """How many pairs could not be judged, by reason."""
        return self.judged.unjudged

    @property
    def noise_rate(self) -> float:
        """The estimated share of mismatched pairs."""
        return self.summary.mismatch_rate

    @property
    def noise_rate_interval(self) -> tuple[float, float] | None:
        """A 95 % interval of it; None where no bootstrap was asked for."""
        return self.summary.mismatch_interval

    @property
    def p_match(self) -> npt.NDArray[np.float64]:
        """(N,): each pair's probability of matching, in the table's order; NaN where it was not judged."""
        known = {row.pair_id: row.p_match for row in self.rows}
        return np.array([known.get(pair, np.nan) for pair in self.table.column("pair_id")])

    def report(self, folder: str | Path) -> Path:
        """Write the report to review in a browser, which `pmpguard clean` reads too; its page."""
        out = as_path(folder)
        with output_folder(out, ISSUES, SUMMARY, goes_on=False) as written:
            check_report_folder(written)
            with writer_lock(written):
                page = write_audit(written, self.table, self.judged)
        return out / page.name

    def clean(
        self,
        policy: Policy = "drop",
        decisions: Mapping[str, Decision] | None = None,
        *,
        min_probability: float = SURE_ENOUGH,
    ) -> PairTable:
        """The pairs without those flagged, with better captions ("rematch"), or with weights ("weight")."""
        check_informative(self.summary, policy, decisions)
        cleaned = clean_pairs(self.table, self.rows, policy, decisions, min_probability=min_probability)
        return cleaned.table

    def __repr__(self) -> str:
        lines = [f"Audit of {self.table.name}: {self._counts()}", f"  {self._rate()}"]
        lines += [f"  note: {warning}" for warning in self.summary.warnings[:2]]
        lines += [f"  {row.p_match:.3f}  {row.image}: {row.caption[:80]!r}" for row in self.rows[:2]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The most suspicious pairs as a table for notebooks."""
        head = "<tr><th>p(match)</th><th>image</th><th>caption</th><th>better</th></tr>"
        body = "".join(
            f"<tr><td>{row.p_match:.3f}</td><td>{html.escape(row.image)}</td><td>{html.escape(row.caption)}"
            f"</td><td>{html.escape(_best_proposal(row))}</td></tr>"
            for row in self.rows[:SHOWN]
        )
        notes = "".join(f"<p>note: {html.escape(warning)}</p>" for warning in self.summary.warnings)
        return f"<p>{self._counts()}; {self._rate()}</p>{notes}<table>{head}{body}</table>"

    def _counts(self) -> str:
        found = self.summary
        return f"{found.pairs:,} pairs of {found.images:,} images, {found.flagged:,} flagged"

    def _rate(self) -> str:
        interval = self.noise_rate_interval
        said = "" if interval is None else f" ({interval[0]:.1%} to {interval[1]:.1%})"
        return f"estimated noise rate {self.noise_rate:.1%}{said}"


def _best_proposal(row: AuditRow) -> str:
    best = row.proposals[0] if row.proposals else None
    return best.caption if best is not None and best.p_match >= SURE_ENOUGH else ""


def audit(
    data: Any,
    *,
    texts: Vectors | None = None,
    images: Vectors | None = None,
    model: Retriever | str | Path | None = None,
    judge: Retriever | ClipEmbeddings | str | Path | None = None,
    quick: bool = True,
    columns: str | Columns | None = None,
    root: str | Path | None = None,
    format: str | None = None,
    splits: Sequence[str] | None = None,
    proposals: int = 3,
    bootstrap: int = 100,
    seed: int = 0,
    device: str = "auto",
    folds: str | Path | None = None,
) -> Audit:
    """Judge every pair of a dataset: which are mismatched, how many, and what would fit better.

    Args:
        data: a path in any known format, a PairTable, a data frame, a `datasets.Dataset` (also streamed, also
            a dict of splits), or samples by number, as data sets of torchgeo and torch give them.
        texts: embeddings to judge by, a row for each different caption in order of appearance, or one for
            each pair. The encoders may be any two, of different dimensions.
        images: the same of the images; texts and images come together.
        model: a retriever or its folder that judges; it may be a converted CLIP.
        judge: one more kind of evidence beside all other: vectors of any CLIP in a folder as clip-retrieval
            and `pmpguard embed` write them, or a model. It counts as far as it agrees with the dataset's own.
        quick: without embeddings and model, judge by what frozen pretrained encoders know (extra "weights");
            False trains judges on the dataset itself, each on other images than it judges.
        columns: which columns are "image" and "caption", where they have unusual names.
        root: the folder that image names are relative to.
        format: the format of a path, where it cannot be told.
        splits: which splits to judge; all by default.
        proposals: better captions named for each flagged pair.
        bootstrap: resamples for the interval of the noise rate, 0 for none.
        seed: of everything that is drawn.
        device: where models run: "auto", "cpu" or "cuda".
        folds: folder that keeps trained judges, which an interrupted audit continues from (`quick=False`).
    """
    if (texts is None) != (images is None):
        raise ConfigError("texts or images are missing", fix="give the embeddings of both")
    if texts is not None and model is not None:
        raise ConfigError("a model and embeddings were given", fix="give one of the two")
    written = tempfile.TemporaryDirectory(prefix="pmpguard-") if holds_pairs(data) else None
    stored: ClipEmbeddings | None = None
    if written is not None:
        table = pairs_of_data(data, columns, None if root is None else Path(root), Path(written.name))
    else:
        table, stored = _read(data, columns, None if root is None else Path(root), format)
    judged_by: Judge | None = stored if texts is None and model is None else None
    if texts is not None and images is not None:
        judged_by = given_embeddings(table, texts, images)
    elif model is not None:
        judged_by = model if isinstance(model, Retriever) else Retriever.load(model)
    outside = read_judge(as_path(judge)) if isinstance(judge, str | Path) else judge
    config = AuditConfig(
        splits=None if splits is None else tuple(splits),
        proposals=proposals,
        bootstrap=bootstrap,
        crossfit=CrossfitConfig(seed=seed, device=device),
        quick=quick and judged_by is None,
    )
    chosen = choose_splits(table, config.splits)
    with tempfile.TemporaryDirectory(prefix="pmpguard-") as scratch:
        runs = Path(scratch) if folds is None else Path(folds)
        name = _named(judged_by, model)
        judged = judge_pairs(chosen, config, judged_by, name, runs, table.fingerprint, outside=outside)
    return Audit(table, judged, written)


def _read(
    data: Any, columns: str | Columns | None, root: Path | None, format: str | None
) -> tuple[PairTable, ClipEmbeddings | None]:
    """The pairs of a path or a table, and the embeddings where the path holds nothing else."""
    if isinstance(data, PairTable):
        return (data if root is None else replace(data, root=root)), None
    if not isinstance(data, str | Path):
        raise DataError(
            f"data is a {type(data).__name__}",
            fix="give a path, a PairTable, a data frame, a datasets.Dataset, or samples that are dicts",
        )
    path = as_path(data)
    if holds_embeddings_only(path):
        stored = read_clip_embeddings(path)
        return (stored.table if root is None else replace(stored.table, root=root)), stored
    return read_pairs(path, columns, format=format, images=root), None


def given_embeddings(table: PairTable, texts: Vectors, images: Vectors) -> ClipEmbeddings:
    """Embeddings by image code and by caption code, as they come for each different item or for each pair."""
    first_captions = np.unique(table.caption_codes, return_index=True)[1]
    return ClipEmbeddings(
        table,
        images=_of_distinct(images, table.first_rows, len(table), "images"),
        captions=_of_distinct(texts, first_captions, len(table), "texts"),
    )


def _of_distinct(
    vectors: Vectors, firsts: npt.NDArray[np.int64], pairs: int, name: str
) -> npt.NDArray[np.floating[Any]]:
    """(K, d), a row for each different item, whose first pairs are `firsts` (K,)."""
    if isinstance(vectors, Tensor):
        vectors = vectors.detach().float().cpu().numpy()
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.ndim != 2 or len(rows) not in (len(firsts), pairs):
        raise DataError(
            f"{name} have shape {rows.shape}",
            fix=f"give one row for each of {len(firsts):,} different {name}, or for each of {pairs:,} pairs",
        )
    return rows if len(rows) == len(firsts) else rows[firsts]


def holds_embeddings_only(dataset: Path) -> bool:
    """Whether a folder has embeddings but no annotations beside them."""
    if not is_clip_folder(dataset):
        return False
    return is_remote(dataset) or not group_by_format(sorted(dataset.iterdir()))


def _named(judge: Retriever | ClipEmbeddings | None, model: Retriever | str | Path | None) -> str:
    """What judged, for the report's reader."""
    if isinstance(judge, Retriever):
        return (
            f"{judge.config.vision} + {judge.config.text}"
            if isinstance(model, Retriever)
            else f"model in {model}"
        )
    return "given embeddings"
