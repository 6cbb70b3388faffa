"""Kinds of issues one by one, and together in an audit."""

from __future__ import annotations

import numpy as np
import pytest

import pmpguard
from pmpguard.audit.issue_types.duplicate_caption import MANY_IMAGES, duplicate_captions
from pmpguard.audit.issue_types.language import breaks_off, language_issues, misspellings
from pmpguard.audit.issue_types.same_image import leaks, near_duplicate_images
from pmpguard.audit.issue_types.uninformative import uninformative_captions
from pmpguard.audit.issues import read_issues, read_summary
from pmpguard.audit.rows import ISSUE_TYPES
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError


def codes(*numbers):
    return np.array(numbers, np.int64)


def test_captions_twice_on_an_image_and_on_many_images():
    found = duplicate_captions(codes(0, 0, 1, 2), codes(0, 0, 0, 1))
    assert found.flag.tolist() == [True, True, False, False]
    assert found.score.tolist() == [0.25, 0.25, 1.0, 1.0]
    assert found.notes == {0: "2 times on this image", 1: "2 times on this image"}
    for images, said in ((MANY_IMAGES, False), (MANY_IMAGES + 1, True)):
        many = duplicate_captions(np.zeros(images, np.int64), np.arange(images))
        assert many.flag.all() == said and many.flag.any() == said
    assert many.notes[0] == f"on {MANY_IMAGES + 1} images"


def test_copies_of_images():
    found = near_duplicate_images(codes(0, 0, 1, 2, 3), ["a", "b", "c", "d"], [[0, 2, 3]])
    assert found.flag.tolist() == [True, True, False, True, True]
    assert found.notes[0] == "looks like c and 1 more" and 2 not in found.notes


def test_leaks_of_the_very_image_and_of_copies():
    splits = ["train", "test", "train", "val", "train", "train"]
    found = leaks(codes(0, 0, 1, 2, 3, 4), splits, list("abcde"), [[1, 2], [3, 4]])
    assert found.flag.tolist() == [True, True, True, True, False, False]
    assert found.score.tolist() == [0.0, 0.0, 0.25, 0.25, 1.0, 1.0]
    assert found.notes[0] == "the image is in train, test"
    assert found.notes[3] == "nearly the same image in train, val"


def test_misspelt_words_are_one_slip_off_frequent_ones():
    words = [["building", "beside", "river", "trees", "parking"]] * 100
    slips = [["bulding"], ["buillding"], ["biulding"], ["bxilding"], ["rivr"], ["treees"]]
    fine = [["rivers"], ["tree"], ["parkings"], ["built"], ["liver"], ["pond"], ["boulder"]]
    found = misspellings([*words, *slips, *fine])
    assert found == {
        "bulding": "building", "buillding": "building", "biulding": "building", "bxilding": "building",
        "rivr": "river", "treees": "trees",
    }  # fmt: skip
    assert misspellings([["building"]] * 5 + [["bulding"]]) == {}  # of few captions nothing is known


@pytest.mark.parametrize(
    ("caption", "off"),
    [("a river near the", True), ("a river, a", True), ("a river,", True), ("a river...", True),
     ("a river-", True), ("what it stands on.", False), ("a river", False), ("A river.", False)],
)  # fmt: skip
def test_captions_that_break_off(caption, off):
    assert breaks_off(caption, caption.strip(".,-").split()[-1]) == off


def test_other_scripts():
    captions = ["a river beside a forest", "река у леса", "many trees", "a café", "2 + 2"]
    found = language_issues(captions, codes(0, 1, 2, 3, 4))
    assert found.flag.tolist() == [False, True, False, False, False]
    assert found.notes == {1: "another script"} and found.score[1] == 0
    usual = language_issues(["река у леса", "лес и поле", "a river"], codes(0, 1, 2))
    assert usual.flag.tolist() == [False, False, True]


def test_captions_that_tell_little():
    found = uninformative_captions(np.array([1.0, 1.1, 0.9, 0.2]), codes(0, 1, 2, 3, 3))
    assert found.flag.tolist() == [False, False, False, True, True]
    assert not uninformative_captions(np.zeros(3), codes(0, 1, 2)).flag.any()


@pytest.fixture(scope="module")
def found():
    """Captions of scenes in a large space; thirty say nothing of their scene."""
    draw = np.random.default_rng(0)
    scenes = draw.normal(size=(500, 8))
    texts = scenes @ draw.normal(size=(8, 60)) + 0.5 * draw.normal(size=(500, 60))
    texts[:30] = 3.0 * draw.normal(size=(30, 60))
    captions = [f"place {'abcdefghij'[row % 10]}{row} with the river" for row in range(500)]
    captions[100] = "place with the"
    captions[101] = "place with the rivr"
    captions[102] = "..."
    splits = ["train"] * 400 + ["test"] * 100
    images = [f"{row}.png" for row in range(500)]
    images[450] = "0.png"
    table = PairTable.from_columns({"image": images, "caption": captions, "split": splits})
    pixels = (scenes @ draw.normal(size=(8, 40)))[table.first_rows]
    return pmpguard.audit(table, texts=texts, images=pixels, bootstrap=0)


def flagged(found, kind):
    places = {pair: row for row, pair in enumerate(found.table.column("pair_id"))}
    return {places[pair] for pair in found.get_issues(kind)["pair_id"].to_pylist()}


def test_an_audit_tells_all_kinds(found):
    little = flagged(found, "uninformative")
    assert len(little & set(range(30))) >= 27 and len(little - set(range(30))) <= 15
    assert flagged(found, "language") == {100, 101}
    assert flagged(found, "unreadable") == {102}
    assert flagged(found, "leak") == {0, 450}
    assert flagged(found, "shifted") == flagged(found, "duplicate_caption") == set()
    assert flagged(found, "near_duplicate_image") == set()  # nobody looked at the images
    assert flagged(found, "mismatched") == {row for row, p in enumerate(found.p_match) if p < 0.3}
    with pytest.raises(ConfigError, match="issue 'burnt' is unknown"):
        found.get_issues("burnt")


def test_the_summary_counts_them(found):
    summary = {row["type"]: row for row in found.issue_summary.to_pylist()}
    assert list(summary) == ["mismatched", *ISSUE_TYPES]
    assert summary["language"]["count"] == 2 and summary["language"]["share"] == 2 / found.summary.pairs
    assert summary["near_duplicate_image"]["count"] is None
    for kind in ISSUE_TYPES:
        counted = found.summary.issues[kind]
        assert counted is None or counted == found.get_issues(kind).num_rows


def test_scores_are_low_where_flagged(found):
    issues = found.issues
    for kind in ISSUE_TYPES:
        for score, flag in zip(
            *(issues[name].to_pylist() for name in (f"{kind}_score", f"is_{kind}")), strict=True
        ):
            assert (score is None) == (flag is None)
            assert score is None or (0 <= score <= 1 and (score < 0.5) == flag)


def test_a_report_keeps_them(found, tmp_path):
    found.report(tmp_path / "report")
    kept = read_issues(tmp_path / "report/issues.parquet")
    assert [(row.issues, row.issue_notes, row.issue_scores) for row in kept] == [
        (row.issues, row.issue_notes, row.issue_scores)
        for row in sorted(found.rows, key=lambda row: row.rank)
    ]
    assert np.isnan(kept[-1].p_match) and kept[-1].issues == ("unreadable",)
    assert read_summary(tmp_path / "report/summary.json") == found.summary
    dropped = sum(row.flag or "unreadable" in row.issues for row in found.rows)
    assert len(found.clean("drop")) == len(found.table) - dropped
