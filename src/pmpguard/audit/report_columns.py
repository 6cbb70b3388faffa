"""An audit as columns for the report page: every string once, every number in a packed array.

A page of 50,000 pairs is read by a browser in one go, so rows become columns, repeated strings become codes
and numbers become base64 of little-endian arrays as narrow as their values allow.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmpguard.audit.rows import BORNE_OUT, ISSUE_TYPES, SURE_ENOUGH, AuditRow, AuditSummary
from pmpguard.audit.sprites import ACROSS, THUMBNAIL, HeatMaps, Thumbnails
from pmpguard.errors import DataError

_LISTED_UNREADABLE = 500


@dataclass(frozen=True)
class PairTruth:
    """What is known of a pair whose noise was injected: the caption it had before, and whether it lost it."""

    caption: str
    mismatched: bool


class Codes:
    """Strings numbered in the order of their first appearance."""

    def __init__(self) -> None:
        self._code: dict[str, int] = {}

    def of(self, strings: Iterable[str]) -> np.ndarray:
        return np.array([self._code.setdefault(text, len(self._code)) for text in strings], np.int64)

    @property
    def strings(self) -> list[str]:
        return list(self._code)


def pack(values: np.ndarray) -> dict[str, str]:
    """One column for the page: floats as 32 bits, whole numbers as the narrowest type that holds them.

    >>> pack(np.array([1, 2, 258]))
    {'type': 'u2', 'data': 'AQACAAIB'}
    """
    if values.dtype.kind == "f":
        kind = "f4"
    elif values.size and values.min() < 0:
        kind = "i4"
    else:
        largest = values.max() if values.size else 0
        kind = "u1" if largest < 2**8 else "u2" if largest < 2**16 else "u4"
    return {"type": kind, "data": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")}


def check_rows(rows: Sequence[AuditRow], truth: Mapping[str, PairTruth] | None = None) -> None:
    """Refuse what the page could only show wrongly: repeated pair ids, words outside their caption."""
    seen: set[str] = set()
    for row in rows:
        if row.pair_id in seen:
            raise DataError(f"pair {row.pair_id!r} is in the audit twice", fix="give every pair its own id")
        if truth is not None and row.pair_id not in truth:
            raise DataError(
                f"pair {row.pair_id!r}: its truth is missing", fix="give the truth of all pairs or of none"
            )
        seen.add(row.pair_id)
        stop = 0
        for index, word in enumerate(row.words):
            where = f"pair {row.pair_id!r}, word {index + 1}"
            if not stop <= word.start < word.stop <= len(row.caption):
                raise DataError(
                    f"{where}: characters {word.start} to {word.stop} overlap another word or leave the "
                    f"caption of {len(row.caption)} characters",
                    fix="list the words from left to right with the places they have in the caption",
                )
            if word.regions and len(word.regions) != math.prod(row.grid):
                raise DataError(
                    f"{where}: {len(word.regions)} regions do not fill a grid of {row.grid[0]}x{row.grid[1]}",
                    fix="give one cosine for each cell of AuditRow.grid",
                )
            stop = word.stop


def report_columns(
    rows: Sequence[AuditRow],
    images: Codes,
    thumbnails: Thumbnails,
    heat: HeatMaps,
    summary: AuditSummary,
    truth: Mapping[str, PairTruth] | None = None,
) -> dict[str, Any]:
    """Everything the page shows but the images themselves. Nothing in it is NaN: JSON knows none."""
    captions, splits, labels = Codes(), Codes(), Codes()
    image_of, caption_of = images.of(row.image for row in rows), captions.of(row.caption for row in rows)
    split_of, label_of = splits.of(row.split for row in rows), labels.of(row.label for row in rows)
    proposals = _proposal_columns(rows, captions)
    known = None if truth is None else _truth_columns([truth[row.pair_id] for row in rows], captions)
    return {
        "summary": _summary(summary),
        "pairs": [row.pair_id for row in rows],
        "images": images.strings,
        "captions": captions.strings,  # after proposals and truth, for theirs are among them
        "splits": splits.strings,
        "labels": labels.strings,
        "image": pack(image_of),
        "caption": pack(caption_of),
        "split": pack(split_of),
        "label": pack(label_of),
        "p": pack(np.array([row.p_match for row in rows], np.float64)),
        "flag": pack(np.array([row.flag for row in rows], np.int64)),
        "rank": pack(np.array([row.rank for row in rows], np.int64)),
        "evidence": _evidence_columns(rows),
        "issues": _issue_columns(rows, summary),
        "words": _word_columns(rows),
        "proposals": proposals,
        "truth": known,
        "thumbnails": {
            "across": ACROSS,
            "side": THUMBNAIL,
            "tile": pack(thumbnails.tile),
            "width": pack(thumbnails.width),
            "height": pack(thumbnails.height),
        },
        "heat": {
            "across": heat.across,
            "tileHeight": heat.tile_height,
            "tileWidth": heat.tile_width,
            "gridHeight": pack(np.array([row.grid[0] for row in rows], np.int64)),
            "gridWidth": pack(np.array([row.grid[1] for row in rows], np.int64)),
        },
    }


def _issue_columns(rows: Sequence[AuditRow], summary: AuditSummary) -> dict[str, Any]:
    """The kinds that were looked for, as bits of each pair's mask."""
    present = {kind for row in rows for kind in row.issues}
    types = [kind for kind in ISSUE_TYPES if kind in present or summary.issues.get(kind) is not None]
    bits = {kind: 1 << number for number, kind in enumerate(types)}
    notes = Codes()
    note_of = notes.of(row.issue_notes for row in rows)
    return {
        "types": types,
        "mask": pack(np.array([sum(bits[kind] for kind in row.issues) for row in rows], np.int64)),
        "notes": notes.strings,
        "note": pack(note_of),
    }


