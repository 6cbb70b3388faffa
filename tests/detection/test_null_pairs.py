"""Null pairs: never labelled ones, of other classes where these are known, in rows of their image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.detection.null_pairs import (
    MAX_NULL_PAIRS,
    MIN_NULL_PAIRS,
    null_pair_count,
    pair_numbers,
    rows_of_images,
    sample_null_pairs,
)
from pmpguard.errors import DataError


def test_null_pairs_stand_in_rows_of_their_image_and_depend_on_the_seed_alone() -> None:
    text_of = torch.arange(90)
    image_of = text_of // 3
    null = sample_null_pairs(text_of, image_of, seed=3)
    assert len(null) == null_pair_count(90) == MIN_NULL_PAIRS
    assert (image_of[null.texts] != null.images).all()
    assert torch.equal(image_of[null.rows], null.images)
    assert len(torch.unique(null.rows)) == 90  # every row's place is taken
    again = sample_null_pairs(text_of, image_of, seed=3)
    assert torch.equal(null.texts, again.texts) and torch.equal(null.rows, again.rows)
    assert not torch.equal(null.texts, sample_null_pairs(text_of, image_of, seed=4).texts)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=20), st.integers(0, 9))
def test_null_pairs_are_never_labelled(pairs: list[tuple[int, int]], seed: int) -> None:
    text_of, image_of = torch.tensor(pairs).T
    every = {(text, image) for text in text_of.tolist() for image in image_of.tolist()}
    if every == set(pairs):
        with pytest.raises(DataError, match="no mismatched pair can be formed"):
            sample_null_pairs(text_of, image_of, seed, count=200)
        return
    null = sample_null_pairs(text_of, image_of, seed, count=200)
    assert len(null) == 200
    assert set(zip(null.texts.tolist(), null.images.tolist(), strict=True)) <= every - set(pairs)
    assert torch.equal(image_of[null.rows], null.images)


def test_null_pairs_are_of_different_classes_where_these_are_known() -> None:
    text_of, image_of = torch.arange(200), torch.arange(200) // 2
    labels = np.arange(100) % 4
    labels[:10] = -1
    null = sample_null_pairs(text_of, image_of, 0, labels, count=2000)
    own, given = labels[image_of[null.texts]], labels[null.images]
    assert ((own != given) | (own == -1)).all()
    assert (own == -1).any() and (given == -1).any()
    one_class = sample_null_pairs(text_of, image_of, 0, torch.zeros(100, dtype=torch.int64), count=2000)
    plain = sample_null_pairs(text_of, image_of, 0, count=2000)
    assert torch.equal(one_class.texts, plain.texts)  # of one class alone there are no others


def test_a_part_of_null_pairs_keeps_its_columns_together() -> None:
    null = sample_null_pairs(torch.arange(9), torch.arange(9), count=50)
    chosen = null.images == 4
    part = null.where(chosen)
    assert len(part) == int(chosen.sum()) and (part.images == 4).all() and (part.rows == 4).all()


def test_there_are_as_many_null_pairs_as_pairs_within_bounds() -> None:
    assert [null_pair_count(n) for n in (1, 50_000, 10**8)] == [MIN_NULL_PAIRS, 50_000, MAX_NULL_PAIRS]


def test_a_row_of_every_image_is_drawn_evenly() -> None:
    image_of = torch.tensor([2, 0, 2, 1, 2, 0])
    images = torch.tensor([0, 1, 2] * 400)
    draws = torch.rand(1200, generator=torch.Generator().manual_seed(0))
    rows = rows_of_images(image_of, images, draws)
    assert torch.equal(image_of[rows], images)
    counts = torch.bincount(rows, minlength=6)
    assert counts[3] == 400 and counts[[1, 5]].min() > 160 and counts[[0, 2, 4]].min() > 100
    edge = rows_of_images(image_of, torch.tensor([0, 2]), torch.tensor([1.0, 1.0]))
    assert torch.equal(image_of[edge], torch.tensor([0, 2]))


def test_numbers_of_pairs_are_checked() -> None:
    texts, images = pair_numbers([0, 1], torch.tensor([1, 0]), 2, 2)
    assert texts.tolist() == [0, 1] and images.tolist() == [1, 0] and texts.dtype == np.int64
    for text_of, image_of, told in (
        ([0, 1], [0, 9], "image_of row 1: 9 is not one of the 3"),
        ([0, 7], [0, 1], "text_of row 1: 7 is not one of the 4"),
        ([0, -1], [0, 1], "text_of row 1: -1"),
        ([0, 1, 2], [0, 1], "text_of has 3 rows but image_of 2"),
        ([[0]], [0], "text_of has shape"),
        ([0.5], [0], "text_of: float64"),
        (["a"], [0], "text_of: <U1"),
    ):
        with pytest.raises(DataError, match=told):
            pair_numbers(text_of, image_of, 4, 3)
