"""Batches: which pairs meet in which step.

The order of an epoch is a pure function of (seed, epoch) and of the pairs, so a run that stops in the middle
goes on at the same place, and every process of a distributed run knows the whole plan: the global batch is
the same for any number of processes, each takes a contiguous slice of it.

Two captions of one image, or two equal captions, must not be each other's negatives. The losses mask such
pairs; the plan keeps them out of one batch where it can, so that little is masked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pmpguard.data.ranges import expand_ranges
from pmpguard.errors import ConfigError, DataError
from pmpguard.stable_random import StableRandom

# Repair goes over the colliding groups this often, and tries this many places for each.
PASSES = 2
TRIES = 32
# An image or caption with more pairs than this is left where it is: with four times as many pairs as there
# are batches it is in nearly all of them anyway, and looking at all its pairs again and again takes long.
COPIES_PER_BATCH = 4
MOST_COPIES = 4096


@dataclass(frozen=True)
class BatchPlan:
    """Which rows, images and captions meet in one step; an image with several captions is encoded once."""

    rows: np.ndarray  # (T,) int64, rows of the table
    images: np.ndarray  # (I,) int64, distinct image codes in order of first appearance
    image_of: np.ndarray  # (T,) int64, index into `images`
    caption_keys: np.ndarray  # (T,) int64, equal captions share a number


def plan_batch(rows: np.ndarray, image_codes: np.ndarray, caption_codes: np.ndarray) -> BatchPlan:
    """The plan of one batch of `rows`.

    >>> plan = plan_batch(np.array([3, 0, 2]), np.array([7, 7, 8, 8]), np.array([0, 1, 2, 2]))
    >>> plan.images.tolist(), plan.image_of.tolist(), plan.caption_keys.tolist()
    ([8, 7], [0, 1, 0], [2, 0, 2])
    """
    images, first, inverse = np.unique(image_codes[rows], return_index=True, return_inverse=True)
    appearance = np.argsort(first)  # (I,) sorted images in order of first appearance
    place = np.empty_like(appearance)
    place[appearance] = np.arange(len(appearance))
    return BatchPlan(rows, images[appearance], place[inverse], caption_codes[rows])


def epoch_order(
    image_codes: np.ndarray,
    caption_codes: np.ndarray,
    batch_size: int,
    seed: int,
    epoch: int,
    captions_per_image: int = 1,
    avoid_collisions: bool = True,
    turn: int = 0,
) -> tuple[np.ndarray, int]:
    """Shuffle the pairs of an epoch; a pure function of its arguments.

    Gives every row once (N,), to be cut every `batch_size`, and how many groups are left in a batch with
    another of the same image or caption.

    Up to `captions_per_image` pairs of one image form a group that stays together (unless the end of a
    batch cuts it). Groups are shuffled, then `avoid_collisions` moves apart groups of one batch that share
    an image or a caption. An epoch that goes over the pairs several times gives each `turn` its number.
    """
    draws = StableRandom("batches", seed, epoch, *([turn] if turn else []))
    rows, sizes = _shuffled_groups(image_codes, captions_per_image, draws)
    starts, sizes = _cut_at_batches(sizes, batch_size)
    plan = _Plan(rows, starts, sizes, batch_size, image_codes, caption_codes)
    colliding = plan.repair(draws) if avoid_collisions else plan.colliding()
    return plan.rows, len(colliding)


def rows_by_turn(repeats: np.ndarray, seed: int, epoch: int) -> list[np.ndarray]:
    """Which rows each turn of an epoch holds, so that row r is in `visits[r]` of them, no two times in one.

    There are as many turns as the most visits. A row begins in a random one and goes on with the next, so
    rows with few visits are spread over all turns.

    >>> [turn.tolist() for turn in rows_by_turn(np.array([2, 0, 2]), 0, 0)]
    [[0, 2], [0, 2]]
    """
    turns = int(repeats.max(initial=0))
    first = StableRandom("turns", seed, epoch).below(max(turns, 1), len(repeats))  # (N,)
    return [np.flatnonzero((turn - first) % turns < repeats) for turn in range(turns)]


def _shuffled_groups(
    image_codes: np.ndarray, group: int, draws: StableRandom
) -> tuple[np.ndarray, np.ndarray]:
    """Rows with the groups one after another in random order (N,), and the sizes of the groups (G,)."""
    count = len(image_codes)
    rows = draws.order(count)
    if group == 1:
        return rows, np.ones(count, dtype=np.int64)
    places, images = _sorted_with_places(image_codes[rows])
    rows = rows[places]  # by image, in random order inside
    new_image = np.flatnonzero(np.r_[True, images[1:] != images[:-1]])
    counts = np.diff(np.r_[new_image, count])
    within = np.arange(count) - np.repeat(new_image, counts)  # place among the image's pairs
    starts = np.flatnonzero(within % group == 0)
    sizes = np.diff(np.r_[starts, count])
    shuffle = draws.order(len(starts))
    return rows[expand_ranges(starts[shuffle], sizes[shuffle])], sizes[shuffle]


def _cut_at_batches(sizes: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and sizes of the groups after cutting those that lie across the end of a batch."""
    ends = np.cumsum(sizes)
    count = int(ends[-1])
    starts = ends - sizes
    borders = np.arange(0, count, batch_size)
    after = np.searchsorted(starts, borders)
    cut = starts[np.minimum(after, len(starts) - 1)] != borders
    starts = np.insert(starts, after[cut], borders[cut])
    return starts, np.diff(np.r_[starts, count])


