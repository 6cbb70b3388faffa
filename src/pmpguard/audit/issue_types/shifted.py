"""`shifted`: runs of rows whose captions belong to a neighbouring row, the same number of rows away.

A line lost or doubled in a list of captions shifts all that follow. Of every row it is asked how much better
its caption fits the image `offset` rows on than its own; a run is where the sum of that grows high (CUSUM).
Where images have several captions, images are counted, too, instead of rows.

A run's captions are moved to the rows they belong to. What is left over at one end may be what the other end
lacks, when captions were turned round; else images at an end stay without a caption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pmpguard.audit.issue_types.found import Array, Found, Numbers

NEAR, FARTHEST = 5, 32  # offsets: always tried, and tried as far as MOST_ASKED allows
MOST_ASKED = 500_000  # pairs, for all offsets beyond NEAR
FEWEST = 5  # rows of a run
MATCH = 0.9  # of the pairs of a run, put right
STRONGEST = 4.0  # that one row counts
MARGIN = 0.3
CERTAIN = 4.0  # beside the logarithm of the number of places a run may begin at

# numbers of captions (P,), of images (P,) and of the rows whose captions these are -> (P,) logarithms of how
# much likelier their evidence is of a match than of a mismatch; NaN where it cannot be told
LogRatio = Callable[[Numbers, Numbers, Numbers], Array]


@dataclass(frozen=True)
class Shifts:
    """The issue, and for each row the row that its image's own caption stands in; -1 for none."""

    found: Found
    source: Numbers  # (N,)


@dataclass(frozen=True)
class _Order:
    """Rows in order, and how to count from one to the next."""

    rows: Numbers  # (N,) in order of places
    place: Numbers  # (N,) of each row
    rank: Numbers  # (N,) among the rows of its place
    unit: str

    def targets(self, offset: int) -> Numbers:
        """(N,): the row whose image the row's caption belongs to if shifted by `offset`; -1 for none."""
        ranks = int(self.rank.max()) + 1
        row_at = np.full((int(self.place.max()) + 1) * ranks, -1, np.int64)
        row_at[self.place * ranks + self.rank] = np.arange(len(self.place))
        wanted = (self.place + offset) * ranks + self.rank
        inside = (wanted >= 0) & (wanted < len(row_at))
        found: Numbers = np.where(inside, row_at[np.where(inside, wanted, 0)], -1)
        return found


