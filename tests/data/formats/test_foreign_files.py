"""Files that other libraries wrote: Hugging Face's datasets, webdataset, pandas, Excel, img2dataset."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import webdataset
from helpers import format_examples as examples
from helpers.hugging_face import dataset_of, datasets
from PIL import Image

from pmpguard.data.formats import find_files, read_pairs
from pmpguard.data.formats.shards import image_bytes
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError

PEER_FILES = Path(__file__).parent / "peer_files"
ROWS = [
    {"Image": scene["name"], "Caption": caption, "Split": scene["split"]}
    for scene in examples.scenes()
    for caption in scene["captions"]
]


def contents(table: PairTable, label: bool = True) -> list[tuple[Any, ...]]:
    """(image, caption, split, label) of every pair, sorted."""
    return sorted(
        (image_bytes(table, row.image), row.caption, row.split, *([row.label] if label else []))
        for row in table
    )


def test_datasets_saved_to_disk_by_split(tmp_path: Path) -> None:
    datasets.DatasetDict(
        {"validation" if split == "val" else split: dataset_of(split) for split in examples.SPLITS}
    ).save_to_disk(str(tmp_path / "saved"))
    assert find_files(tmp_path / "saved")[0] == "arrow"
    table = read_pairs(tmp_path / "saved", strict=True)
    assert contents(table) == examples.rows()
    assert table.column("image")[0] == "test/data-00000-of-00001.arrow#image/0"


def test_one_dataset_saved_to_disk_and_splits_of_any_name(tmp_path: Path) -> None:
    dataset_of("train").save_to_disk(str(tmp_path / "one"))
    assert contents(read_pairs(tmp_path / "one")) == [row for row in examples.rows() if row[2] == "train"]
    datasets.DatasetDict({"north": dataset_of("train")}).save_to_disk(str(tmp_path / "north"))
    assert read_pairs(tmp_path / "north").splits() == {"north": 15}


def test_parquet_of_datasets_names_its_classes(tmp_path: Path) -> None:
    for split in examples.SPLITS:
        dataset_of(split).to_parquet(str(tmp_path / f"{split}-00000-of-00001.parquet"))
    assert contents(read_pairs(tmp_path, strict=True)) == examples.rows()


@pytest.mark.parametrize("name", ["pairs.json", "pairs.csv"])
def test_lists_of_captions_as_datasets_writes_text(tmp_path: Path, name: str) -> None:
    names = [scene["name"] for scene in examples.scenes() if scene["split"] == "train"]
    plain = dataset_of("train").remove_columns("image").add_column("image", names)
    examples.write_images(tmp_path / "data" / "images")
    (plain.to_json if name.endswith("json") else plain.to_csv)(str(tmp_path / "data" / name))
    expected = [row[:3] for row in examples.rows() if row[2] == "train"]
    assert contents(read_pairs(tmp_path / "data" / name, strict=True), label=False) == expected


def test_captions_that_are_objects(tmp_path: Path) -> None:
    """As Karpathy's datasets lie on the Hub: a list of objects, or columns of lists."""
    sentences = [[{"raw": "one", "tokens": ["one"]}, {"raw": "two", "tokens": ["two"]}]]
    datasets.Dataset.from_dict({"filename": ["a.png"], "sentences": sentences}).to_parquet(
        str(tmp_path / "a.parquet")
    )
    assert read_pairs(tmp_path / "a.parquet").captions == ["one", "two"]


SHARDS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], int]] = {
    "json text": (lambda scene: {"png": True, "json": {"text": scene["captions"][0]}}, 1),
    "caption list": (lambda scene: {"jpeg": True, "json": {"caption": scene["captions"]}}, 5),
    "captions.json": (lambda scene: {"jpg": True, "captions.json": scene["captions"]}, 5),
    "caption.txt": (lambda scene: {"png": True, "caption.txt": scene["captions"][0], "cls": 1}, 1),
    "text": (lambda scene: {"image.png": True, "text": scene["captions"][0]}, 1),
}


