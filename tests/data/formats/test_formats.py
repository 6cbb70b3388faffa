"""Formats: every generator's dataset is found and read, written tables come back, bad input is named."""

from __future__ import annotations

import json
import logging
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import format_examples as examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.data.formats import FORMATS, find_files, read_pairs, table_notes, write_pairs
from pmpguard.data.formats.shards import image_bytes
from pmpguard.data.known_datasets import KNOWN, differences, images_per_split, matching_split
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError

GENERATORS: dict[str, Callable[[Path], Path]] = {
    "captions": examples.caption_files,
    "karpathy": examples.karpathy,
    "nwpu": examples.nwpu,
    "pir": examples.pir,
    "amfmn": examples.amfmn,
    "rrsitr": examples.rrsitr,
    "csv": examples.openclip,
    "jsonl": examples.jsonl,
    "folder": examples.metadata_folder,
    "webdataset": examples.webdataset,
    "rs5m": examples.rs5m,
    "coco": examples.coco,
    "flickr": examples.flickr_tokens,
    "llava": examples.llava,
    "parquet": examples.hugging_face_parquet,
    "arrow": examples.saved_to_disk,
    "excel": examples.excel,
}
WITHOUT_LABELS = ("captions", "amfmn", "rrsitr", "rs5m", "coco", "flickr", "llava")
ONE_CAPTION = ("rs5m", "llava")
ONE_SPLIT = ("flickr", "llava")
FOLDERS = ("pir", "amfmn", "folder", "webdataset", "hub", "coco")
WRITERS = [name for name, kind in FORMATS.items() if kind.write]


def contents(table: PairTable) -> list[tuple[bytes, str, str, str]]:
    """(the image itself, caption, split, label) of every pair, sorted: what no format may change."""
    images = {image: image_bytes(table, image) for image in set(table.column("image"))}
    columns = [table.column(name) for name in ("image", "caption", "split", "label")]
    return sorted(
        (images[image], caption, split, label or "")
        for image, caption, split, label in zip(*columns, strict=True)
    )


def without_labels(rows: list[tuple[bytes, str, str, str]]) -> list[tuple[bytes, str, str]]:
    return [row[:3] for row in rows]


def written(table: PairTable, folder: Path, name: str) -> Path:
    path = folder / ("out" if name in FOLDERS else f"out{FORMATS[name].endings[0]}")
    write_pairs(table, path, name)
    return path


@pytest.mark.parametrize("name", GENERATORS)
def test_reader_is_found_and_reads_everything(tmp_path: Path, name: str) -> None:
    path = GENERATORS[name](tmp_path / "data")
    assert find_files(path)[0] == ("parquet" if name == "hub" else name)
    table = read_pairs(path, strict=True)
    expected = examples.rows()
    if name in ONE_CAPTION:
        expected = [row for row in expected if "view 0" in row[1]]
    if name in ONE_SPLIT:
        expected = sorted((image, caption, "train", label) for image, caption, _, label in expected)
    if name in WITHOUT_LABELS:
        assert without_labels(contents(table)) == without_labels(expected)
    else:
        assert contents(table) == expected
    assert images_per_split(table) == ({"train": 6} if name in ONE_SPLIT else examples.SPLITS)


def test_every_format_has_an_example_and_a_module() -> None:
    elsewhere = {"scan", "hub"}  # without images; written and read as parquet
    assert set(GENERATORS) | elsewhere == set(FORMATS)


def test_rs5m_keeps_the_published_names(tmp_path: Path) -> None:
    table = read_pairs(examples.rs5m(tmp_path))
    names = dict(zip(table.captions, table.column("img_name"), strict=True))
    assert names == {scene["captions"][0]: scene["name"] for scene in examples.scenes()}


@pytest.mark.parametrize("name", ["karpathy", "pir", "rrsitr", "csv", "jsonl", "webdataset", "rs5m"])
def test_one_file_is_enough(tmp_path: Path, name: str) -> None:
    path = GENERATORS[name](tmp_path)
    file = path if path.is_file() else next(iter(sorted(path.glob("*test*"))))
    table = read_pairs(file, strict=True)
    assert set(table.splits()) == ({"test"} if path.is_dir() else {"train", "val", "test"})


