"""What can be embedded, and under which ids."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import format_examples as examples
from PIL import Image

from pmpguard.data import parquet_bounds
from pmpguard.data.formats import read_pairs, write_pairs
from pmpguard.errors import DataError
from pmpguard.search.sources import open_source


def png(path: Path, colour: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (colour, 0, 0)).save(path)


def test_a_folder_of_images_by_relative_path(tmp_path):
    for name in ("b.png", "a/c.PNG", "a/b/d.jpg"):
        png(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    png(tmp_path / ".cache/e.png")  # what is hidden is not meant
    png(tmp_path / "a/._b.png")
    source = open_source(tmp_path)
    assert source.ids == ["a/b/d.jpg", "a/c.PNG", "b.png"] and source.captions is None
    assert source.images.root == tmp_path
    assert open_source(tmp_path, prefix="first/").ids[0] == "first/a/b/d.jpg"
    assert open_source(tmp_path / "b.png").ids == ["b.png"]


def test_a_dataset_has_distinct_images_and_all_captions(small_search):
    source = open_source(small_search.world)
    table = read_pairs(small_search.world)
    assert len(source) == 40 and source.captions is not None and len(source.captions) == 200
    assert source.ids == list(dict.fromkeys(table.column("image_id")))
    renamed = open_source(small_search.world, prefix="x-")
    assert renamed.captions is not None
    assert renamed.captions.column("image_id")[0] == f"x-{source.ids[0]}"
    assert renamed.captions.column("pair_id")[0] == f"x-{table.column('pair_id')[0]}"


def test_shards_with_and_without_captions(small_search, tmp_path):
    write_pairs(read_pairs(small_search.world), tmp_path / "shards", "webdataset")
    source = open_source(tmp_path / "shards")
    assert len(source) == 40 and source.captions is not None
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    plain = tmp_path / "plain" / "a.tar"
    plain.parent.mkdir()
    with tarfile.open(plain, "w") as tar:
        for name in ("x/1.png", "2.png", "readme.md"):
            member = tarfile.TarInfo(name)
            member.size = len(buffer.getvalue())
            tar.addfile(member, io.BytesIO(buffer.getvalue()))
    for path in (plain, plain.parent, plain.parent / "*.tar"):
        assert open_source(path).ids == ["a.tar#x/1.png", "a.tar#2.png"]


def test_a_listing_of_images_keeps_its_columns(tmp_path):
    png(tmp_path / "tiles/1.png")
    table = pa.table({"id": ["scene/1"], "image": ["tiles/1.png"], "west": [8.5], "time": ["2024-05-01"]})
    pq.write_table(table, tmp_path / "metadata.parquet")
    for path in (tmp_path, tmp_path / "metadata.parquet"):
        source = open_source(path)
        assert source.ids == ["scene/1"] and source.images.column("west") == [8.5]
        assert source.captions is None and source.images.image_path(0) == tmp_path / "tiles/1.png"


def test_nothing_to_embed_is_an_error_that_says_so(tmp_path):
    with pytest.raises(DataError, match="no images here") as flagged:
        open_source(tmp_path)
    assert flagged.value.fix == "looked for .bmp, .gif, .jpeg, .jpg, .png, .tif, .tiff, .webp and .tar"
    with pytest.raises(DataError, match="no such file"):
        open_source(tmp_path / "absent")
    (tmp_path / "metadata.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(DataError, match=r"metadata\.parquet: not a readable parquet file"):
        open_source(tmp_path)


def test_a_damaged_listing_is_an_error_that_names_it(tmp_path):
    """Bytes flipped all over the file: names that are not UTF-8, pages cut short, descriptions that lie."""
    listing = tmp_path / "metadata.parquet"
    rows = 30
    columns = {
        "id": [f"a/{row}" for row in range(rows)],
        "image": ["1.png"] * rows,
        "bounds": [[1.0, 2.0]] * rows,
    }
    pq.write_table(pa.table(columns), listing, compression="zstd")
    whole = listing.read_bytes()
    refused = 0
    for place in range(4, len(whole), 5):
        listing.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            open_source(tmp_path)
        except DataError as error:
            assert str(tmp_path) in error.message, error.message
            refused += 1
    assert refused > len(whole) // 10


def test_a_listing_that_stands_for_far_more_than_it_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_bounds, "MIN_BYTES", 1 << 22)
    columns = {"image": [f"{row}.png" for row in range(10_000)], "tags": [["x" * 3_000]] * 10_000}
    pq.write_table(pa.table(columns), tmp_path / "metadata.parquet")
    with pytest.raises(DataError, match=r"metadata\.parquet: [\d,]+ bytes or more"):
        open_source(tmp_path)


def test_columns_may_be_named(tmp_path):
    (tmp_path / "list.csv").write_text("Bild,Text\na.png,a pond\n")
    source = open_source(tmp_path / "list.csv", columns="image=Bild,caption=Text")
    assert source.ids == ["a.png"] and source.captions is not None and source.captions.captions == ["a pond"]


def test_a_file_name_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / os.fsdecode(b"a\xff.png")).write_bytes(b"x")
    with pytest.raises(DataError, match=r"'a\\udcff\.png' is not UTF-8\nFix: rename the file"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["hugging_face_parquet", "saved_to_disk", "metadata_lines", "coco"])
def test_datasets_in_folders_of_folders_are_datasets(tmp_path, name):
    source = open_source(getattr(examples, name)(tmp_path / "data"))
    assert len(source) == 6 and source.captions is not None and len(source.captions) == 30
