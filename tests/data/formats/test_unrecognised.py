"""What is not recognised: the columns, fields or members that are there, and what would read them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from helpers import format_examples as examples

from pmpguard.data.formats import read_pairs
from pmpguard.errors import DataError

ODD = "no column for the image\nFix: found {}; name it with --columns image=COLUMN"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "Bild;de;en\n1.png;ein Teich;a pond\n", "; a.csv: " + ODD.format("Bild, de, en")),
        ("a.csv", "7,1.png,a pond\n", "; a.csv: " + ODD.format("1, 2, 3")),
        ("a.json", '[{"picture": "1.png", "words": "x"}]', "; a.json: " + ODD.format("picture, words")),
        ("a.json", '{"picture": "1.png"}\n{"picture": "2.png"}\n', "; a.json: " + ODD.format("picture")),
        (
            "a.json",
            '{"data": [{"image": "1.png"}]}',
            "a.json has the fields data, image\nFix: say which",
        ),
        ("a.json", "[1, 2]", "a.json has the fields of no object"),
        ("notes.docx", "x", "; found notes.docx\nFix: say which with --format, one of"),
        ("a.csv.gz", "x", "; found a.csv.gz\nFix: unpack it and give what was in it"),
        ("a.xls", "x", "; found a.xls\nFix: save it as .xlsx or .csv"),
        ("a.pkl", "x", "; found a.pkl\nFix: a pickle can run code and is not opened"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_one_file(tmp_path: Path, name: str, content: str, message: str, whole: bool) -> None:
    (tmp_path / name).write_text(content)
    path = tmp_path if whole else tmp_path / name
    with pytest.raises(DataError) as error:
        read_pairs(path)
    assert f"{path}: format not recognised" in str(error.value) and message in str(error.value)


def test_another_format_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Bild;de\n1.png;ein Teich\n")
    with pytest.raises(DataError, match=r"not recognised as jsonl; a\.csv: no column for the image"):
        read_pairs(tmp_path, format="jsonl")


@pytest.mark.parametrize("inner", ["", "pond/"])
def test_images_alone(tmp_path: Path, inner: str) -> None:
    examples.write_images(tmp_path / inner)
    with pytest.raises(
        DataError, match=r"found images without captions\nFix: captions go into a metadata\.csv"
    ):
        read_pairs(tmp_path)


def test_members_of_a_shard(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        examples.add_member(tar, "1.npy", b"x")
        examples.add_member(tar, "1.said", b"a pond")
    with pytest.raises(
        DataError, match=r"0\.tar holds members \.npy, \.said.*\nFix: .*--columns caption=ENDING"
    ):
        read_pairs(tmp_path / "0.tar")
