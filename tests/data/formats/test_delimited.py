"""CSV as people have it: separators, encodings, headers, and what is said where it is not recognised."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pmpguard.data.formats import find_files, read_pairs
from pmpguard.errors import ConfigError, DataError

PAIRS = [("a.png", "a pond, and a café"), ("b.png", "two roads")]


def write(folder: Path, content: str, name: str = "pairs.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(content.encode(encoding))
    return path


def pairs(path: Path, columns: object = None) -> list[tuple[str, str]]:
    return [(row.image, row.caption) for row in read_pairs(path, columns)]


@pytest.mark.parametrize(
    "header",
    [
        "Image,Caption",
        "filename,text",
        "FILEPATH,Title",
        "image_name,comment",
        "url,caption",
        " image , caption ",
    ],
)
def test_usual_headers_in_any_case(tmp_path: Path, header: str) -> None:
    path = write(tmp_path, f'{header}\na.png,"a pond, and a café"\nb.png,two roads\n')
    assert pairs(path) == PAIRS


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_list_of_remoteclip(tmp_path: Path, separator: str) -> None:
    """Its training code reads `filename` and `title`, separated by tabs or commas."""
    lines = [("filename", "title"), ("airport_1.jpg", "many planes"), ("airport_1.jpg", "a terminal")]
    path = write(tmp_path, "\n".join(map(separator.join, lines)) + "\n", "rsicd_train.csv")
    assert pairs(path) == lines[1:] and read_pairs(path).splits() == {"train": 2}


def test_a_list_of_skyscript(tmp_path: Path) -> None:
    """One caption of the object in the middle, one of what is around it as well; either may be meant."""
    path = write(
        tmp_path,
        "filepath,title,title_multi_objects\n"
        "images2/a1_US_21.jpg,a pond,a pond surrounded by a farm\n"
        "images3/w2_CH_18.jpg,a road,a road near trees\n",
        "SkyScript_train_top30pct_filtered_by_CLIP_openai.csv",
    )
    table = read_pairs(path)
    assert table.captions == ["a pond", "a road"] and table.splits() == {"train": 2}
    assert table.column("title_multi_objects")[1] == "a road near trees"
    both = "image=filepath,caption=title+title_multi_objects"
    assert [caption for _, caption in pairs(path, both)][:2] == ["a pond", "a pond surrounded by a farm"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_and_encodings(
    tmp_path: Path, separator: str, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [separator.join(fields) for fields in (("image", "caption"), ("a.png", '"a pond, and a café"'))]
    path = write(tmp_path, "\r\n".join(lines), encoding=encoding)
    with caplog.at_level(logging.WARNING):
        assert pairs(path) == PAIRS[:1]
    assert ("read as Windows-1252" in caplog.text) == (encoding == "cp1252")


def test_several_caption_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "filepath,caption_1,caption_2,caption_3,gsd\na.png,one,two,,3\nb.png,four,,,5\n")
    expected = [("a.png", "one"), ("a.png", "two"), ("b.png", "four")]
    assert pairs(path) == expected
    assert pairs(path, "image=filepath,caption=caption_2+caption_1")[:2] == [
        ("a.png", "two"),
        ("a.png", "one"),
    ]
    assert pairs(path, {"caption": ["caption_1", "caption_2"]}) == expected
    table = read_pairs(path)
    assert table.column("gsd") == ["3", "3", "5"] and table.column("pair_id")[:2] == ["a.png#0", "a.png#1"]
    path = write(tmp_path, "filename,raw,raw_1,split\na.png,one,two,test\n", "nwpu.csv")
    assert pairs(path) == expected[:2] and read_pairs(path).splits() == {"test": 2}


def test_a_list_of_captions_in_one_field(tmp_path: Path) -> None:
    """As nlphuji/flickr30k has it."""
    path = write(tmp_path, 'raw,split,filename\n"[""one"", ""two""]",val,a.png\n')
    assert pairs(path) == [("a.png", "one"), ("a.png", "two")]


def test_other_standard_columns_may_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "Bild,Text,Menge,Klasse,x\na.png,one,test,pond,4.5\n")
    names = "image=Bild,caption=Text,split=Menge,label=Klasse,lon=x"
    (row,) = read_pairs(path, names)
    assert (row.split, row.label, row.extra) == ("test", "pond", {"lon": 4.5})


def test_without_a_header(tmp_path: Path) -> None:
    assert pairs(write(tmp_path, 'a.png,"a pond, and a café"\nb.png,two roads\n')) == PAIRS
    assert pairs(write(tmp_path, "a pond, and a café\ta.png\ntwo roads\tb.png\n", "x.tsv")) == PAIRS
    path = write(tmp_path, "7,a.png,one\n8,b.png,two\n")
    with pytest.raises(
        DataError, match=r"no column for the image\nFix: found 1, 2, 3; name it with --columns"
    ):
        read_pairs(path)
    assert pairs(path, "image=2,caption=3") == [("a.png", "one"), ("b.png", "two")]


def test_captions_txt_of_flickr8k(tmp_path: Path) -> None:
    path = write(tmp_path, "image,caption\na.png,one\na.png,two\n", "captions.txt")
    assert find_files(tmp_path) == ("csv", [path]) and pairs(path) == [("a.png", "one"), ("a.png", "two")]
    write(tmp_path, "Read me, please.\n", "README.txt")
    assert find_files(tmp_path)[1] == [path]


def test_files_in_folders_of_splits_name_images_from_there(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        write(tmp_path / split, "image,caption\na.png,one\n", "pairs.csv")
        (tmp_path / split / "a.png").write_bytes(b"x")
    table = read_pairs(tmp_path, strict=True)
    assert {(row.image, row.split) for row in table} == {("train/a.png", "train"), ("test/a.png", "test")}


@pytest.mark.parametrize("columns", ["picture=a", "image", "image=,caption=b", "image=a+b"])
def test_a_wrong_option_is_explained(tmp_path: Path, columns: str) -> None:
    with pytest.raises(ConfigError, match=r"\nFix: write --columns image=COLUMN,caption=COLUMN"):
        read_pairs(write(tmp_path, "image,caption\na.png,one\n"), columns)


def test_columns_cannot_be_named_where_there_are_none(tmp_path: Path) -> None:
    path = write(tmp_path, '{"images": []}', "dataset.json")
    with pytest.raises(ConfigError, match="karpathy has no columns to name"):
        read_pairs(path, "image=a")


@pytest.mark.parametrize("said", ["validation", "Valid", "dev", "VAL"])
def test_splits_have_their_usual_names(tmp_path: Path, said: str) -> None:
    path = write(tmp_path, f"image,caption,split\na.png,one,{said}\nb.png,two,Training\nc.png,three,North\n")
    assert read_pairs(path).column("split") == ["val", "train", "North"]


def test_a_file_for_two_splits_is_not_the_last(tmp_path: Path) -> None:
    """As RS3 of RS5M is published."""
    (tmp_path / "RS3").mkdir()
    path = write(tmp_path / "RS3", "img_name,caption\na.png,one\n", "RS3_train_val_caption.csv")
    assert read_pairs(path).splits() == {"train": 1}