def test_same_dataset_has_same_pair_ids_in_other_formats(tmp_path: Path) -> None:
    tables = [
        read_pairs(GENERATORS[name](tmp_path / name)) for name in ("karpathy", "amfmn", "rrsitr", "jsonl")
    ]
    by_id = [dict(zip(table.column("pair_id"), table.captions, strict=True)) for table in tables]
    assert all(found == by_id[0] for found in by_id)
    assert "pond_train0.png#4" in by_id[0]


def test_verify_files_are_preferred_and_a_named_file_is_taken(tmp_path: Path) -> None:
    folder = examples.amfmn(tmp_path)
    assert read_pairs(folder).splits() == {"test": 10, "train": 15, "val": 5}
    assert read_pairs(folder / "train_caps.txt").splits() == {"train": 20}


def test_tsv_and_unusual_columns(tmp_path: Path) -> None:
    assert contents(read_pairs(examples.openclip(tmp_path / "a", "tsv"))) == examples.rows()
    path = examples.openclip(tmp_path / "b", "csv", ("where", "said"))
    with pytest.raises(
        DataError, match=r"not recognised.*no column for the image\n.*found where, said.*--columns"
    ):
        read_pairs(path)
    assert contents(read_pairs(path, "image=where,caption=said")) == examples.rows()
    assert contents(read_pairs(path, {"image": "where", "caption": "said"})) == examples.rows()
    with pytest.raises(DataError, match=r"no column 'spoken'\n.*found where, said"):
        read_pairs(path, "image=where,caption=spoken")


def test_places_and_times_are_typed(tmp_path: Path) -> None:
    table = read_pairs(examples.jsonl(tmp_path))
    row = table.row(0).extra
    assert (row["lon"], row["lat"], row["time"].isoformat()) == (3.5, -10.25, "2024-05-01T12:00:00+00:00")
    assert row["sensor"] == {"name": "S2", "bands": [4, 3, 2]}


@pytest.mark.parametrize("name", WRITERS)
def test_written_tables_come_back(tmp_path: Path, name: str) -> None:
    table = read_pairs(examples.jsonl(tmp_path / "in"))
    path = written(table, tmp_path, name)
    assert find_files(path)[0] == ("parquet" if name == "hub" else name)
    back = read_pairs(path, images=None if FORMATS[name].copies_images else table.root, strict=True)
    if name == "amfmn":
        assert without_labels(contents(back)) == without_labels(contents(table))
    else:
        assert contents(back) == contents(table)
    if FORMATS[name].keeps_columns:
        for column in ("pair_id", "lon", "time"):
            assert sorted(map(str, back.column(column))) == sorted(map(str, table.column(column)))
    if name in ("jsonl", "parquet"):
        assert back.fingerprint == table.fingerprint
        assert back.column("sensor") == table.column("sensor")
    assert not list(tmp_path.rglob(".tmp-*"))


captions = st.text(st.characters(codec="utf-8"), max_size=40)
one_line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40)
file_names = st.text("abcäß xyz0189_-", min_size=1, max_size=8).map(lambda name: name.strip() or "a")


