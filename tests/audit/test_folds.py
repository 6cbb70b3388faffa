"""No image, nor a copy of it, is on both sides of a fold."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.audit.folds import split_images, training_images


@settings(max_examples=60, deadline=None)
@given(st.integers(12, 80), st.integers(2, 5), st.integers(0, 1000), st.data())
def test_folds_cover_all_images_evenly_and_keep_copies_together(images, folds, seed, data):
    duplicates = data.draw(st.lists(st.lists(st.integers(0, images - 1), min_size=2, max_size=3), max_size=4))
    fold = split_images(images, folds, seed, duplicates)
    assert fold.shape == (images,) and set(fold.tolist()) <= set(range(folds))
    for members in duplicates:
        assert len({int(fold[member]) for member in members}) == 1
    counts = np.bincount(fold, minlength=folds)
    assert counts.max() - counts.min() <= max(1, 12 if duplicates else 1)
    np.testing.assert_array_equal(fold, split_images(images, folds, seed, duplicates))
    for judged in range(folds):
        train, validation = training_images(fold, judged, seed)
        assert len(validation) >= 2 and len(train)
        assert not set(train.tolist()) & set(validation.tolist())
        assert sorted([*train, *validation]) == np.flatnonzero(fold != judged).tolist()


def test_another_seed_gives_other_folds():
    assert (split_images(100, 3, 0) != split_images(100, 3, 1)).any()
