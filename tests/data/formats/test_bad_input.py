"""Bad input: each mistake gets an error that names file and row or field, and says what to do."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import format_examples as examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.data.formats import FORMATS, read_pairs
from pmpguard.errors import ConfigError, DataError, PmpguardError

GOOD = '{"image": "a.png", "caption": "a pond"}\n'
BAD_FILES = {
    # name: (content, what the error says)
    "empty.json": (b"", "file is empty"),
    "empty.jsonl": (b"", "file is empty"),
    "broken.jsonl": (GOOD.encode() + b'{"image": ', r"broken\.jsonl line 2: not valid JSON"),
    "deep.jsonl": (b"[" * 100_000, r"deep\.jsonl line 1: JSON nested too deeply"),
    "list.jsonl": (b"[1, 2]\n", "line 1: not an object"),
    "latin.jsonl": (GOOD.encode() + "café\n".encode("latin-1"), r"line 2: not valid UTF-8 \(byte 0xe9"),
    "long.jsonl": (GOOD.encode() + b'{"image": "' + b"x" * 1_200_000, "line 2: longer than 1,000,000 bytes"),
    "caption.jsonl": (GOOD.replace("a pond", "x" * 10_001).encode(), "line 1: caption has 10,001 characters"),
    "key.jsonl": (
        GOOD.encode() + b'{"image": "a.png"}',
        r"line 2: no column for the caption\nFix: found image; name it with --columns",
    ),
    "number.jsonl": (b'{"image": "a.png", "caption": 7}', "line 1: caption is 7, not text"),
    "noimage.jsonl": (b'{"image": " ", "caption": "x"}', "line 1: image is ' '"),
    "split.jsonl": (b'{"image": "a.png", "caption": "x", "split": 3}', "line 1: split is 3"),
    "nan.jsonl": (b'{"image": "a.png", "caption": "x", "lon": NaN}', "line 1: lon is nan, outside ±180"),
    "far.jsonl": (b'{"image": "a.png", "caption": "x", "lat": 91}', "line 1: lat is 91, outside ±90"),
    "word.jsonl": (b'{"image": "a.png", "caption": "x", "lat": "n"}', "line 1: lat is 'n', not a number"),
    "time.jsonl": (b'{"image": "a.png", "caption": "x", "time": "May"}', "line 1: time is 'May'"),
    "twice.jsonl": (
        GOOD.replace("{", '{"pair_id": "7", ').encode() * 2,
        r"twice\.jsonl rows 0 and 1: both have pair_id '7'",
    ),
    "blank.jsonl": (b"\n\n", "holds no pairs"),
    "nan.csv": (b"filepath,title,lon\na.png,x,nan\n", r"nan\.csv line 2: lon is nan"),
    "fields.csv": (b"filepath,title\na.png,x\nb.png,x,y\n", "line 3: 3 fields where the header has 2"),
    "quote.csv": (b'filepath,title\na.png,"x\n', "line 2: unexpected end of data"),
    "latin.csv": (b"filepath,title\na.png,caf\xe9\nb.png,caf\xc3\xa9\n", "line 2: not valid UTF-8"),
    "nowhere.csv": (b"filepath,title\na.png,caf\x81\n", "line 2: not valid UTF-8"),  # nor Windows-1252
    "long.csv": (b"filepath,title\na.png," + b"x" * 20_000 + b"\n", "line 2: caption has 20,000 characters"),
    "onlyheader.csv": (b"filepath,title\n", "holds no pairs"),
    "unknown.csv": (
        b"left,right\na,b\n",
        r"not recognised.*\nFix: found left, right; name it with --columns",
    ),
    "metadata.csv": (b"file_name,text\n../a.png,x\n", r"pair 1: \.\./a\.png leaves the folder"),
    "half.jsonl": (b'{"image": "a.png", "caption": "a \\ud800"}', r"line 1: caption holds '\\ud800'"),
    "halfid.jsonl": (b'{"image": "a.png", "caption": "a", "pair_id": "\\udfff"}', "line 1: pair_id holds"),
    "ids.jsonl": (b'{"image": "a.png", "caption": "a", "image_id": [1]}', r"line 1: image_id is \[1\]"),
    "digits.jsonl": (
        b'{"image": "a.png", "caption": "a", "n": ' + b"7" * 5000 + b"}",
        "line 1: not readable",
    ),
    "digits.json": (b'{"images": [{"filename": ' + b"7" * 5000 + b"}]}", "not readable as JSON"),
    "broken.json": (b'{"images": [', "not valid JSON .*line 1 column 13"),
    "shape.json": (b'{"images": [3]}', r"images\[0\]: not an object with 'filename'"),
    "file.json": (b'{"images": [{"split": "train"}]}', r"images\[0\]: no field 'filename'\nFix: found split"),
    "split.json": (
        b'{"images": [{"filename": "a", "sentences": [{"raw": "x"}]}]}',
        r"images\[0\]: no field 'split'",
    ),
    "raw.json": (
        b'{"images": [{"filename": "a", "split": "train", "sentences": [{"row": "x"}]}]}',
        r"images\[0\]\.sentences\[0\]: no field 'raw'",
    ),
    "twice.json": (
        b'{"images": ['
        + b",".join([b'{"filename": "a", "split": "train", "sentences": [{"raw": "x"}]}'] * 2)
        + b"]}",
        r"images\[1\]: a is listed before, at .*images\[0\]",
    ),
    "none.json": (b'{"images": []}', "holds no pairs"),
    "classes.json": (b'{"pond": [{"filename": "a", "raw": "x"}]}', r"pond\[0\]: no field 'split'"),
    "pir.json": (b'[{"image": "a", "caption": "x"}, {"image": "b"}]', r"\[1\]: no field 'caption'"),
    "pir_test.json": (
        b'[{"image": "a", "caption": ["x"]}, {"image": "a", "caption": ["y"]}]',
        r"\[1\]: a is listed before",
    ),
    "broken.parquet": (b"PAR1 and nothing more", "not a readable parquet file"),
    "broken.tar": (b"no tar" * 200, "not a plain tar file"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"(?s){message}") as flagged:
        read_pairs(path)
    assert name in str(flagged.value)
    assert flagged.value.fix or "nested" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"caption": "a \\ud800"}', r"sample 'a': caption holds '\\ud800'"),
        (b'{"caption": "a", "n": ' + b"7" * 5000 + b"}", r"member 'a\.json': not readable"),
    ],
)
def test_json_in_a_shard_is_checked_as_in_a_file(tmp_path: Path, content: bytes, message: str) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as shard:
        for name, data in (("a.png", examples.image(0)), ("a.json", content)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
    with pytest.raises(DataError, match=r"s\.tar " + message):
        read_pairs(tmp_path / "s.tar")


def test_missing_path_and_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file or folder"):
        read_pairs(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"format 'kokos' is not known\nFix: one of captions, coco, "):
        read_pairs(tmp_path, format="kokos")
    with pytest.raises(DataError, match="format not recognised"):
        read_pairs(tmp_path)


@pytest.mark.parametrize("path", [None, 3, b"a.csv", [{"image": "a.png", "caption": "x"}]])
def test_a_path_of_another_type(path: Any) -> None:
    with pytest.raises(DataError, match=r"the path is a \w+\nFix: .*pmpguard\.audit also takes data frames"):
        read_pairs(path)


def test_wrong_split_name(tmp_path: Path) -> None:
    table = read_pairs(examples.karpathy(tmp_path))
    with pytest.raises(
        DataError, match=r"fake: no split named 'training'\nFix: this dataset has train, val, test"
    ):
        table.split("training")


def test_caption_and_name_counts_must_fit(tmp_path: Path) -> None:
    folder = examples.amfmn(tmp_path)
    names = folder / "test_filename.txt"
    names.write_text(names.read_text() + "extra.png\n")
    with pytest.raises(DataError, match=r"test_caps\.txt: 10 captions, but test_filename\.txt has 11 lines"):
        read_pairs(folder)
    names.unlink()
    with pytest.raises(DataError, match=r"test_filename\.txt: file not found"):
        read_pairs(folder)


def test_text_lines_are_checked(tmp_path: Path) -> None:
    folder = examples.amfmn(tmp_path)
    captions = folder / "test_caps.txt"
    lines = captions.read_text().splitlines()
    captions.write_text("\n".join([*lines[:-1], "x" * 50_000]) + "\n")
    with pytest.raises(DataError, match=r"test_caps\.txt line 10: caption has 50,000 characters"):
        read_pairs(folder)
    captions.write_bytes(b"fine\n" + b"x" * 1_500_000)
    with pytest.raises(DataError, match=r"test_caps\.txt line 2: longer than 1,000,000 bytes"):
        read_pairs(folder)
    captions.write_bytes(b"fine\n\xff\n")
    with pytest.raises(DataError, match=r"test_caps\.txt line 2: not valid UTF-8"):
        read_pairs(folder)


def test_parquet_rows_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"

    def write(**columns: list[object]) -> None:
        pq.write_table(pa.table({"image": ["a.png", "b.png"], "caption": ["x", "y"], **columns}), path)

    write(caption=["x", "y" * 10_001])
    with pytest.raises(DataError, match=r"a\.parquet row 1: caption over 10,000 characters"):
        read_pairs(path)
    write(caption=["x", None])
    with pytest.raises(DataError, match=r"a\.parquet row 1: caption is empty"):
        read_pairs(path)
    write(lat=[1.0, float("nan")])
    with pytest.raises(DataError, match=r"a\.parquet row 1: lat is nan"):
        read_pairs(path)
    write(pair_id=["1", "1"])
    with pytest.raises(DataError, match=r"a\.parquet rows 0 and 1: both have pair_id '1'"):
        read_pairs(path)
    pq.write_table(pa.table({"image": ["a.png"], "words": ["x"]}), path)
    with pytest.raises(
        DataError, match=r"no column for the caption\nFix: found image, words; name it with --columns"
    ):
        read_pairs(path)
    pq.write_table(pa.table({"image": pa.array([], pa.string()), "caption": pa.array([], pa.string())}), path)
    with pytest.raises(DataError, match="holds no pairs"):
        read_pairs(path)


@pytest.mark.parametrize("name", ["folder", "csv"])
@pytest.mark.parametrize("content", ['"file_name', '"a"b,c\n', '"file_name,caption\nx.png,roof\n'])
def test_a_csv_header_with_a_quote_left_open_is_named(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / "metadata.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=r"metadata\.csv line 1: .*\nFix: quote fields"):
        read_pairs(path, format=name)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(FORMATS)), content=st.binary(min_size=1, max_size=300))
def test_random_bytes_give_only_our_errors(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz_caps.txt"
    path.write_bytes(content)
    with pytest.raises(PmpguardError):
        read_pairs(path, format=name)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["images", "filename", "split", "sentences", "raw", "image", "caption", "lon", "time", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(["karpathy", "nwpu", "pir", "jsonl"]), value=json_values)
def test_any_json_gives_a_table_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    try:
        assert len(read_pairs(path, format=name)) > 0
    except PmpguardError as error:
        assert "fuzz.json" in str(error)


def test_names_of_files_that_are_not_utf8(tmp_path: Path) -> None:
    """An annotation file may have one, an image or a shard may not, for tables are UTF-8."""
    odd = os.fsdecode(b"\xff")
    (tmp_path / f"pairs{odd}.jsonl").write_text(GOOD)
    table = read_pairs(tmp_path / f"pairs{odd}.jsonl")
    assert table.name == "pairs?" and table.captions == ["a pond"]
    table.write_parquet(tmp_path / "out.parquet")
    folder = examples.webdataset(tmp_path / "shards")
    shard = next(folder.glob("*test*"))
    shard = shard.rename(folder / f"{odd}.tar")
    with pytest.raises(DataError, match=r"image holds '\\udcff'"):
        read_pairs(shard)