@st.composite
def tables(draw: st.DrawFn, texts: st.SearchStrategy[str], root: Path) -> PairTable:
    columns: dict[str, list[Any]] = {"image": [], "caption": [], "split": [], "label": []}
    for name in draw(st.lists(file_names, min_size=1, max_size=5, unique=True)):
        split = draw(st.sampled_from(["train", "val", "test"]))
        label = draw(st.sampled_from([None, "pond", "air port"]))
        for caption in draw(st.lists(texts, min_size=1, max_size=4)):
            for column, value in zip(columns, (f"{name}.png", caption, split, label), strict=True):
                columns[column].append(value)
        (root / f"{name}.png").write_bytes(examples.image(len(columns["image"])))
    return PairTable.from_columns(
        pa.table({key: pa.array(value, pa.string()) for key, value in columns.items()}), root
    )


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_round_trip_of_any_table(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "images"
        root.mkdir()
        table = data.draw(tables(one_line if name == "amfmn" else captions, root))
        back = read_pairs(written(table, Path(place), name))
        if name == "amfmn":
            assert without_labels(contents(back)) == without_labels(contents(table))
        else:
            assert contents(back) == contents(table)
        if FORMATS[name].keeps_columns:
            ids = [sorted(zip(t.column("pair_id"), t.column("image_id"), strict=True)) for t in (table, back)]
            assert ids[0] == ids[1]


@pytest.mark.parametrize("name", WRITERS)
def test_failed_writing_leaves_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_pairs(examples.jsonl(tmp_path / "in"))

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "out"
    target.mkdir()
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        written(table, target, name)
    assert not list(target.iterdir())


def test_shards_keep_what_differs_between_captions(tmp_path: Path) -> None:
    table = read_pairs(examples.jsonl(tmp_path / "in"))
    wrong = [row % 3 == 0 for row in range(len(table))]
    back = read_pairs(written(table.with_column("is_noisy", wrong), tmp_path, "webdataset"))
    expected = dict(zip(table.column("pair_id"), wrong, strict=True))
    assert dict(zip(back.column("pair_id"), back.column("is_noisy"), strict=True)) == expected


def test_folders_in_use_are_never_replaced(tmp_path: Path) -> None:
    table = read_pairs(examples.jsonl(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    for name in FOLDERS:
        with pytest.raises(DataError, match="exists already"):
            write_pairs(table, tmp_path / "out", name)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"


def test_only_images_are_copied(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_text("root:x:0:0")
    table = PairTable.from_columns({"image": ["secret.png"], "caption": ["a pond"]}, tmp_path)
    for name in ("folder", "webdataset"):
        with pytest.raises(DataError, match=r"secret\.png: does not begin like an image"):
            write_pairs(table, tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


def test_what_a_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    def table(**columns: list[str]) -> PairTable:
        return PairTable.from_columns(
            {"image": ["a.png", "a.png"], "caption": ["x", "y"], **columns}, tmp_path
        )

    with pytest.raises(DataError, match=r"image a\.png has split test and train"):
        write_pairs(table(split=["train", "test"]), tmp_path / "a.json", "karpathy")
    with pytest.raises(DataError, match="caption row 1: holds a line break"):
        write_pairs(table(caption=["x", "y\nz"]), tmp_path / "out", "amfmn")
    with pytest.raises(DataError, match="split 'extra'"):
        write_pairs(table(split=["extra", "extra"]), tmp_path / "out", "pir")
    with pytest.raises(ConfigError, match="'rs5m' cannot be written"):
        write_pairs(table(), tmp_path / "out", "rs5m")
    assert not list(tmp_path.iterdir())


# Finding files


def test_several_formats_in_a_folder_are_listed(tmp_path: Path) -> None:
    examples.karpathy(tmp_path)
    examples.jsonl(tmp_path)
    with pytest.raises(DataError, match=r"karpathy: dataset_fake\.json; jsonl: fake\.jsonl.*\n.*--format"):
        read_pairs(tmp_path)
    assert contents(read_pairs(tmp_path, format="karpathy")) == examples.rows()


def test_two_files_of_one_split_are_listed(tmp_path: Path) -> None:
    examples.rrsitr(tmp_path)
    (tmp_path / "FAKE-NC-04.csv").write_text((tmp_path / "FAKE-NC-02.csv").read_text())
    with pytest.raises(DataError, match=r"FAKE-NC-02\.csv and FAKE-NC-04\.csv may both be meant"):
        read_pairs(tmp_path)


def test_image_archives_are_explained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = examples.karpathy(tmp_path)
    with tarfile.open(tmp_path / "images-000.tar", "w") as tar:
        examples.add_member(tar, "images/pond_train0.png", examples.image())
    assert read_pairs(tmp_path, strict=True)  # the archive is no second format
    for image in (tmp_path / "images").iterdir():
        image.unlink()
    with caplog.at_level(logging.WARNING):
        table = read_pairs(path)
    assert len(table) == 30
    assert "extract images-000.tar" in caplog.text
    with pytest.raises(DataError, match=r"no image found below .*extract images-000\.tar"):
        read_pairs(path, strict=True)
    path.unlink()
    with pytest.raises(DataError, match=r"images-000\.tar holds images without captions"):
        read_pairs(tmp_path)


def test_image_folder_may_be_given(tmp_path: Path) -> None:
    path = examples.karpathy(tmp_path)
    (tmp_path / "far").mkdir()
    (tmp_path / "images").rename(tmp_path / "far" / "elsewhere")
    assert table_notes(read_pairs(path))
    table = read_pairs(path, images=tmp_path / "far" / "elsewhere", strict=True)
    assert table.image_path(0).is_file()
    with pytest.raises(DataError, match=r"nowhere: no such image folder"):
        read_pairs(path, images=tmp_path / "nowhere")


@pytest.mark.parametrize("place", ["pictures", "PNG", "data_images", "."])
def test_images_are_found_where_the_first_names_exist(tmp_path: Path, place: str) -> None:
    path = examples.karpathy(tmp_path)
    (tmp_path / "thumbnails").mkdir()
    for image in sorted((tmp_path / "images").iterdir()):
        (tmp_path / place).mkdir(exist_ok=True)
        image.rename(tmp_path / place / image.name)
    assert contents(read_pairs(path, strict=True)) == examples.rows()


# Known datasets


def known_table(counts: dict[str, int], name: str, captions_each: int = 5) -> PairTable:
    images = [f"{split}{number}.png" for split, count in counts.items() for number in range(count)]
    splits = [split for split, count in counts.items() for _ in range(count)]
    columns = {
        "image": [image for image in images for _ in range(captions_each)],
        "caption": ["x"] * len(images) * captions_each,
        "split": [split for split in splits for _ in range(captions_each)],
    }
    return PairTable.from_columns(columns, name=name)


@pytest.mark.parametrize("name", KNOWN)
def test_published_counts_are_consistent_and_accepted(name: str) -> None:
    for title, counts in KNOWN[name].splits.items():
        assert sum(counts.values()) == KNOWN[name].images
        table = known_table(dict(counts), f"dataset_{name.upper()}")
        assert (differences(table), images_per_split(table)) == ([], counts)
        assert matching_split(table) == title
        assert differences(table.split("test")) == []


def test_differences_are_said_clearly() -> None:
    table = known_table({"train": 1_680, "val": 210, "test": 209}, "ucm_captions")
    (difference,) = differences(table)
    assert "train 1,680 / val 210 / test 209 images, 2,099 in all" in difference
    assert "UCM-Captions is published with 2,100: train 1,680 / val 210 / test 210 (official)" in difference
    counts = dict(KNOWN["ucm"].splits["official"])
    (difference,) = differences(known_table(counts, "ucm", 5).slice(1))
    assert "1 images do not have the published 5 captions; the first is train0.png with 4" in difference
    assert differences(known_table({"train": 2}, "mine")) == []


def test_differences_are_logged_or_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = examples.karpathy(tmp_path).rename(tmp_path / "dataset_rsicd.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "dataset": "rsicd"}))
    with caplog.at_level(logging.WARNING):
        assert len(read_pairs(path)) == 30
    assert "RSICD is published with 10,921" in caplog.text
    with pytest.raises(DataError, match="RSICD is published with 10,921"):
        read_pairs(path, strict=True)


# The real datasets, where they are at hand


@pytest.mark.real_data
@pytest.mark.skipif("PMPGUARD_RSICD" not in os.environ, reason="PMPGUARD_RSICD is not set")
def test_real_rsicd() -> None:
    folder = Path(os.environ["PMPGUARD_RSICD"])
    table = read_pairs(folder / "dataset_rsicd.json")
    assert (len(table), differences(table), matching_split(table)) == (54_605, [], "official")
    assert images_per_split(table) == {"train": 8_734, "val": 1_094, "test": 1_093}
    if (folder / "rsicd_precomp").is_dir():
        texts = read_pairs(folder / "rsicd_precomp")
        assert (differences(texts), matching_split(texts)) == ([], "AMFMN, SWAN, PIR")
        assert images_per_split(texts) == {"train": 7_862, "val": 1_966, "test": 1_093}
        by_id = dict(zip(table.column("pair_id"), table.captions, strict=True))
        assert by_id == dict(zip(texts.column("pair_id"), texts.captions, strict=True))


@pytest.mark.real_data
@pytest.mark.skipif("PMPGUARD_UCM" not in os.environ, reason="PMPGUARD_UCM is not set")
def test_real_ucm() -> None:
    table = read_pairs(Path(os.environ["PMPGUARD_UCM"]))
    assert (len(table), differences(table), matching_split(table)) == (10_500, [], "official")
    assert images_per_split(table) == {"train": 1_680, "val": 210, "test": 210}


def test_parquet_parts_and_foreign_columns(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for part in range(2):
        table = pa.table({"filepath": [f"{part}.png"], "title": ["a pond"], "gsd": [0.5]})
        pq.write_table(table, tmp_path / "train" / f"part-{part}.parquet")
    table = read_pairs(tmp_path)
    assert (table.column("image"), table.splits()) == (["0.png", "1.png"], {"train": 2})
    assert table.column("gsd") == [0.5, 0.5]
