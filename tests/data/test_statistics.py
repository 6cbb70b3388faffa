import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.data.pairs import PairTable
from pmpguard.data.statistics import best_text_to_image, dataset_statistics


def table(rows, **columns):
    images, captions = zip(*rows, strict=True)
    return PairTable.from_columns({"image": images, "caption": captions, **columns})


ROWS = [
    ("a", "a pond ."),
    ("a", "a pond ."),
    ("a", "a pond ."),
    ("b", "a pond ."),
    ("b", "two Ponds, near a road on the left"),
    ("c", "a field"),
]


def test_counts_by_hand():
    report = dataset_statistics(table(ROWS, label=["pond", "pond", "pond", "pond", "pond", None]))
    (split,) = report.splits
    assert (split.split, split.pairs, split.images, split.distinct_captions) == ("train", 6, 3, 3)
    assert split.captions_per_image == (1, 2.0, 3)
    assert split.words[0] == 2 and split.words[100] == 8 and split.words[50] == 2
    assert split.vocabulary == len(
        {"a", "pond", "two", "ponds", "near", "road", "on", "the", "left", "field"}
    )
    assert split.with_repeats == pytest.approx(1 / 3)
    assert split.one_sentence == pytest.approx(1 / 3)
    assert split.sharing == pytest.approx(2 / 3)
    assert split.with_direction == pytest.approx(1 / 6)
    assert split.labels == {"pond": 2}
    # "a pond ." is best answered with a: three of its four captions hit.
    assert split.best_t2i[1] == pytest.approx(5 / 6) and split.best_t2i[5] == 1


def test_splits_are_apart_and_both_outputs_name_them():
    report = dataset_statistics(table(ROWS, split=["train"] * 4 + ["test"] * 2))
    assert [(split.split, split.pairs, split.images) for split in report.splits] == [
        ("train", 4, 2),
        ("test", 2, 2),
    ]
    text = report.as_text()
    assert "train" in text and "test" in text and "best t2i R@1 by ids" in text
    assert report.splits[1].pairs == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=10), st.integers(1, 3))
def test_best_recall_against_trying_every_ranking(pairs, rank):
    """For each sentence try every ranking of the images and keep the best number of hits."""
    images = sorted({image for _, image in pairs})
    hits = 0
    for sentence in {sentence for sentence, _ in pairs}:
        own = [image for text, image in pairs if text == sentence]
        hits += max(
            sum(image in ranking[:rank] for image in own) for ranking in itertools.permutations(images)
        )
    carried, times = np.unique(np.array(pairs), axis=0, return_counts=True)
    assert best_text_to_image(carried[:, 0], times, rank) == pytest.approx(hits / len(pairs))


@pytest.mark.real_data
@pytest.mark.skipif(not os.environ.get("PMPGUARD_RSICD"), reason="needs PMPGUARD_RSICD")
def test_rsicd():
    from pmpguard.data.formats import read_pairs

    report = dataset_statistics(read_pairs(Path(os.environ["PMPGUARD_RSICD"]) / "dataset_rsicd.json"))
    splits = {split.split: split for split in report.splits}
    assert {name: split.images for name, split in splits.items()} == {
        "train": 8734,
        "val": 1094,
        "test": 1093,
    }
    assert splits["test"].best_t2i[1] == pytest.approx(0.931, abs=0.0005)
    assert splits["test"].sharing == pytest.approx(0.375, abs=0.0005)
    assert splits["train"].one_sentence == pytest.approx(0.52, abs=0.005)
