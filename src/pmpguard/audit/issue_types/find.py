"""All kinds of issues of judged pairs, and what is said of them row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pmpguard.audit.issue_types.duplicate_caption import duplicate_captions
from pmpguard.audit.issue_types.found import Array, Found, Numbers
from pmpguard.audit.issue_types.language import language_issues
from pmpguard.audit.issue_types.same_image import leaks, near_duplicate_images
from pmpguard.audit.issue_types.shifted import LogRatio, find_shifts
from pmpguard.audit.issue_types.uninformative import uninformative_captions
from pmpguard.audit.judging import JudgedPart, distinct_captions
from pmpguard.audit.row_list import AuditRows
from pmpguard.audit.rows import ISSUE_TYPES, AuditRow, Proposal
from pmpguard.data.pairs import PairTable
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.evidence.similarity import cosine_moments
from pmpguard.detection.judge import Verdicts
from pmpguard.detection.measures import PairEvidence

NOT_READ = 0.0  # score of what could not be read


@dataclass(frozen=True)
class Issues:
    """What was found by kind, None where it was not looked for."""

    found: Mapping[str, Found | None]
    source: Numbers  # (N,) the row whose caption belongs to each row's image, in a shifted run; else -1
    p_moved: Mapping[int, float]  # the probability that caption matches, by row


@dataclass(frozen=True)
class View:
    """Evidence that can be asked of pairs, and its places for the table's numbers; -1: unknown to it."""

    evidence: PairEvidence
    verdicts: Verdicts
    texts: Numbers  # (C,)
    images: Numbers  # (I,)
    rows: Numbers  # (N,)


def find_issues(
    table: PairTable,
    places: Numbers,
    parts: Sequence[JudgedPart],
    verdicts: Verdicts,
    before: NoiseDetector | None = None,
    duplicates: Sequence[Sequence[int]] | None = None,
) -> Issues:
    """Every kind of issue but the unreadable, which were never judged.

    `places` (N,) are the rows of the judged pairs in their dataset; `before` knows all pairs where no part
    does; `duplicates` are sets of image codes that show the same, None where nobody looked.
    """
    images = table.column("image")
    names = [images[row] for row in table.first_rows]
    numbers = table.caption_codes, table.image_codes
    log_ratio = log_ratios(table, parts, verdicts, before)
    shifts = find_shifts(*numbers, places, log_ratio)
    moved = np.flatnonzero(shifts.source >= 0)
    sources = shifts.source[moved]
    ratios = np.nan_to_num(log_ratio(numbers[0][sources], numbers[1][moved], sources))
    p_moved = dict(zip(moved.tolist(), (1 / (1 + np.exp(-ratios))).tolist(), strict=True))
    splits = table.column("split")
    found = {
        "uninformative": uninformative_captions(caption_meaning(table, parts), numbers[0]),
        "shifted": shifts.found,
        "duplicate_caption": duplicate_captions(*numbers),
        "near_duplicate_image": None
        if duplicates is None
        else near_duplicate_images(numbers[1], names, duplicates),
        "leak": leaks(numbers[1], splits, names, duplicates or ()),
        "unreadable": Found.of(np.ones(len(table))),
        "language": language_issues(distinct_captions(table), numbers[0]),
    }
    return Issues(found, shifts.source, p_moved)


def caption_meaning(table: PairTable, parts: Sequence[JudgedPart]) -> Array:
    """(C,) of each distinct caption: how much it tells, in units of the median caption of its part."""
    meaning = np.ones(int(table.caption_codes.max(initial=-1)) + 1)
    for part in parts:
        told = part.meaning
        if told is None:  # a model's own: how far its cosines with the images lie apart
            told = cosine_moments(part.captions, part.images)[1].sqrt()
        values = told.double().cpu().numpy()
        meaning[part.text_numbers] = values / max(float(np.median(values)), 1e-12)
    return meaning