def _word_columns(rows: Sequence[AuditRow]) -> dict[str, Any]:
    """All words of all pairs one after another; the page counts characters in UTF-16 units."""
    spans = np.array([span for row in rows for span in _utf16_spans(row)], np.int64).reshape(
        -1, 2
    )  # (words, start and length)
    words = list(itertools.chain.from_iterable(row.words for row in rows))
    support = np.nan_to_num(np.array([word.support for word in words], np.float64))
    return {
        "counts": pack(np.array([len(row.words) for row in rows], np.int64)),
        "start": pack(spans[:, 0]),
        "length": pack(spans[:, 1]),
        "support": pack((np.clip(support, 0, 1) * 255).round().astype(np.int64)),  # 255 is full support
        "wrong": pack(np.array([word.wrong for word in words], np.int64)),
        "mapped": pack(np.array([bool(word.regions) for word in words], np.int64)),
        "borneOut": BORNE_OUT,
    }


def _utf16_spans(row: AuditRow) -> list[tuple[int, int]]:
    if all(character <= "\uffff" for character in row.caption):
        return [(word.start, word.stop - word.start) for word in row.words]
    units = [0, *itertools.accumulate(1 + (character > "\uffff") for character in row.caption)]
    return [(units[word.start], units[word.stop] - units[word.start]) for word in row.words]


def _proposal_columns(rows: Sequence[AuditRow], captions: Codes) -> dict[str, Any]:
    proposals = list(itertools.chain.from_iterable(row.proposals for row in rows))
    sources = Codes()
    source_of = sources.of(proposal.source_pair for proposal in proposals)
    return {
        "counts": pack(np.array([len(row.proposals) for row in rows], np.int64)),
        "caption": pack(captions.of(proposal.caption for proposal in proposals)),
        "p": pack(np.array([proposal.p_match for proposal in proposals], np.float64)),
        "sources": sources.strings,
        "source": pack(source_of),
        "sureEnough": SURE_ENOUGH,
    }


def _truth_columns(truth: Sequence[PairTruth], captions: Codes) -> dict[str, Any]:
    return {
        "caption": pack(captions.of(one.caption for one in truth)),
        "mismatched": pack(np.array([one.mismatched for one in truth], np.int64)),
    }


def _evidence_columns(rows: Sequence[AuditRow]) -> list[dict[str, Any]]:
    names = dict.fromkeys(itertools.chain.from_iterable(row.evidence for row in rows))
    return [
        {
            "name": name,
            "values": pack(np.array([row.evidence.get(name, math.nan) for row in rows], np.float64)),
        }
        for name in names
    ]


def _summary(summary: AuditSummary) -> dict[str, Any]:
    interval = summary.mismatch_interval
    unreadable = summary.unreadable
    return {
        "pairs": summary.pairs,
        "images": summary.images,
        "flagged": summary.flagged,
        "rate": _finite(summary.mismatch_rate),
        "interval": None if interval is None else [_finite(end) for end in interval],
        "duplicatePairs": summary.duplicate_pairs,
        "duplicateImages": summary.duplicate_images,
        "unreadable": None if unreadable is None else len(unreadable),
        "unreadableNames": list((unreadable or ())[:_LISTED_UNREADABLE]),
        "warnings": list(summary.warnings),
        "model": summary.model,
        "dataset": summary.dataset,
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