def _sorted_with_places(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stable argsort along the last axis, and the sorted values; many times faster than `np.argsort`.

    >>> [part.tolist() for part in _sorted_with_places(np.array([4, -2, 4]))]
    [[1, 0, 2], [-2, 4, 4]]
    """
    length = values.shape[-1]
    packed = np.sort(np.multiply(values, length, dtype=np.int64) + np.arange(length), axis=-1)
    sorted_values, places = np.divmod(packed, length)
    return places, sorted_values


class _Occurrences:
    """Where each value of a key occurs: rows sorted by key, found by their bounds."""

    def __init__(self, codes: np.ndarray, limit: int) -> None:
        counts = np.bincount(codes)
        self.codes, self.counts = codes, counts
        self.rows = _sorted_with_places(codes)[0]
        self.bounds = np.r_[0, np.cumsum(counts)]
        self.too_many = counts > limit

    def like(self, rows: np.ndarray) -> np.ndarray:
        """All rows that share a key with one of `rows`."""
        return np.concatenate(
            [self.rows[self.bounds[code] : self.bounds[code + 1]] for code in self.codes[rows]]
        )


class _Plan:
    """The rows of an epoch in their slots, and groups that can trade places with others of their size."""

    def __init__(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        sizes: np.ndarray,
        batch_size: int,
        image_codes: np.ndarray,
        caption_codes: np.ndarray,
    ) -> None:
        self.rows = rows
        self.starts, self.sizes = starts, sizes  # (G,) first slot and length of every group
        self.batch_size = batch_size
        self.keys = (image_codes, caption_codes)
        self.group_of = np.repeat(np.arange(len(starts)), sizes)  # (N,) group of every slot
        self.batches = -(-len(rows) // batch_size)

    def colliding(self) -> np.ndarray:
        """Groups that repeat an image or a caption of an earlier group of their batch."""
        slots = np.arange(self.batches * self.batch_size).reshape(self.batches, self.batch_size)
        rows = self.rows[np.minimum(slots, len(self.rows) - 1)]
        missing = slots >= len(self.rows)  # in the last batch, where it is short
        colliding = []
        for codes in self.keys:
            keys = np.where(missing, -1 - slots, codes[rows])
            order, keys = _sorted_with_places(keys)  # equal keys become neighbours, in order of their slots
            groups = self.group_of[np.minimum(order + slots[:, :1], len(self.rows) - 1)]
            repeated = (keys[:, 1:] == keys[:, :-1]) & (groups[:, 1:] != groups[:, :-1])
            colliding.append(groups[:, 1:][repeated])
        return np.unique(np.concatenate(colliding))

    def repair(self, draws: StableRandom) -> np.ndarray:
        """Trade colliding groups for groups of other batches where that removes a collision and adds none.

        Returns the groups that still collide.
        """
        colliding = self.colliding()
        if not len(colliding) or self.batches == 1:
            return colliding
        limit = min(COPIES_PER_BATCH * self.batches, MOST_COPIES)
        occurrences = [_Occurrences(codes, limit) for codes in self.keys]
        slot_of = np.empty_like(self.rows)
        slot_of[self.rows] = np.arange(len(self.rows))
        for _ in range(PASSES):
            for group in colliding[draws.order(len(colliding))]:
                self._move(int(group), occurrences, slot_of, draws)
            colliding = self.colliding()
            if not len(colliding):
                break
        return colliding

    def _move(
        self, group: int, occurrences: list[_Occurrences], slot_of: np.ndarray, draws: StableRandom
    ) -> None:
        """Trade `group` for a random group of another batch, if one is found that collides with nothing."""
        batch = int(self.starts[group]) // self.batch_size
        neighbours = self._neighbours(group, occurrences, slot_of)
        if neighbours is None:
            return
        used = neighbours // self.batch_size
        if batch not in used:
            return  # an earlier trade took its twin away
        size = self.sizes[group]
        open_batches = np.ones(self.batches, dtype=bool)
        open_batches[used] = False
        choices = np.flatnonzero(open_batches)
        if not len(choices):  # so it will be for the other copies of a key that can fill every batch
            for one in occurrences:
                codes = one.codes[self.rows[self.starts[group] : self.starts[group] + size]]
                one.too_many[codes[one.counts[codes] >= self.batches]] = True
            return
        picks = choices[draws.below(len(choices), TRIES)] * self.batch_size + draws.below(
            self.batch_size, TRIES
        )
        picks = picks[picks < len(self.rows)]  # the last batch may be short
        for other in self.group_of[picks]:
            if self.sizes[other] != size:
                continue
            near = self._neighbours(other, occurrences, slot_of)
            if near is None:
                continue
            near = near[(near // self.batch_size == batch) & (self.group_of[near] != group)]
            if not len(near):
                here, there = (slice(self.starts[one], self.starts[one] + size) for one in (group, other))
                self.rows[here], self.rows[there] = self.rows[there].copy(), self.rows[here].copy()
                for slots in (here, there):
                    slot_of[self.rows[slots]] = np.arange(slots.start, slots.stop)
                return

    def _neighbours(
        self, group: int, occurrences: list[_Occurrences], slot_of: np.ndarray
    ) -> np.ndarray | None:
        """Slots outside the group that hold its image or one of its captions; None for too many."""
        rows = self.rows[self.starts[group] : self.starts[group] + self.sizes[group]]
        if any(one.too_many[one.codes[rows]].any() for one in occurrences):
            return None
        slots = slot_of[np.concatenate([one.like(rows) for one in occurrences])]
        return np.asarray(slots[self.group_of[slots] != group])


class PairSampler:
    """The batches of a training run, for every epoch, process and starting step.

    Args:
        image_codes, caption_codes: (N,) pairs with one image, or with equal captions, share a number
            from 0 on, as `PairTable.image_codes` and `.caption_codes` give them.
        batch_size: pairs per step, over all processes.
        captions_per_image: pairs of one image that go together, so that it is encoded once for them.
        avoid_collisions: keep other pairs of one image, and equal captions, out of the same batch where
            possible.
        drop_last: leave out the last, incomplete batch; which pairs that hits changes with the epoch.
    """

    def __init__(
        self,
        image_codes: np.ndarray,
        caption_codes: np.ndarray,
        batch_size: int,
        seed: int,
        captions_per_image: int = 1,
        avoid_collisions: bool = True,
        drop_last: bool = True,
    ) -> None:
        self.image_codes = image_codes
        self.caption_codes = caption_codes
        self.batch_size = batch_size
        self.seed = seed
        self.captions_per_image = captions_per_image
        self.avoid_collisions = avoid_collisions
        self.drop_last = drop_last
        self.repeats: np.ndarray | None = None  # (N,) how often an epoch comes to each row; None: once
        self._latest: tuple[int, np.ndarray] | None = None
        self._check()

    def _check(self) -> None:
        for name, value, least in (
            ("batch_size", self.batch_size, 2),
            ("captions_per_image", self.captions_per_image, 1),
            ("seed", self.seed, 0),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}", fix=f"use {least} or more")
        pairs = len(self.image_codes)
        if len(self.caption_codes) != pairs:
            raise DataError(f"{pairs} image codes but {len(self.caption_codes)} caption codes")
        if not pairs:
            raise DataError("there are no pairs to train on", fix="check the split's name and the filters")
        if min(self.image_codes.min(), self.caption_codes.min()) < 0:
            raise DataError("image and caption codes number things from 0 on, but one is negative")
        if (self.image_codes == self.image_codes[0]).all():
            raise DataError(
                f"all {pairs} pairs show one image; training needs others to tell it from",
                fix="use a dataset with at least two images",
            )
        if self.batch_size > pairs:
            raise DataError(
                f"batch_size is {self.batch_size} but there are only {pairs} pairs",
                fix=f"use a batch_size of {pairs} or less",
            )

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(len(self.image_codes), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch (N,), to be cut every `batch_size`; the latest order is kept."""
        if self._latest is None or self._latest[0] != epoch:
            turns = [np.arange(len(self.image_codes))]
            if self.repeats is not None:
                turns = rows_by_turn(self.repeats, self.seed, epoch)
            ordered = [self._turn(epoch, turn, rows) for turn, rows in enumerate(turns)]
            self._latest = epoch, np.concatenate(ordered)
        return self._latest[1]

    def _turn(self, epoch: int, turn: int, rows: np.ndarray) -> np.ndarray:
        """The given rows in the order of this turn of the epoch."""
        order, _ = epoch_order(
            self.image_codes[rows],
            self.caption_codes[rows],
            self.batch_size,
            self.seed,
            epoch,
            self.captions_per_image,
            self.avoid_collisions,
            turn,
        )
        return np.asarray(rows[order])

    def visit(self, repeats: np.ndarray | None) -> None:
        """From now on an epoch comes this often to each row (N,); as often in all as there are rows."""
        if repeats is not None and (repeats.shape != self.image_codes.shape or repeats.sum() < len(repeats)):
            raise DataError(
                f"{len(repeats)} repeats add up to {repeats.sum()}, an epoch has {len(self.image_codes)} rows"
            )
        self.repeats = None if repeats is None or (repeats == 1).all() else repeats
        self.forget()

    def forget(self) -> None:
        """Plan anew: the codes have changed."""
        self._latest = None

    def batch_rows(self, epoch: int, step: int) -> np.ndarray:
        """(T,) int64: the rows of one global batch."""
        if not 0 <= step < self.steps_per_epoch:
            raise DataError(f"step {step} is outside the epoch's {self.steps_per_epoch} steps")
        return self.order(epoch)[step * self.batch_size : (step + 1) * self.batch_size]

    def batches(self, epoch: int, start_step: int = 0, rank: int = 0, world: int = 1) -> Iterator[np.ndarray]:
        """The rows of this process for every step from `start_step` on.

        The slices of all ranks, one after another, are the global batch. Only an incomplete last batch of
        fewer pairs than processes leaves a rank with nothing.
        """
        if not 0 <= rank < world <= self.batch_size:
            raise ConfigError(
                f"rank {rank} of {world} processes cannot share a batch of {self.batch_size}",
                fix="0 <= rank < world, and a batch_size of at least one pair per process",
            )
        if not 0 <= start_step <= self.steps_per_epoch:
            raise DataError(f"step {start_step} is outside the epoch's {self.steps_per_epoch} steps")
        for step in range(start_step, self.steps_per_epoch):
            rows = self.batch_rows(epoch, step)
            yield rows[len(rows) * rank // world : len(rows) * (rank + 1) // world]