def log_ratios(
    table: PairTable, parts: Sequence[JudgedPart], verdicts: Verdicts, before: NoiseDetector | None
) -> LogRatio:
    """How much likelier the evidence of any pair is of a match than of a mismatch.

    Where parts were judged by different models, a caption of one and an image of another can only be asked of
    `before`; without it they stay unknown.
    """
    if before is not None:
        texts, images, rows = (np.arange(size) for size in _sizes(table))
        views = [View(before.collected, before.verdicts, texts, images, rows)]
    else:
        views = [
            View(
                part.evidence,
                verdicts,
                *(
                    _places(own, size)
                    for own, size in zip(
                        (part.text_numbers, part.image_numbers, part.rows), _sizes(table), strict=True
                    )
                ),
            )
            for part in parts
        ]

    def log_ratio(captions: Numbers, images: Numbers, rows: Numbers) -> Array:
        ratios = np.full(len(captions), np.nan)
        for view in views:
            numbers = view.texts[captions], view.images[images], view.rows[rows]
            known = np.flatnonzero(np.min(numbers, axis=0) >= 0)
            if len(known):
                ratios[known] = _log_ratio(view, *(each[known] for each in numbers))
        return ratios

    return log_ratio


def _log_ratio(view: View, captions: Numbers, images: Numbers, rows: Numbers) -> Array:
    device = next(iter(view.evidence.evidence.values())).observed.device
    texts, pixels, places = (torch.from_numpy(each).to(device) for each in (captions, images, rows))
    measured = view.evidence.measure(texts, pixels, places)
    p_match = view.verdicts.judge(measured, tuple(view.evidence.measures))
    chance = np.clip([p_match, np.full_like(p_match, 1 - view.verdicts.noise_rate)], 1e-6, 1 - 1e-6)
    odds = np.log(chance / (1 - chance))  # (2, P)
    ratio: Array = odds[0] - odds[1]
    return ratio


def _sizes(table: PairTable) -> tuple[int, int, int]:
    return int(table.caption_codes.max()) + 1, int(table.image_codes.max()) + 1, len(table)


def _places(numbers: Numbers, size: int) -> Numbers:
    """(size,): where each number stands among `numbers`, -1 for nowhere."""
    found = np.full(size, -1, np.int64)
    found[numbers] = np.arange(len(numbers))
    return found


def rows_with_issues(
    table: PairTable, issues: Issues, rows: AuditRows, unread: Sequence[AuditRow] = ()
) -> AuditRows:
    """The rows with what was found; shifted ones first propose the caption that their image had lost.

    `unread` come after them.
    """
    known = {kind: found for kind, found in issues.found.items() if found is not None}

    def make(place: int) -> AuditRow:
        one, row = rows[place], int(rows.table_rows[place])
        source = int(issues.source[row])
        flagged = tuple(kind for kind, found in known.items() if found.flag[row])
        offers, shifted_from = one.proposals, ""
        if source >= 0:
            shifted_from, caption = (table.arrow[name][source].as_py() for name in ("pair_id", "caption"))
            moved = Proposal(caption, issues.p_moved[row], shifted_from)
            offers = (moved, *(offer for offer in offers if offer.caption != caption))
        told = [f"{kind}: {known[kind].notes[row]}" for kind in flagged if row in known[kind].notes]
        return replace(
            one,
            proposals=offers,
            issue_scores={kind: round(float(found.score[row]), 4) for kind, found in known.items()},
            issues=flagged,
            issue_notes="; ".join(told),
            shifted_from=shifted_from,
        )

    return AuditRows(rows.table_rows, make, rows.evidence, unread)


def unreadable_rows(table: PairTable, rows: Numbers, why: Sequence[str], ranked: int) -> list[AuditRow]:
    """Pairs that could not be judged, after the `ranked` that were."""
    columns = {name: table.column(name) for name in ("pair_id", "image", "caption", "split", "label")}
    return [
        AuditRow(
            pair_id=columns["pair_id"][row],
            image=columns["image"][row],
            caption=columns["caption"][row],
            split=columns["split"][row],
            label=columns["label"][row] or "",
            p_match=float("nan"),
            flag=False,
            rank=ranked + number,
            issue_scores={"unreadable": NOT_READ},
            issues=("unreadable",),
            issue_notes=f"unreadable: {reason}",
        )
        for number, (row, reason) in enumerate(zip(rows.tolist(), why, strict=True), 1)
    ]


def issue_counts(issues: Issues, unread: int) -> dict[str, int | None]:
    """Flagged pairs by kind, `unread` ones besides; None for what was not looked for."""
    found = {kind: issues.found.get(kind) for kind in ISSUE_TYPES}
    counted = {kind: None if each is None else int(each.flag.sum()) for kind, each in found.items()}
    return {**counted, "unreadable": (counted["unreadable"] or 0) + unread}