def find_shifts(caption_of: Numbers, image_of: Numbers, place: Numbers, log_ratio: LogRatio) -> Shifts:
    """Of pairs (N,) that stand in the rows `place` of their dataset, in rising order."""
    count = len(place)
    rows = np.arange(count)
    score, source = np.ones(count), np.full(count, -1)
    notes: dict[int, str] = {}
    if count < FEWEST:
        return Shifts(Found.of(score), source)
    own = np.clip(np.nan_to_num(log_ratio(caption_of, image_of, rows)), -6, 6)  # (N,)
    match_rate = float(np.clip((own > 0).mean(), 0.02, 0.98))
    as_labelled = np.maximum(np.log(match_rate * np.exp(own) + 1 - match_rate), own)
    least = float(np.log(count * 4 * FARTHEST)) + CERTAIN
    runs: list[tuple[float, Numbers, Numbers, int, str]] = []  # total, rows, targets, offset, unit
    for order in _orders(image_of, place):
        suspects = order.rows[_dense(own[order.rows] < 0)]
        farthest = min(FARTHEST, NEAR + MOST_ASKED // max(2 * len(suspects), 1))
        for offset in (*range(-farthest, 0), *range(1, farthest + 1)):
            targets = order.targets(offset)
            asked = suspects[targets[suspects] >= 0]
            differ = image_of[targets[asked]] != image_of[asked]
            gain = np.full(count, -STRONGEST)  # by row
            gain[suspects] = 0.0
            asked = asked[differ]
            if not len(asked):
                continue
            there = np.clip(log_ratio(caption_of[asked], image_of[targets[asked]], asked), -6, 6)
            better = np.log(MATCH * np.exp(there) + 1 - MATCH) - as_labelled[asked] - MARGIN
            gain[asked] = np.nan_to_num(np.clip(better, -STRONGEST, STRONGEST))
            score[asked] = np.minimum(score[asked], 1 / (1 + np.exp(gain[asked])))
            for start, stop in runs_of(gain[order.rows], least):
                members = order.rows[start:stop]
                if len(members) >= FEWEST:
                    runs.append((float(gain[members].sum()), members, targets, offset, order.unit))
    taken = np.zeros(count, bool)
    for _, members, targets, offset, unit in sorted(runs, key=lambda run: (-round(run[0], 6), abs(run[3]))):
        if taken[members].any():
            continue
        moved = _repair(members, targets, caption_of, image_of, own, log_ratio, source)
        taken[members] = taken[moved] = True
        side = "after" if offset > 0 else "before"
        plural = "s" if abs(offset) > 1 else ""
        note = f"the caption belongs {abs(offset)} {unit}{plural} {side}"
        notes |= dict.fromkeys(members.tolist(), note)
        for row in moved.tolist():
            notes.setdefault(row, f"at the end of a run shifted by {abs(offset)} {unit}{plural}")
    # a single row that fits its neighbour better is no run, and none of a run stands above it
    score = np.where(taken, np.minimum(score, 0.49), np.maximum(score, 0.5))
    return Shifts(Found.of(score, notes), source)


def _orders(image_of: Numbers, place: Numbers) -> Iterator[_Order]:
    yield _Order(np.argsort(place, kind="stable"), place, np.zeros(len(place), np.int64), "row")
    first, image = np.unique(image_of, return_index=True, return_inverse=True)[1:]
    if len(first) == len(place):
        return
    order = np.argsort(np.argsort(first, kind="stable"), kind="stable")  # of images, by first appearance
    position = order[image.ravel()]
    rows = np.lexsort([place, position])
    starts = np.searchsorted(position[rows], position[rows])
    rank = np.empty_like(place)
    rank[rows] = np.arange(len(rows)) - starts
    yield _Order(rows, position, rank, "image")


def _dense(suspect: np.ndarray, window: int = 9, share: float = 0.5) -> np.ndarray:
    """(N,) bool: where most rows around are suspect, so that runs may be there."""
    around = np.convolve(suspect, np.ones(window), "same") >= share * window
    wide: np.ndarray = np.convolve(around, np.ones(window), "same") > 0
    return wide


def runs_of(gain: Array, least: float) -> Iterator[tuple[int, int]]:
    """Where the sum of (N,) gains rises by `least` or more: from where it begins to, up to its height.

    >>> list(runs_of(np.array([-1.0, 2, 2, 2, -1, -9, 1]), 5.0))
    [(1, 4)]
    """
    sums = np.cumsum(gain)
    lowest = np.minimum.accumulate(np.minimum(np.concatenate([[0.0], sums[:-1]]), sums))
    if (sums - lowest).max(initial=0.0) < least:
        return
    total = height = 0.0
    start = stop = 0
    for row, step in enumerate([*gain.tolist(), -np.inf]):
        total += step
        if total > height:
            height, stop = total, row + 1
        if total <= 0 or height - total > least:
            if height >= least:
                yield start, stop
            total, height, start = 0.0, 0.0, row + 1


def _repair(
    members: Numbers,
    targets: Numbers,
    caption_of: Numbers,
    image_of: Numbers,
    own: Array,
    log_ratio: LogRatio,
    source: Numbers,
) -> Numbers:
    """Write into `source` (N,) where the captions of a run's images stand; returns rows at its ends."""
    goals = targets[members]
    moved = goals >= 0
    source[goals[moved]] = members[moved]
    lacking = np.setdiff1d(members, goals[moved])
    over = np.setdiff1d(goals[moved], members)
    fits = own[over] > 0  # the run has ended there: the row's caption is its own
    source[over[fits]] = -1
    over = over[~fits]
    if len(over) and len(over) == len(lacking):  # turned round
        ratios = log_ratio(caption_of[over], image_of[lacking], over)
        if np.nan_to_num(ratios).mean() > 0:
            source[lacking] = over
    return np.concatenate([lacking, over])
