"""Galleries held out of datasets that have none."""

from __future__ import annotations

import numpy as np
import pytest

from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import HoldOut, draw_splits
from pmpguard.errors import ConfigError, DataError


def pairs(images: int = 40, captions: int = 2, held: int = 15) -> PairTable:
    """Images with captions each; the last `held` are of split val."""
    names = [f"{number}.png" for number in range(images) for _ in range(captions)]
    splits = ["val" if int(name[:-4]) >= images - held else "train" for name in names]
    return PairTable.from_columns(
        {"image": names, "caption": [f"text {n}" for n in range(len(names))], "split": splits}
    )


def images_of(table: PairTable, split: str) -> set[str]:
    return set(table.split(split).column("image_id"))


def test_whole_images_are_held_out_and_none_is_in_two_splits() -> None:
    table = draw_splits(pairs(), HoldOut(test=7, val=5))
    parts = [images_of(table, split) for split in ("train", "val", "test")]
    assert [len(part) for part in parts] == [28, 5, 7] and len(set.union(*parts)) == 40
    assert len(table) == 80 and table.column("caption") == pairs().column("caption")


def test_a_gallery_of_one_split_leaves_the_rest_of_it_unused() -> None:
    table = draw_splits(pairs(), HoldOut(test=6, val=4, of="val", train=10))
    given = pairs()
    assert images_of(table, "test") | images_of(table, "val") <= images_of(given, "val")
    assert images_of(table, "train") <= images_of(given, "train")
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
    assert all(images_of(first, split) == images_of(second, split) for split in ("train", "val", "test"))
    other = draw_splits(table, HoldOut(test=7, val=5, seed=1))
    assert images_of(other, "test") != images_of(first, "test")
    # with more images to choose from, one that is still chosen was among the first before
    more = draw_splits(pairs(60), HoldOut(test=7, val=5))
    kept = images_of(more, "test") & set(table.column("image_id"))
    assert kept <= images_of(first, "test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (HoldOut(test=30, val=11), "pairs has 40 images, too few to hold out 30"),
        (HoldOut(test=30, val=10), "too few"),
        (HoldOut(test=10, val=6, of="val"), "split 'val' of pairs has 15 images"),
        (HoldOut(test=1, val=1, of="nowhere"), "split 'nowhere' of pairs has 0 images"),
    ],
)
def test_too_few_images_are_an_error(settings: HoldOut, message: str) -> None:
    with pytest.raises(DataError, match=message):
        draw_splits(pairs(), settings)


def test_numbers_must_be_positive() -> None:
    with pytest.raises(ConfigError, match=r"hold_out\.val: 0 images"):
        HoldOut(val=0)
