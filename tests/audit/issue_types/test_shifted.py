"""Runs of shifted captions: planted ones are found with their offsets and put back exactly."""

from __future__ import annotations

import numpy as np
import pytest

import pmpguard
from pmpguard.audit.issue_types.shifted import find_shifts, runs_of
from pmpguard.data.pairs import PairTable


def world(count, dim=12, seed=0, noise=0.5):
    draw = np.random.default_rng(seed)
    scenes = draw.normal(size=(count, dim))
    texts = scenes @ draw.normal(size=(dim, 20)) + noise * draw.normal(size=(count, 20))
    return texts, scenes @ draw.normal(size=(dim, 30))


def audited(order, per_image=1, seed=0):
    """Row r of one or several captions per image has the caption that describes row `order[r]`."""
    count = len(order)
    texts, images = world(count // per_image, seed=seed)
    draw = np.random.default_rng(seed + 1)
    texts = np.repeat(texts, per_image, axis=0) + 0.5 * draw.normal(size=(count, 20))
    images_of = [f"{row // per_image}.png" for row in range(count)]
    table = PairTable.from_columns(
        {"image": images_of, "caption": [f"a caption like number {own}" for own in order]}
    )
    return pmpguard.audit(table, texts=texts[order], images=images, bootstrap=0)


def test_where_sums_rise():
    gain = np.array([-4.0, 3, 3, 3, -1, 3, -9, 1, 1, -4, 3, 3, 3, 3])
    assert list(runs_of(gain, 8.0)) == [(1, 6), (10, 14)]
    assert list(runs_of(gain, 20.0)) == [] == list(runs_of(np.array([]), 1.0))


@pytest.mark.parametrize("offset", [1, -2, 6, -8, 20])
def test_a_run_turned_round_is_put_back_exactly(offset):
    order = np.arange(600)
    order[200:260] = np.roll(order[200:260], -offset)  # row r has the caption of row r + offset
    found = audited(order)
    rows = {row.pair_id: row for row in found.rows}
    ids = found.table.column("pair_id")
    shifted = np.array(["shifted" in rows[pair].issues for pair in ids])
    np.testing.assert_array_equal(np.flatnonzero(shifted), np.arange(200, 260))
    step = f"{abs(offset)} row{'s' if abs(offset) > 1 else ''} {'after' if offset > 0 else 'before'}"
    assert step in rows[ids[230]].issue_notes
    cleaned = found.clean("rematch")
    assert cleaned.captions == [f"a caption like number {row}" for row in range(600)]
    assert set(cleaned.column("provenance")[200:260]) == {
        f"moved back from {ids[np.flatnonzero(order == row)[0]]}" for row in range(200, 260)
    }
    dropped = found.clean("drop")
    assert dropped.captions == [f"a caption like number {row}" for row in (*range(200), *range(260, 600))]


@pytest.mark.parametrize(("offset", "length"), [(1, 20), (-2, 25), (3, 120)])
def test_a_lost_line_shifts_all_up_to_a_doubled_one(offset, length):
    """Captions of one end are gone: their images are dropped, all others are put right."""
    order = np.arange(500)
    start = 150
    order[start : start + length] += offset
    found = audited(order, seed=3)
    gone = set(range(500)) - set(order.tolist())
    cleaned = found.clean("rematch")
    captions = dict(zip(cleaned.column("image"), cleaned.captions, strict=True))
    assert all(caption == f"a caption like number {image[:-4]}" for image, caption in captions.items())
    lost = set(range(500)) - {int(image[:-4]) for image in captions}
    assert gone <= lost and len(lost - gone) <= 2  # a right pair may be judged wrong
    assert found.get_issues("shifted").num_rows >= length


def test_captions_of_whole_images_are_shifted():
    """Six captions an image, more than rows are counted: they stand with the image before their own."""
    order = np.arange(1200)
    order[240:420] = np.roll(order[240:420], -6)
    found = audited(order, per_image=6)
    shifted = found.get_issues("shifted")
    assert shifted.num_rows == 180 and "1 image after" in shifted["issue_notes"][40].as_py()
    assert found.clean("rematch").captions == [f"a caption like number {row}" for row in range(1200)]


def test_scattered_mismatches_are_no_run():
    draw = np.random.default_rng(5)
    order = np.arange(600)
    moved = draw.permutation(600)[:240]
    order[moved] = order[draw.permutation(moved)]
    found = audited(order)
    assert found.get_issues("shifted").num_rows == 0
    assert found.noise_rate == pytest.approx(0.4, abs=0.08)


def test_what_cannot_be_asked_counts_for_nothing():
    def unknown(captions, images, rows):
        return np.full(len(captions), np.nan)

    numbers = np.arange(50)
    assert not find_shifts(numbers, numbers, numbers, unknown).found.flag.any()
    few = numbers[:3]
    assert not find_shifts(few, few, few, unknown).found.flag.any()


def test_rows_that_could_not_be_judged_still_count():
    """Offsets are counted in rows of the dataset: one row of the run has a caption without words."""
    order = np.arange(400)
    order[100:150] = np.roll(order[100:150], -1)
    texts, images = world(400)
    captions = [f"a caption like number {own}" for own in order]
    captions[120] = "!"
    table = PairTable.from_columns({"image": [f"{row}.png" for row in range(400)], "caption": captions})
    kept = np.arange(400) != 120
    found = pmpguard.audit(table, texts=texts[order], images=images, bootstrap=0)
    rows = {row.pair_id: row for row in found.rows}
    ids = table.column("pair_id")
    assert all("shifted" in rows[ids[row]].issues for row in range(100, 150) if kept[row])
    assert rows[ids[120]].issues == ("unreadable",) and np.isnan(rows[ids[120]].p_match)
    assert found.unjudged and len(found.issues) == 400
