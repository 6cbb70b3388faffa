"""Galleries held out of datasets that have none."""

from __future__ import annotations

import numpy as np
import pytest

from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import HoldOut, draw_splits
from pmpguard.errors import ConfigError, DataError


def pairs(pictures: int = 40, captions: int = 2, held: int = 15) -> PairTable:
    """Pictures with captions each; the last `held` are of split val."""
    names = [f"{number}.png" for number in range(pictures) for _ in range(captions)]
    splits = ["val" if int(name[:-4]) >= pictures - held else "train" for name in names]
    return PairTable.from_columns(
        {"image": names, "caption": [f"text {n}" for n in range(len(names))], "split": splits}
    )


def pictures_of(table: PairTable, split: str) -> set[str]:
    return set(table.split(split).column("image_id"))


def test_whole_pictures_are_held_out_and_none_is_in_two_splits() -> None:
    table = draw_splits(pairs(), HoldOut(test=7, val=5))
    parts = [pictures_of(table, split) for split in ("train", "val", "test")]
    assert [len(part) for part in parts] == [28, 5, 7] and len(set.union(*parts)) == 40
    assert len(table) == 80 and table.column("caption") == pairs().column("caption")


def test_a_gallery_of_one_split_leaves_the_rest_of_it_unused() -> None:
    table = draw_splits(pairs(), HoldOut(test=6, val=4, of="val", train=10))
    given = pairs()
    assert pictures_of(table, "test") | pictures_of(table, "val") <= pictures_of(given, "val")
    assert pictures_of(table, "train") <= pictures_of(given, "train")
    assert table.splits() == {"train": 20, "test": 12, "val": 8} or set(table.splits()) == {
        "train",
        "val",
        "test",
    }
    assert len(table) == 2 * (6 + 4 + 10)


def test_the_choice_depends_on_seed_and_ids_alone() -> None:
    settings = HoldOut(test=7, val=5)
    table = pairs()
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    first, second = draw_splits(table, settings), draw_splits(shuffled, settings)
    assert all(pictures_of(first, split) == pictures_of(second, split) for split in ("train", "val", "test"))
    other = draw_splits(table, HoldOut(test=7, val=5, seed=1))
    assert pictures_of(other, "test") != pictures_of(first, "test")
    # with more pictures to choose from, one that is still chosen was among the first before
    more = draw_splits(pairs(60), HoldOut(test=7, val=5))
    kept = pictures_of(more, "test") & set(table.column("image_id"))
    assert kept <= pictures_of(first, "test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (HoldOut(test=30, val=11), "pairs has 40 pictures, too few to hold out 30"),
        (HoldOut(test=30, val=10), "too few"),
        (HoldOut(test=10, val=6, of="val"), "split 'val' of pairs has 15 pictures"),
        (HoldOut(test=1, val=1, of="nowhere"), "split 'nowhere' of pairs has 0 pictures"),
    ],
)
def test_too_few_pictures_are_an_error(settings: HoldOut, message: str) -> None:
    with pytest.raises(DataError, match=message):
        draw_splits(pairs(), settings)


def test_numbers_must_be_positive() -> None:
    with pytest.raises(ConfigError, match=r"hold_out\.val: 0 pictures"):
        HoldOut(val=0)
