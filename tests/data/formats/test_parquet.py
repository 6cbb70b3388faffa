"""Parquet: columns of any names, lists of captions, images inside, and what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import format_examples as examples
from helpers.arrow_memory import counted_memory

from pmpguard.data.formats import read_pairs
from pmpguard.data.formats.shards import image_bytes
from pmpguard.data.images.decode import load_pair_image
from pmpguard.data.pairs import NAME
from pmpguard.data.parquet_images import read_table_image
from pmpguard.errors import DataError, PmpguardError

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(folder: Path, columns: dict[str, Any], name: str = "a.parquet", **options: Any) -> Path:
    pq.write_table(pa.table(columns), folder / name, **options)
    return folder / name


def test_columns_named_and_in_any_case(tmp_path: Path) -> None:
    path = write(tmp_path, {"Bild": ["a.png"], "c1": ["one"], "c2": ["two"], "caption": ["other"]})
    table = read_pairs(path, "image=Bild,caption=c1+c2")
    assert (table.column("image"), table.captions) == (["a.png", "a.png"], ["one", "two"])
    path = write(tmp_path, {"Image": ["a.png"], "Caption_1": ["one"], "Caption_2": [None], "Split": ["val"]})
    table = read_pairs(path)
    assert (table.captions, table.splits()) == (["one"], {"val": 1})


def test_images_inside_are_read_from_the_file(tmp_path: Path) -> None:
    folder = examples.hugging_face_parquet(tmp_path)
    table = read_pairs(folder, strict=True)
    assert table.column("image")[0].endswith(".parquet#image/0") and len(table) == 30
    assert np.asarray(load_pair_image(table, 0)).shape == (4, 4, 3)
    assert {row.extra["file_name"] for row in table} == {scene["name"] for scene in examples.scenes()}


def test_a_damaged_file_with_images_inside_is_refused(tmp_path: Path) -> None:
    """Not even a description of a column that lies ends the process."""
    images = [{"bytes": b"x" * row, "path": None} for row in range(9)]
    path = write(tmp_path, {"image": pa.array(images, IMAGE), "text": ["a", "b", None] * 3})
    whole, refused = path.read_bytes(), 0
    for place in range(4, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            image_bytes(table := read_pairs(path), table.column("image")[0])
        except PmpguardError:
            refused += 1
    assert refused > len(whole) // 9


def test_an_image_a_hundred_thousand_times_stays_one_in_memory(tmp_path: Path) -> None:
    images = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array([b"x" * 10_000]))
    columns = {"image": pa.StructArray.from_arrays([images], ["bytes"])}
    path = write(tmp_path, columns, store_schema=False)
    with counted_memory() as counting:
        assert read_table_image(path, "image/77777", 20_000) == b"x" * 10_000
    assert 0 < counting.max_memory() < 1 << 22


def test_bytes_for_some_and_paths_for_others(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(examples.image(2))
    images = [{"bytes": examples.image(1), "path": None}, {"bytes": None, "path": "b.png"}]
    path = write(tmp_path, {"image": pa.array(images, IMAGE), "text": ["one", "two"]})
    table = read_pairs(path)
    assert table.column("image") == ["a.parquet#image/0", "b.png"]
    assert [image_bytes(table, image) for image in table.column("image")] == [
        examples.image(1),
        examples.image(2),
    ]
    only_paths = pa.array([{"path": "b.png"}], pa.struct([("path", pa.string())]))
    assert read_pairs(write(tmp_path, {"image": only_paths, "text": ["x"]}, "b.parquet")).column("image") == [
        "b.png"
    ]


def test_a_list_of_captions_keeps_the_other_columns(tmp_path: Path) -> None:
    path = write(tmp_path, {"image": ["a", "b"], "caption": [["1", "2"], ["3"]], "gsd": [0.5, 2.0]})
    table = read_pairs(path)
    assert (table.captions, table.column("gsd")) == (["1", "2", "3"], [0.5, 0.5, 2.0])
    assert len(set(table.column("pair_id"))) == 3 and table.column("image") == ["a", "a", "b"]
    with pytest.raises(DataError, match=r"a\.parquet row 1: no caption"):
        read_pairs(write(tmp_path, {"image": ["a", "b"], "caption": [["1"], []]}))


def test_a_name_that_is_not_utf8_does_not_matter(tmp_path: Path) -> None:
    table = pa.table({"image": ["a"], "caption": ["x"]}).replace_schema_metadata({NAME: b"\xff\xfe"})
    pq.write_table(table, tmp_path / "a.parquet")
    assert len(read_pairs(tmp_path / "a.parquet")) == 1


CASES: dict[str, dict[str, Any]] = {
    "caption struct": {"caption": [{"a": 1}, {"a": 2}]},
    "caption list of lists": {"caption": [[["x"]], [["y"]]]},
    "caption binary": {"caption": [b"\xff", b"y"]},
    "lon list": {"lon": [[1.0], [2.0]]},
    "lon struct": {"lon": [{"x": 1.0}, {"x": 2.0}]},
    "lat words": {"lat": ["north", "south"]},
    "id list": {"pair_id": [["1"], ["2"]]},
    "image_id struct": {"image_id": [{"a": 1}, {"a": 2}]},
    "label list": {"label": [["a"], ["b"]]},
    "split list": {"split": [["a"], ["b"]]},
    "image list": {"image": [["a"], ["b"]]},
    "text that is not UTF-8": {
        "caption": pa.Array.from_buffers(
            pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
        )
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_read_is_named(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, {"image": ["a", "b"], "caption": ["x", "y"], **CASES[case]})
    with pytest.raises(DataError, match=r"a\.parquet"):
        read_pairs(path)


def test_parts_of_differing_types_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"image": ["a"], "caption": ["x"], "gsd": [1.5]}, "train-0.parquet")
    write(tmp_path, {"image": ["b"], "caption": ["y"], "gsd": [["z"]]}, "train-1.parquet")
    with pytest.raises(DataError, match=r"train-0\.parquet and 1 more parts have columns of different types"):
        read_pairs(tmp_path)


def test_a_reference_to_nothing_is_an_error(tmp_path: Path) -> None:
    folder = examples.hugging_face_parquet(tmp_path)
    table = read_pairs(folder)
    for member in ("image/99", "image/x", "other/0", "label/0"):
        with pytest.raises(PmpguardError, match="parquet"):
            image_bytes(table, f"{table.column('image')[0].partition('#')[0]}#{member}")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_splits_have_their_usual_names(tmp_path: Path, kind: pa.DataType) -> None:
    said = pa.array(["validation", "Test", "north"], pa.string()).cast(kind)
    path = write(tmp_path, {"image": ["a.png", "b.png", "c.png"], "caption": ["x", "y", "z"], "split": said})
    assert read_pairs(path).column("split") == ["val", "test", "north"]
