"""A text file beside each image."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import format_examples as examples

from pmpguard.data.formats import find_files, read_pairs
from pmpguard.errors import DataError
from pmpguard.search.sources import open_source


def test_ids_images_without_a_text_and_empty_texts(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.png", "c.png"):
        (tmp_path / name).write_bytes(examples.image())
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.txt").write_text("")
    (tmp_path / "README.txt").write_text("Read me, please.")
    table = read_pairs(tmp_path, strict=True)
    assert [(row.image, row.caption, row.pair_id) for row in table] == [
        ("a.JPG", "one", "a.JPG#0"),
        ("a.JPG", "two", "a.JPG#1"),
    ]


def test_a_folder_of_img2dataset_by_itself(tmp_path: Path) -> None:
    folder = Path(__file__).parent / "peer_files" / "img2dataset" / "files" / "00000"
    assert find_files(folder)[0] == "captions"
    assert len(read_pairs(folder, strict=True)) == 4


def test_a_text_without_an_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(DataError, match=r"a\.txt: no image of this name"):
        read_pairs(tmp_path / "a.txt", format="captions")


def test_a_search_shows_images_without_a_text_too(tmp_path: Path) -> None:
    folder = examples.caption_files(tmp_path) / "train"
    next(folder.glob("*.txt")).unlink()
    assert len(open_source(folder)) == 3
