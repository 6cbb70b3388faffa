"""Which rows a run uses: splits held out of a dataset that has none of its own, one caption per image.

For a hold-out, images are ordered by a hash of their id and the seed, so that which ones are held out depends
on nothing else: not on the order of shards, nor on how many there are.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError

log = logging.getLogger("pmpguard")


@dataclass(frozen=True)
class HoldOut:
    """Which images, with all their captions, are kept from training.

    Args:
        test: images of the test gallery.
        val: further images to select the model on.
        train: at most this many images are trained on; all that are left by default.
        of: the split both are drawn from, the rest of which is not used; by default the whole dataset.
        seed: another number holds out others.
    """

    test: int = 5000
    val: int = 5000
    train: int | None = None
    of: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("test", "val", "train"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"hold_out.{name}: {count} images", fix="give at least one")


def draw_splits(table: PairTable, settings: HoldOut) -> PairTable:
    """The table with its splits drawn anew; rows in none are left out, the others keep their order."""
    splits = np.array(table.column("split"))
    first = table.first_rows
    allowed = np.ones(len(first), bool) if not settings.of else splits[first] == settings.of
    trained = np.ones(len(first), bool) if not settings.of else splits[first] == "train"
    ids = table.arrow["image_id"].take(pa.array(first)).to_pylist()
    keys = np.array([_key(name, settings.seed) for name in ids], np.uint64)  # (images,)
    order = np.argsort(keys, kind="stable")
    drawn = order[allowed[order]]
    held, rest = drawn[: settings.test + settings.val], order[trained[order]]
    rest = rest[~np.isin(rest, held)][: settings.train]
    if len(held) < settings.test + settings.val or not len(rest):
        where = f"split {settings.of!r} of {table.name}" if settings.of else table.name
        raise DataError(
            f"{where} has {len(drawn):,} images, too few to hold out {settings.test:,} for the test and "
            f"{settings.val:,} to select the model on",
            fix="give smaller numbers as hold_out.test and hold_out.val",
        )
    split_of = np.full(len(first), "", object)  # by image
    split_of[rest] = "train"
    split_of[held[: settings.test]] = "test"
    split_of[held[settings.test :]] = "val"
    new = split_of[table.image_codes]  # (N,)
    return table.with_column("split", pa.array(new, pa.string())).filter(new != "")


def keep_one_caption(table: PairTable, seed: int = 11, splits: Sequence[str] = ("train",)) -> PairTable:
    """The table with one caption for every image of `splits`; all rows of other splits stay.

    The rule, so that anybody can repeat it: walk through the rows of `splits` in the table's order and
    collect the rows of each image (equal `image_id`). With one `random.Random(seed)`, call `.choice` on the
    list of rows of each image, images in the order of their first appearance, also where the list has one
    row. The chosen rows stay where they are.

    >>> table = PairTable.from_columns({"image": ["a", "a", "b", "b"], "caption": ["1", "2", "3", "4"]})
    >>> keep_one_caption(table).captions
    ['2', '4']
    """
    if seed < 0:
        raise ConfigError(f"a seed cannot be negative, got {seed}", fix="use 0 or a positive number")
    names = set(table.splits())
    for split in splits:
        if split not in names:
            raise DataError(
                f"{table.name}: no split named {split!r}", fix=f"this dataset has {', '.join(table.splits())}"
            )
    reduced = pc.is_in(table.arrow["split"], pa.array(list(splits), pa.string())).to_numpy()  # (N,)
    rows_of: dict[int, list[int]] = {}
    for row in np.flatnonzero(reduced):
        rows_of.setdefault(int(table.image_codes[row]), []).append(int(row))
    draw = random.Random(seed)
    chosen = [draw.choice(rows) for rows in rows_of.values()]
    mask = ~reduced
    mask[chosen] = True
    return table.filter(mask)


def _key(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big")


def with_captions(table: PairTable) -> PairTable:
    """The pairs whose caption is not empty; how many are is said. A published full stop stays."""
    told = np.array([bool(caption.strip()) for caption in table.captions], dtype=bool)
    if told.all():
        return table
    log.warning("%s: %d pairs have no caption and are left out", table.name, (~told).sum())
    return table.filter(told)
