"""The rules of pseudo-matched sets, checked one row at a time by plain Python."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from helpers.noise_rules import broken_rules, make_table
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.noise.inject import corrupt_pairs, partial_corruption


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    level=st.sampled_from(["caption", "image"]),
    mode=st.sampled_from([None, "replace"]),
    captions=st.integers(1, 5),
    sentences=st.integers(12, 300),
)
def test_every_rule_holds(rate, seed, level, mode, captions, sentences):
    clean = make_table(captions=captions, sentences=sentences, seed=seed)
    result = corrupt_pairs(clean, rate, seed, level, mode)
    assert broken_rules(clean, result) == []
    wrong = int(result.is_noisy.sum())
    assert wrong == round(rate * 32) * captions if level == "image" else wrong == round(rate * 32 * captions)
    assert result.effective_rate == wrong / (32 * captions)
    assert result.requested_rate == rate
    assert result.fingerprint == clean.fingerprint


@settings(max_examples=40, deadline=None)
@given(rate=st.floats(0.3, 1), seed=st.integers(0, 10**6), level=st.sampled_from(["caption", "image"]))
def test_permute_uses_each_chosen_caption_once(rate, seed, level):
    clean = make_table(classes=12, sentences=300, seed=3)
    result = corrupt_pairs(clean, rate, seed, level, "permute")
    assert result.mode == "permute"
    assert broken_rules(clean, result) == []
    chosen = np.flatnonzero(result.is_noisy)
    assert sorted(result.source_rows[chosen]) == chosen.tolist()


def test_image_level_moves_caption_sets_together():
    clean = make_table(sentences=300)
    result = corrupt_pairs(clean, 0.5, seed=1, level="image")
    assert result.mode == "permute"
    images = clean.image_codes
    for image in np.unique(images[result.is_noisy]):
        rows = np.flatnonzero(images == image)
        assert result.is_noisy[rows].all()
        sources = images[result.source_rows[rows]]
        assert len(set(sources.tolist())) == 1 and sources[0] != image
        assert len(set(result.source_rows[rows].tolist())) == len(rows)


def test_images_with_different_numbers_of_captions():
    columns = {"image": ["a"] * 3 + ["b"] + ["c"] * 2, "caption": ["1", "2", "3", "4", "5", "6"]}
    clean = PairTable.from_columns(columns)
    for seed in range(20):
        result = corrupt_pairs(clean, 1.0, seed, "image", "replace")
        assert broken_rules(clean, result) == [] and result.is_noisy.all()


def test_one_chosen_image_cannot_be_shuffled_so_it_is_replaced():
    clean = make_table(images=10)
    result = corrupt_pairs(clean, 1 / 8, seed=0, level="image")
    assert result.mode == "replace" and int(result.is_noisy.sum()) == 5
    with pytest.raises(DataError, match="found no shuffle of 1 images"):
        corrupt_pairs(clean, 1 / 8, seed=0, level="image", mode="permute")


def test_same_seed_same_table_and_known_values():
    clean = make_table()
    first, again = corrupt_pairs(clean, 0.4, 7), corrupt_pairs(make_table(), 0.4, 7)
    assert first.table.fingerprint == again.table.fingerprint
    assert np.array_equal(first.source_rows, again.source_rows)
    assert not np.array_equal(first.is_noisy, corrupt_pairs(clean, 0.4, 8).is_noisy)
    # Fixed for ever: noise must not change with numpy's or our version.
    small = PairTable.from_columns({"image": list("abcdefgh"), "caption": list("ABCDEFGH")})
    assert "".join(corrupt_pairs(small, 0.5, 0).table.captions) == "ABCDHABF"
    assert "".join(corrupt_pairs(small, 1.0, 0, mode="permute").table.captions) == "CEHFADBG"


def test_sources_are_drawn_evenly():
    clean = PairTable.from_columns({"image": list("abcde"), "caption": list("ABCDE")})
    counts = np.zeros((5, 5))
    for seed in range(1000):
        sources = corrupt_pairs(clean, 1.0, seed).source_rows
        counts[np.arange(5), sources] += 1
    assert (np.diag(counts) == 0).all()
    # 250 expected in each of the 20 cells, standard deviation 13.7: five of them either way.
    assert np.abs(counts[~np.eye(5, dtype=bool)] - 250).max() < 68


def test_rare_sources_are_found():
    """One caption in a thousand is usable for most rows: found, not given up."""
    captions = ["the usual"] * 999 + ["another"]
    clean = PairTable.from_columns({"image": [str(row) for row in range(1000)], "caption": captions})
    result = corrupt_pairs(clean, 1.0, 0)
    assert result.table.captions == ["another"] * 999 + ["the usual"]


def test_class_rule_can_be_dropped():
    columns = {"image": list("abcd"), "caption": list("ABCD"), "label": ["pond"] * 4}
    clean = PairTable.from_columns(columns)
    with pytest.raises(DataError, match="same scene class"):
        corrupt_pairs(clean, 0.5, 0)
    result = corrupt_pairs(clean, 1.0, 0, other_class=False)
    assert broken_rules(clean, result, other_class=False) == [] and result.is_noisy.all()


def test_empty_labels_count_as_unknown():
    clean = PairTable.from_columns({"image": list("abcd"), "caption": list("ABCD"), "label": [""] * 4})
    assert corrupt_pairs(clean, 1.0, 0).is_noisy.all()


@pytest.mark.parametrize("level", ["caption", "image"])
def test_equal_captions_are_an_error_that_says_so(level):
    clean = PairTable.from_columns({"image": list("abcd"), "caption": ["a pond"] * 4})
    with pytest.raises(DataError, match=r"row 0.*all captions of the split are equal"):
        corrupt_pairs(clean, 1.0, 0, level)
    assert not corrupt_pairs(clean, 0.0, 0, level).is_noisy.any()


@pytest.mark.parametrize("rate", [-0.1, 1.01, float("nan"), float("inf")])
def test_rate_outside_the_range(rate):
    with pytest.raises(ConfigError, match="rate is"):
        corrupt_pairs(make_table(), rate, 0)
    with pytest.raises(ConfigError, match="rate is"):
        partial_corruption(make_table(), [], rate, 0)


def test_wrong_settings_are_named():
    clean = make_table()
    with pytest.raises(ConfigError, match="level 'pixel'"):
        corrupt_pairs(clean, 0.1, 0, "pixel")
    with pytest.raises(ConfigError, match="mode 'melt'"):
        corrupt_pairs(clean, 0.1, 0, mode="melt")
    with pytest.raises(ConfigError, match="negative"):
        corrupt_pairs(clean, 0.1, -1)
    with pytest.raises(DataError, match=r"no split named 'dev'\nFix: this dataset has train, test"):
        corrupt_pairs(clean, 0.1, 0, split="dev")


def test_partly_wrong_captions():
    clean = make_table(images=20, sentences=300)
    train = [row for row, pair in enumerate(clean) if pair.split == "train"]
    offers = [(row, f"{clean.row(row).caption} {extra}") for row in train for extra in ("twice", "in red")]
    offers += [(row, clean.row(row).caption) for row in train]  # right captions must never be taken
    result = partial_corruption(clean, offers, 0.4, seed=5)
    assert int(result.is_noisy.sum()) == round(0.4 * len(train)) and result.mode == "partial"
    endings = set()
    for row, (before, after) in enumerate(zip(clean, result.table, strict=True)):
        if result.is_noisy[row]:
            assert (row, after.caption) in offers and after.caption != before.caption
            assert result.source_rows[row] == -1
            endings.add(after.caption.split()[-1])
        else:
            assert before == after and result.source_rows[row] == row
    assert endings == {"twice", "red"}
    again = partial_corruption(clean, offers, 0.4, seed=5)
    assert again.table.fingerprint == result.table.fingerprint


def test_partly_wrong_captions_must_suffice_and_fit():
    clean = make_table(images=5)
    with pytest.raises(DataError, match="needs wrong captions for 10 pairs; 1 have one"):
        partial_corruption(clean, [(0, "new"), (0, "newer")], 0.5, 0)
    with pytest.raises(DataError, match="row 24, which is not in split 'train'"):
        partial_corruption(clean, [(24, "new")], 0.1, 0)
    with pytest.raises(DataError, match="row -1"):
        partial_corruption(clean, [(-1, "new")], 0.1, 0)


@pytest.mark.slow
def test_a_million_pairs_take_seconds():
    count = 1_000_000
    numbers = np.arange(count)

    def text(values: np.ndarray) -> pa.Array:
        return pa.array(values).cast(pa.string())

    columns = pa.table(
        {
            "image": text(numbers // 5),
            "caption": text(numbers * 7919 % 600_000),
            "label": text(numbers // 5 % 30),
        }
    )
    clean = PairTable.from_columns(columns)
    begin = time.process_time()
    for mode in ("replace", "permute"):
        result = corrupt_pairs(clean, 0.4, 0, mode=mode)
        assert int(result.is_noisy.sum()) == 400_000
    assert time.process_time() - begin < 15
