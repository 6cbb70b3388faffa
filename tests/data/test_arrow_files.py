"""Arrow streams of strangers: mapped, and refused where they hold more than the file."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.format_examples import CLASSES, saved_to_disk
from PIL import Image

from pmpguard.data import parquet_bounds
from pmpguard.data.arrow_files import map_arrow
from pmpguard.data.formats import read_pairs
from pmpguard.data.images.decode import load_pair_image
from pmpguard.errors import DataError, PmpguardError


def write(path: Path, table: pa.Table, compression: str | None = None) -> Path:
    with path.open("wb") as stream:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
            writer.write_table(table)
    return path


def test_a_table_is_mapped_as_it_is(tmp_path: Path) -> None:
    table = pa.table({"image": ["a", "b"], "caption": [["x"], ["y", None]], "gsd": [1.5, None]})
    before = pa.total_allocated_bytes()
    mapped = map_arrow(write(tmp_path / "a.arrow", table))
    assert mapped.equals(table)
    big = pa.table({"image": pa.array(["x" * 1000] * 10_000), "caption": ["y"] * 10_000})
    found = map_arrow(write(tmp_path / "b.arrow", big))
    assert found.num_rows == 10_000 and pa.total_allocated_bytes() - before < 20 << 20


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_columns_are_refused(tmp_path: Path, compression: str) -> None:
    table = pa.table({"image": ["a.png"] * 1000, "caption": ["x" * 1000] * 1000})
    with pytest.raises(DataError, match=r"a\.arrow: holds compressed columns\nFix: write it as parquet"):
        map_arrow(write(tmp_path / "a.arrow", table, compression))


def test_rows_of_nothing_and_dictionaries_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_bounds, "MIN_ROWS", 1000)
    with pytest.raises(DataError, match=r"a\.arrow: 1,000,000 rows or more in a file of"):
        map_arrow(write(tmp_path / "a.arrow", pa.table({"image": pa.nulls(1_000_000)})))
    monkeypatch.setattr(parquet_bounds, "MIN_BYTES", 1 << 20)
    monkeypatch.setattr(parquet_bounds, "MIN_ROWS", 1 << 20)
    codes = pa.DictionaryArray.from_arrays(pa.array(np.zeros(90_000, np.int8)), pa.array(["x" * 5000]))
    with pytest.raises(DataError, match=r"b\.arrow: [\d,]+ bytes or more"):
        map_arrow(write(tmp_path / "b.arrow", pa.table({"caption": codes})))


def test_offsets_that_lead_out_of_the_file_are_refused(tmp_path: Path) -> None:
    """A mapped table is not checked by pyarrow: what it says of itself would be believed."""
    table = pa.table({"image": ["a.png", "b.png"], "caption": ["marked one", "two"]})
    path = write(tmp_path / "a.arrow", table)
    data = bytearray(path.read_bytes())
    ends = np.array([0, 10, 13], "<i4").tobytes()
    assert data.count(ends) == 1
    place = data.index(ends)
    data[place : place + 12] = np.array([0, 1 << 30, 13], "<i4").tobytes()
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"a\.arrow: not a readable Arrow file"):
        read_pairs(path)


def test_what_is_no_stream_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"no stream at all")
    with pytest.raises(DataError, match=r"a\.arrow: not a readable Arrow stream"):
        read_pairs(tmp_path / "a.arrow")


def test_a_class_name_that_is_no_text_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    folder = saved_to_disk(tmp_path / "data")
    info = folder / "train" / "dataset_info.json"
    info.write_text(info.read_text().replace(CLASSES[0], "\\ud800"))
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow: not a readable Arrow file"):
        read_pairs(folder)


def test_an_image_of_a_stream_that_was_cut_short_is_an_error_and_never_a_signal(tmp_path: Path) -> None:
    """Not even where the file claims to be as old as it was: what lies behind its end is not touched."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    streams = [io.BytesIO() for _ in pixels]
    for image, stream in zip(pixels, streams, strict=True):
        Image.fromarray(image).save(stream, "PNG")  # several pages of memory each
    images = [{"bytes": stream.getvalue(), "path": None} for stream in streams]
    path = write(tmp_path / "a.arrow", pa.table({"image": images, "caption": ["a", "b", "c", "d"]}))
    table, status = read_pairs(path), path.stat()
    load_pair_image(table, 0)
    os.truncate(path, 1000)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PmpguardError, match=r"a\.arrow"):
        load_pair_image(table, 3)