def write_shard(path: Path, sample_of: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for number, scene in enumerate(examples.scenes()):
            sample = sample_of(scene)
            picture = Image.open(io.BytesIO(examples.image(number)))
            filled = {key: picture if value is True else value for key, value in sample.items()}
            writer.write({"__key__": f"dir/{number:05d}", **filled})


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
@pytest.mark.parametrize("kind", SHARDS)
def test_shards_of_webdataset(tmp_path: Path, kind: str, ending: str) -> None:
    sample_of, each = SHARDS[kind]
    write_shard(tmp_path / "shards" / f"train-000.{ending}", sample_of)
    table = read_pairs(tmp_path / "shards", strict=True)
    wanted = [text for scene in examples.scenes() for text in scene["captions"][:each]]
    assert table.captions == wanted
    images = set(table.column("image"))
    assert len(images) == 6 and all(image_bytes(table, image) for image in images)


def test_fields_and_members_of_shards_may_be_named(tmp_path: Path) -> None:
    shard = tmp_path / "train-0.tar"
    write_shard(shard, lambda scene: {"jpg": True, "mask.png": True, "json": {"alt": scene["captions"][:2]}})
    with pytest.raises(DataError, match=r"2 images instead of one(?s:.)*--columns image=ENDING"):
        read_pairs(shard)
    table = read_pairs(shard, "image=jpg,caption=alt")
    assert len(table) == 12 and {Path(image).suffix for image in table.column("image")} == {".jpg"}
    with pytest.raises(DataError, match=r"no caption\nFix: found .*alt.*--columns caption=NAME"):
        read_pairs(shard, "image=jpg")
    with pytest.raises(ConfigError, match="only image and caption of a shard can be named"):
        read_pairs(shard, "label=x")


def test_a_field_of_mixed_kinds_is_left_out_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = iter([1, "x", [1], {"a": 1}, None, 2.5])
    write_shard(tmp_path / "a.tar", lambda scene: {"png": True, "json": {"text": "a", "odd": next(kinds)}})
    with caplog.at_level(logging.WARNING):
        table = read_pairs(tmp_path / "a.tar")
    assert "field 'odd' is left out, it mixes kinds of values" in caplog.text and len(table) == 6


@pytest.mark.parametrize("form", ["webdataset", "files", "parquet"])
def test_folders_of_img2dataset(form: str) -> None:
    """Written by tests/peers/img2dataset_files.py; the seventh address was not there."""
    table = read_pairs(PEER_FILES / "img2dataset" / form, strict=True)
    assert table.captions == [f"a pond, number {number}" for number in range(6)]
    reds = [
        Image.open(io.BytesIO(image_bytes(table, image))).getpixel((0, 0))[0]  # type: ignore[index]
        for image in table.column("image")
    ]
    assert reds == [0, 40, 80, 120, 160, 200]


FRAMES: dict[str, Callable[[pandas.DataFrame, Path], None]] = {
    "a.csv": lambda frame, path: frame.to_csv(path),  # with its index, a column without a name
    "b.csv": lambda frame, path: frame.to_csv(path, sep=";", encoding="cp1252", index=False),
    "c.csv": lambda frame, path: frame.to_csv(path, sep="\t", encoding="utf-16", index=False),
    "d.xlsx": lambda frame, path: frame.to_excel(path, index=False),
    "e.parquet": lambda frame, path: frame.to_parquet(path),
    "f.json": lambda frame, path: frame.to_json(path, orient="records"),
    "g.jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_of_pandas(tmp_path: Path, name: str) -> None:
    FRAMES[name](pandas.DataFrame(ROWS), tmp_path / name)
    examples.write_images(tmp_path / "pictures")
    table = read_pairs(tmp_path, strict=True)
    assert contents(table, label=False) == [row[:3] for row in examples.rows()]
    assert table.row(0).extra == {}


def test_excel_rows_are_named_and_columns_may_be(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {"Bild": ["a.png", None, "b.png"], "T1": ["one", None, "two"], "T2": ["x", None, 3]}
    )
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    with pytest.raises(DataError, match=r"a\.xlsx row 1: no column for the image\nFix: found Bild, T1, T2"):
        read_pairs(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=r"a\.xlsx row 4: caption is 3, not text"):
        read_pairs(tmp_path / "a.xlsx", "image=Bild,caption=T1+T2")
    assert read_pairs(tmp_path / "a.xlsx", "image=Bild,caption=T1").captions == ["one", "two"]
    (tmp_path / "b.xlsx").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(DataError, match=r"b\.xlsx: not a readable workbook"):
        read_pairs(tmp_path / "b.xlsx")


def test_a_line_for_excel_and_repeated_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sep=;\nimage;caption;caption;caption\na.png;one;two;\nb.png;three;;\n")
    assert read_pairs(path).captions == ["one", "two", "three"]
    path.write_text("sep=;\nimage;caption\na.png;one;two\n")
    with pytest.raises(DataError, match="line 3: 3 fields where the header has 2"):
        read_pairs(path)


def test_records_of_json_with_named_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"pic": "a.png", "says": ["one", "two"], "gsd": 3}]))
    table = read_pairs(path, "image=pic,caption=says")
    assert table.captions == ["one", "two"] and table.column("gsd") == [3, 3]
