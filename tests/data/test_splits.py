"""Galleries held out of datasets that have none."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import HoldOut, draw_splits, keep_one_caption, with_captions
from pmpguard.errors import ConfigError, DataError


def pairs(images: int = 40, captions: int = 2, held: int = 15) -> PairTable:
    """Images with captions each; the last `held` are of split val."""
    names = [f"{number}.png" for number in range(images) for _ in range(captions)]
    splits = ["val" if int(name[:-4]) >= images - held else "train" for name in names]
    return PairTable.from_columns(
        {"image": names, "caption": [f"text {n}" for n in range(len(names))], "split": splits}
    )


def test_empty_captions_are_left_out_and_published_full_stops_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = PairTable.from_columns(
        {"image": list("abcd"), "caption": ["a pond", " .", "", " \t"], "split": ["train"] * 4}
    )
    assert with_captions(table).captions == ["a pond", " ."]  # noise files number the published pairs
    assert "2 pairs have no caption and are left out" in caplog.text
    assert with_captions(pairs()).fingerprint == pairs().fingerprint


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


def shuffled_pairs() -> PairTable:
    """Images with two to four captions, rows of images and splits mixed."""
    names = [f"{number}.png" for number in range(60) for _ in range(2 + number % 3)]
    order = np.random.RandomState(3).permutation(len(names))
    return PairTable.from_columns(
        {
            "image": [names[n] for n in order],
            "caption": [f"text {n}" for n in order],
            "split": ["train" if int(names[n][:-4]) % 4 else "test" for n in order],
        }
    )


def test_one_caption_is_kept_as_the_written_rule_says() -> None:
    table = shuffled_pairs()
    kept = keep_one_caption(table, seed=5)
    captions: dict[str, list[str]] = {}
    for pair in table:
        if pair.split == "train":
            captions.setdefault(pair.image_id, []).append(pair.caption)
    draw = random.Random(5)
    expected = {image: draw.choice(texts) for image, texts in captions.items()}
    train = kept.split("train")
    assert dict(zip(train.column("image_id"), train.captions, strict=True)) == expected
    assert len(train) == len(expected) == 45
    assert kept.split("test").captions == table.split("test").captions
    ids = [row for row in table.column("pair_id") if row in set(kept.column("pair_id"))]
    assert kept.column("pair_id") == ids  # rows stay in the table's order


def test_one_caption_of_every_split_asked_for_and_the_same_again() -> None:
    table = shuffled_pairs()
    both = keep_one_caption(table, splits=("train", "test"))
    assert len(both) == 60 and len(set(both.column("image_id"))) == 60
    assert keep_one_caption(both, splits=("train", "test")).captions == both.captions
    assert keep_one_caption(table).fingerprint == keep_one_caption(table, seed=11).fingerprint
    assert keep_one_caption(table, seed=12).captions != keep_one_caption(table).captions


def test_an_image_in_two_splits_keeps_its_captions_of_the_other_split() -> None:
    table = PairTable.from_columns(
        {"image": ["a"] * 4, "caption": list("1234"), "split": ["train", "test", "train", "test"]}
    )
    kept = keep_one_caption(table)
    assert kept.split("test").captions == ["2", "4"]
    assert kept.split("train").captions == [random.Random(11).choice(["1", "3"])]


def test_a_split_that_is_not_there_and_a_negative_seed_are_errors() -> None:
    with pytest.raises(DataError, match=r"no split named 'dev'.*\n.*this dataset has train, val"):
        keep_one_caption(pairs(), splits=("train", "dev"))
    with pytest.raises(ConfigError, match="seed cannot be negative"):
        keep_one_caption(pairs(), seed=-1)
