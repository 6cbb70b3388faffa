"""Image folders: lists in the folders of the splits, above them, and in a folder `data` of the Hub."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest
from helpers import format_examples as examples
from helpers.hugging_face import datasets

from pmpguard.data.formats import find_files, read_pairs


def test_metadata_lines_in_folders_of_splits(tmp_path: Path) -> None:
    folder = examples.metadata_lines(tmp_path)
    assert find_files(folder)[0] == "folder"
    table = read_pairs(folder, strict=True)
    assert all(table.image_path(row).is_file() for row in range(30))
    assert sorted(table.captions) == sorted(text for _, text, _, _ in examples.rows())
    assert len(read_pairs(folder / "val" / "metadata.jsonl", strict=True)) == 5


def test_folders_of_splits_below_data(tmp_path: Path) -> None:
    examples.metadata_lines(tmp_path / "data")
    table = read_pairs(tmp_path, strict=True)
    assert find_files(tmp_path)[0] == "folder" and table.splits() == {"train": 15, "val": 5, "test": 10}


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "validation")])
def test_one_list_above_the_folders_has_the_splits_of_datasets(
    tmp_path: Path, splits: tuple[str, str]
) -> None:
    """The library takes the splits from the folders; so does the reader, and not all for training."""
    folder, lines = tmp_path / "made", []
    for split, number in itertools.product(splits, range(2)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / f"{number}.png").write_bytes(examples.image(number))
        lines.append((f"{split}/{number}.png", f"{split} {number}"))
    with (folder / "metadata.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("file_name", "text"), *lines])
    theirs = datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=str(tmp_path / "cache"))
    ours = read_pairs(folder, strict=True)
    assert ours.splits() == {name.replace("validation", "val"): len(part) for name, part in theirs.items()}
    assert all(row.split == row.caption.split()[0].replace("validation", "val") for row in ours)


def test_a_column_of_splits_is_believed(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a.png").write_bytes(examples.image())
    (tmp_path / "metadata.csv").write_text("file_name,text,Split\ntest/a.png,a pond,train\n")
    assert read_pairs(tmp_path, strict=True).splits() == {"train": 1}
