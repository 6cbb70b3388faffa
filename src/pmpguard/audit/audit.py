"""The audit of a dataset: look at the images, judge every pair, write what was found.

The report folder holds `issues.parquet`, `summary.json`, the page `index.html`, the pairs as they were
audited (`pairs.parquet`, which cleaning starts from) and, where judges were trained, their runs in `folds/`.
The summary is written last and, of an earlier report, removed first: a report with a summary is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from PIL import Image

from pmpguard.audit.crossfit import CrossfitConfig, check_judges, fold_judges
from pmpguard.audit.issue_types.find import find_issues, issue_counts, rows_with_issues
from pmpguard.audit.issues import ISSUES, PAIRS, SUMMARY, write_issues, write_summary
from pmpguard.audit.judging import (
    JudgedPart,
    judge_parts,
    judged_by_model,
    judged_part,
)
from pmpguard.audit.notes import (
    ONE_CAPTION,
    few_images_warnings,
    language_warnings,
    left_out_warnings,
    unjudged_warnings,
)
from pmpguard.audit.quick import judged_quickly
from pmpguard.audit.report import REPORT_PAIRS, write_report
from pmpguard.audit.report_folder import check_report_folder
from pmpguard.audit.rows import AuditRow, AuditSummary
from pmpguard.audit.scan import image_sets, look, unread_pairs, usable_rows
from pmpguard.audit.sprites import LoadThumbnail
from pmpguard.data.formats.embeddings import ClipEmbeddings, match_pairs, read_clip_embeddings, unit_rows_of
from pmpguard.data.images.decode import ImageError, load_pair_image
from pmpguard.data.images.framing import Framing
from pmpguard.data.images.sources import ImageSource, open_images
from pmpguard.data.pairs import PairTable, codes, image_label_codes
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.evidence.similarity import Measure
from pmpguard.detection.outside_judge import JUDGE
from pmpguard.device import pick_device
from pmpguard.engine.parts import ALONE, Engine
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import writer_lock
from pmpguard.models.retriever import Retriever
from pmpguard.training.outside_judge import Judge, judge_vectors, read_judge

log = logging.getLogger("pmpguard")


@dataclass(frozen=True)
class AuditConfig:
    """What an audit does.

    Args:
        splits: which splits to audit; all by default.
        proposals: better captions named for each pair judged wrong.
        heat_maps: so many of the most suspicious pairs keep where each word is found in the image.
        bootstrap: resamples for the interval of the mismatch rate.
        crossfit: how judges are trained where no model is given.
        quick: train no judges; pretrained encoders tell what they know.
        report_pairs: so many of the most suspicious pairs are on the page; all stand in issues.parquet.
    """

    splits: tuple[str, ...] | None = None
    proposals: int = 3
    heat_maps: int = 2000
    bootstrap: int = 100
    crossfit: CrossfitConfig = field(default_factory=CrossfitConfig)
    quick: bool = False
    report_pairs: int = REPORT_PAIRS

    def __post_init__(self) -> None:
        for name in ("proposals", "heat_maps", "bootstrap", "report_pairs"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is negative", fix="0 for none, or more")


@dataclass(frozen=True)
class JudgedPairs:
    """What was found, before anything is written; `unjudged` counts pairs left out, by reason."""

    pairs: PairTable
    rows: Sequence[AuditRow]
    summary: AuditSummary
    unjudged: dict[str, int]


@dataclass(frozen=True)
class AuditOutcome:
    """What was found and written; `unjudged` counts pairs left out, by reason."""

    rows: Sequence[AuditRow]
    summary: AuditSummary
    unjudged: dict[str, int]
    page: Path


def audit_dataset(
    table: PairTable,
    out: Path,
    config: AuditConfig | None = None,
    *,
    model: Path | None = None,
    embeddings: Path | None = None,
    judge: Path | None = None,
    tell: Callable[[str], None] = log.info,
    engine: Engine = ALONE,
) -> AuditOutcome:
    """Judge the pairs of a table and write the report folder `out`.

    `model` is a model folder that judges; `embeddings` a folder as clip-retrieval writes it. Without either,
    judges are trained on the dataset itself, each on other images than it judges. `judge`, embeddings or a
    model, adds one more kind of evidence to any of these. `tell` is told each step. The engine's workers
    share the look at the images and, where `quick`, the encoding.
    """
    config = config or AuditConfig()
    if model is not None and embeddings is not None:
        raise ConfigError("a model and embeddings were given", fix="give one of the two")
    if config.quick and (model is not None or embeddings is not None):
        raise ConfigError("quick: neither a model nor embeddings train judges", fix="leave --quick out")
    check_report_folder(out)
    chosen = choose_splits(table, config.splits)
    # before the images, which take long: a wrong path is told at once
    retriever = None if model is None else Retriever.load(model)
    stored = None if embeddings is None else read_clip_embeddings(embeddings)
    outside = None if judge is None else read_judge(judge)
    name = f"model in {model}" if stored is None else f"embeddings in {embeddings}"
    with writer_lock(out):
        if (out / SUMMARY).is_file():
            tell(f"the earlier report in {out} will be replaced")
        judged = judge_pairs(
            chosen, config, stored or retriever, name, out / "folds", table.fingerprint, tell, outside, engine
        )
        tell(f"writing the report to {out}")
        page = write_audit(out, table, judged, config.report_pairs)
    return AuditOutcome(judged.rows, judged.summary, judged.unjudged, page)


def judge_pairs(
    chosen: PairTable,
    config: AuditConfig,
    judge: Retriever | ClipEmbeddings | None,
    name: str,
    folds: Path,
    fingerprint: str,
    tell: Callable[[str], None] = log.info,
    outside: Judge | None = None,
    engine: Engine = ALONE,
) -> JudgedPairs:
    """Judge pairs by a model, by embeddings (`name` says which), or by judges trained in `folds`.

    `fingerprint` is that of the whole dataset; `outside` is one more judge, beside those.
    """
    if judge is None:
        check_judges(config.crossfit, config.quick)
    device = pick_device(config.crossfit.device)
    stored = judge if isinstance(judge, ClipEmbeddings) else None
    looked = None if stored is not None else look(chosen, tell, engine)
    usable, unjudged = usable_rows(chosen, () if looked is None else looked.unreadable)
    if stored is not None:
        matched = match_pairs(chosen, stored.table)
        unjudged["without an embedding"] = int((usable & (matched < 0)).sum())
        usable &= matched >= 0
    judged = chosen.filter(usable)
    require_contrast(judged, chosen)
    warnings = list(unjudged_warnings(unjudged))
    before: NoiseDetector | None = None
    if stored is not None:
        if not engine.alone:
            tell("embeddings are judged by this process alone; there is no work for others to share")
        more = outside_evidence(outside, judged, torch.device("cpu"))
        parts = [judged_by_embeddings(judged, stored, matched[usable], config, more)]
        if thumbnail_loader(judged)(judged.column("image")[0]) is None:
            warnings.append(f"no images in the report: none found below {judged.root} (--images)")
    elif isinstance(judge, Retriever):
        tell(f"judging {len(judged):,} pairs of {len(judged.first_rows):,} images")
        more = outside_evidence(outside, judged, device)
        parts = judged_by_given(judged, judge, config, warnings, more)
    else:
        more = outside_evidence(outside, judged, device)
        duplicates = image_sets(judged, () if looked is None else looked.duplicates)
        if config.quick:
            tell(f"looking at {len(judged):,} pairs with pretrained encoders")
            parts, name = judged_by_encoders(judged, config, duplicates, warnings, more, engine)
        else:
            parts, name, before = judged_by_folds(judged, folds, config, duplicates, warnings, tell, more)
    tell(f"weighing the evidence on {len(judged):,} pairs")
    rows, verdicts = judge_parts(
        judged, parts, proposals=config.proposals, heat_maps=config.heat_maps,
        bootstrap=config.bootstrap, seed=config.crossfit.seed,
    )  # fmt: skip
    sets = None if looked is None else image_sets(judged, looked.duplicates)
    issues = find_issues(judged, np.flatnonzero(usable), parts, verdicts, before, sets)
    unread = unread_pairs(chosen, () if looked is None else looked.unreadable, len(rows))
    rows = rows_with_issues(judged, issues, rows, unread)
    warnings += left_out_warnings(parts)
    if sets is None and len(judged.splits()) > 1:
        warnings.append("leak: images were compared by name alone, not by what they show")
    if len(judged.first_rows) == len(judged):
        warnings.append(ONE_CAPTION)
    summary = AuditSummary(
        pairs=len(judged),
        images=len(judged.first_rows),
        flagged=int(verdicts.flag.sum()),
        mismatch_rate=verdicts.noise_rate,
        mismatch_interval=verdicts.noise_rate_interval,
        duplicate_pairs=duplicate_pairs(judged),
        duplicate_images=None if looked is None else looked.further,
        unreadable=None if looked is None else looked.unreadable,
        warnings=(*warnings, *verdicts.warnings),
        model=name if outside is None else f"{name}, and a judge from outside",
        dataset=fingerprint,
        issues=issue_counts(issues, len(unread)),
        informative=verdicts.informative,
    )
    return JudgedPairs(judged, rows, summary, {why: count for why, count in unjudged.items() if count})


def write_audit(out: Path, table: PairTable, judged: JudgedPairs, report_pairs: int = REPORT_PAIRS) -> Path:
    """Write the report on a table into the folder `out`, which the caller has locked; its page."""
    out.mkdir(parents=True, exist_ok=True)
    (out / SUMMARY).unlink(missing_ok=True)  # of an earlier report, which is whole up to here
    table.write_parquet(out / PAIRS)
    write_issues(out / ISSUES, judged.rows)
    page = write_report(out, judged.rows, judged.summary, thumbnail_loader(table), most=report_pairs)
    write_summary(out / SUMMARY, judged.summary)  # last: an audit with a summary is whole
    return page


def choose_splits(table: PairTable, splits: Sequence[str] | None) -> PairTable:
    if splits is None:
        return table
    wanted = [table.split(name) for name in splits]  # an unknown name is an error that lists the known ones
    if not wanted:
        raise ConfigError("splits: the list is empty", fix=f"choose among {', '.join(table.splits())}")
    return table.filter(np.isin(np.array(table.column("split"), dtype=object), list(splits)))


def require_contrast(judged: PairTable, given: PairTable) -> None:
    """A pair is judged against mismatched pairs: two images with different captions are needed."""
    images, captions = len(judged.first_rows) if len(judged) else 0, len(set(judged.captions))
    if images > 1 and captions > 1:
        return
    counted = f"{given.name}: of {len(given):,} pairs {len(judged):,} can be looked at"
    raise DataError(
        f"{counted}, with {images} image{'s' if images != 1 else ''} and {captions} different "
        f"caption{'s' if captions != 1 else ''}: nothing can be judged",
        fix="an audit compares captions among images: give at least two images with different captions"
        if len(judged)
        else "check where the images are (--images) and that captions have words; see pmpguard data check",
    )


def duplicate_pairs(table: PairTable) -> int:
    """Pairs whose image carries the same caption once more."""
    keys = np.stack([table.image_codes, table.caption_codes], axis=1)  # (N, 2)
    return len(table) - len(np.unique(keys, axis=0))


def judged_by_folds(
    table: PairTable,
    folds: Path,
    config: AuditConfig,
    duplicates: Sequence[Sequence[int]],
    warnings: list[str],
    tell: Callable[[str], None] = log.info,
    more: Mapping[str, Measure] | None = None,
) -> tuple[list[JudgedPart], str, NoiseDetector | None]:
    """Train a judge for every fold, in the folder `folds`, and let it judge.

    The last is what was known of all pairs before any training.
    """
    parts: list[JudgedPart] = []
    for judge in fold_judges(table, folds, config.crossfit, duplicates, tell=tell, more=more):
        if not parts:
            warnings += language_warnings(judge.retriever, table)
        part = judge.rows, judge.images, judge.before
        parts.append(judged_by_model(judge.retriever, table, *part, seed=config.crossfit.seed, outside=more))
    model = judge.retriever.config
    warnings += few_images_warnings(len(table.first_rows), model.vision == "tiny")
    name = f"{len(parts)} models trained on the dataset itself, {model.vision} + {model.text}"
    return parts, name, judge.before


def judged_by_encoders(
    table: PairTable,
    config: AuditConfig,
    duplicates: Sequence[Sequence[int]],
    warnings: list[str],
    more: Mapping[str, Measure] | None = None,
    engine: Engine = ALONE,
) -> tuple[list[JudgedPart], str]:
    """Judge by what pretrained encoders know, without training."""
    part, retriever = judged_quickly(table, config.crossfit, duplicates, more=more, engine=engine)
    warnings += language_warnings(retriever, table)
    model = retriever.config
    return [part], f"what pretrained encoders know, {model.vision} + {model.text}, without training"


def judged_by_given(
    table: PairTable,
    retriever: Retriever,
    config: AuditConfig,
    warnings: list[str],
    more: Mapping[str, Measure] | None = None,
) -> list[JudgedPart]:
    device = pick_device(config.crossfit.device)
    retriever = retriever.to(device).eval()
    warnings += language_warnings(retriever, table)
    images = open_images(table, retriever.config.input_size, device, framing=retriever.framing)
    rows = np.arange(len(table))
    return [judged_by_model(retriever, table, rows, images, seed=config.crossfit.seed, outside=more)]


def judged_by_embeddings(
    table: PairTable,
    stored: ClipEmbeddings,
    matched: npt.NDArray[np.int64],
    config: AuditConfig,
    more: Mapping[str, Measure] | None = None,
) -> JudgedPart:
    """Judge by stored embeddings; `matched` (N,) is the stored row of each pair."""
    firsts = np.unique(table.caption_codes, return_index=True)[1]
    image_rows = stored.table.image_codes[matched[table.first_rows]]
    caption_rows = stored.table.caption_codes[matched[firsts]]
    detector = NoiseDetector(bootstrap=0, seed=config.crossfit.seed).fit(
        unit_rows_of(stored.captions, caption_rows), unit_rows_of(stored.images, image_rows),
        table.caption_codes, table.image_codes, more=more, image_labels=image_label_codes(table),
    )  # fmt: skip
    return judged_part(table, detector)


def outside_evidence(judge: Judge | None, table: PairTable, device: torch.device) -> dict[str, Measure]:
    """What a judge from outside says of any pair of the table."""
    if judge is None:
        return {}

    def opened_images(size: int, framing: Framing) -> ImageSource:
        return open_images(table, size, device, framing=framing)

    opened = judge_vectors(judge, table, opened_images, device)
    return {JUDGE: opened.measure()}


def thumbnail_loader(table: PairTable) -> LoadThumbnail:
    """Images by the name in the `image` column, None where one cannot be read."""
    names = table.arrow["image"]
    firsts = np.unique(codes(names), return_index=True)[1]
    row_of = dict(zip(names.take(pa.array(firsts)).to_pylist(), firsts.tolist(), strict=True))

    def load(name: str) -> Image.Image | None:
        try:
            return load_pair_image(table, row_of[name])
        except ImageError:
            return None

    return load
