"""`data convert`: from a path to a path, with a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from pmpguard.cli.convert_data import convert
from pmpguard.cli.main import as_plain
from pmpguard.data.formats import read_pairs
from pmpguard.errors import ConfigError, DataError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    lines = []
    for number, split in enumerate(["train", "train", "test"]):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / "images" / f"{number}.png")
        lines += [
            json.dumps({"image": f"{number}.png", "caption": f"{number} {view}", "split": split, "gsd": 0.5})
            for view in range(2)
        ]
    path = tmp_path / "fake.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_report_counts_and_notes(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out" / "fake.csv")
    assert (report.format, report.to, report.pairs, report.images) == ("jsonl", "csv", 6, 3)
    assert report.splits == {"train": 4, "test": 2}
    assert read_pairs(report.target, images=tmp_path / "images").column("gsd") == ["0.5"] * 6
    assert any(f"--images {tmp_path / 'images'}" in note for note in report.notes)
    assert "6 pairs of 3 images: train 4, test 2" in report.as_text()
    assert json.loads(json.dumps(as_plain(report)))["target"] == str(tmp_path / "out" / "fake.csv")
    assert read_pairs(report.target, images=tmp_path / "images").captions == read_pairs(source).captions


def test_one_split_into_a_folder(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out", to="folder", split="test")
    assert report.notes == ()
    table = read_pairs(tmp_path / "out", strict=True)
    assert (table.captions, table.splits()) == (["2 0", "2 1"], {"test": 2})
    assert table.image_path(0).is_file()


def test_parquet_finds_its_images_again(source: Path, tmp_path: Path) -> None:
    assert convert(source, tmp_path / "out" / "a.parquet").notes == ()
    assert read_pairs(tmp_path / "out" / "a.parquet", strict=True).image_path(0).is_file()


def test_wrong_targets_and_splits(source: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"does not name a format\nFix: say which with --to, one of coco, karpathy"
    ):
        convert(source, tmp_path / "out")
    with pytest.raises(DataError, match="exists already"):
        convert(source, source)
    with pytest.raises(DataError, match=r"fake: no split named 'val'"):
        convert(source, tmp_path / "a.parquet", split="val")
    with pytest.raises(ConfigError, match="'rs5m' cannot be written"):
        convert(source, tmp_path / "out", to="rs5m")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fake.jsonl", "images"]


def test_columns_are_named_on_the_command_line(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "bild.csv"
    path.write_text("Bild;Text\nimages/0.png;a pond\n")
    report = convert(path, tmp_path / "out.jsonl", columns="image=Bild,caption=Text")
    assert (report.format, report.pairs) == ("csv", 1)
    assert read_pairs(report.target, images=tmp_path).captions == ["a pond"]
