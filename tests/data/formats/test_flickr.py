"""Flickr30k and Flickr8k as published."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmpguard.data.formats import find_files, read_pairs
from pmpguard.errors import DataError


def test_results_csv_with_its_one_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(
        "image_name| comment_number| comment\n1000.jpg| 0| Two young guys , hands , outside .\n"
        "1000.jpg| 1| They said | this .\n2199200615.jpg| 4   A dog runs across the grass .\n"
    )
    assert find_files(path)[0] == "flickr"
    assert [(row.image, row.caption) for row in read_pairs(path)] == [
        ("1000.jpg", "Two young guys , hands , outside ."),
        ("1000.jpg", "They said | this ."),
        ("2199200615.jpg", "A dog runs across the grass ."),
    ]


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.token"
    path.write_text("1.jpg#0\tone\nno caption\n")
    with pytest.raises(DataError, match=r"x\.token line 2: neither"):
        read_pairs(path)


def test_flickr8k_has_its_splits_in_lists(tmp_path: Path) -> None:
    for name in ("Flickr8k.token.txt", "Flickr8k.lemma.token.txt"):
        (tmp_path / name).write_text("".join(f"{image}.jpg#0\ta {image}\n" for image in "abcd"))
    (tmp_path / "ExpertAnnotations.txt").write_text("a.jpg\tb.jpg#2\t1\t1\t1\n")
    for split, image in (("train", "a"), ("dev", "b"), ("test", "c")):
        (tmp_path / f"Flickr_8k.{split}Images.txt").write_text(f"{image}.jpg\n")
    assert read_pairs(tmp_path).column("split") == ["train", "val", "test", "unlisted"]
