"""Folders as clip-retrieval and `pmpguard embed` write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.planted_pairs import planted, write_clip_folder

from pmpguard.data.formats import embeddings, read_pairs
from pmpguard.data.formats.embeddings import match_pairs, read_clip_embeddings, unit_rows_of
from pmpguard.data.pairs import PairTable
from pmpguard.errors import DataError

PEER_FILES = Path(__file__).parent / "peer_files"


def test_parts_are_read_in_the_order_of_their_numbers(tmp_path):
    pairs = planted(images=6, per_image=4, dim=3)
    write_clip_folder(tmp_path, pairs, parts=12)  # part 10 comes after part 2
    found = read_clip_embeddings(tmp_path)
    assert found.images.shape == (6, 3) and found.captions.shape == (24, 3)
    assert found.images.dtype == np.float16
    np.testing.assert_allclose(found.images, pairs.images.astype("float16"))
    np.testing.assert_allclose(found.captions, pairs.captions.astype("float16"))
    assert found.table.captions[13] == f"caption 13 of something like {pairs.own[13]}"
    assert found.table.image_codes.tolist() == pairs.image_of.tolist()


def test_vectors_of_one_file_that_are_all_wanted_stay_on_disk(tmp_path):
    pairs = planted(images=6, per_image=4, dim=3)
    write_clip_folder(tmp_path, pairs, parts=1)  # every image four times, every caption once
    found = read_clip_embeddings(tmp_path)
    assert isinstance(found.captions.base, np.memmap) and not isinstance(found.images.base, np.memmap)


def test_rows_are_made_unit_vectors_block_by_block(monkeypatch):
    monkeypatch.setattr(embeddings, "BLOCK_ROWS", 2)
    vectors = np.array([[3, 4], [0, 0], [0, 2], [np.nan, 1]], np.float16)
    found = unit_rows_of(vectors, np.array([2, 0, 1, 0, 3]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:4], [[0, 1], [0.6, 0.8], [0, 0], [0.6, 0.8]], rtol=1e-6)
    assert np.isnan(found[4]).any()


def test_pairs_are_matched_by_file_name_and_caption(tmp_path):
    write_clip_folder(tmp_path, planted(images=3, per_image=2))
    embedded = read_clip_embeddings(tmp_path).table
    moved = embedded.take([4, 1]).with_column("image", ["elsewhere/2.png", "elsewhere/2.png"])
    assert match_pairs(moved, embedded).tolist() == [4, -1]


def test_files_of_clip_retrieval_are_matched_with_the_shards_they_were_made_from():
    """Both by their own writers: tests/peers/clip_retrieval_files.py and img2dataset_files.py."""
    embedded = read_clip_embeddings(PEER_FILES / "clip_retrieval")
    shards = read_pairs(PEER_FILES / "img2dataset" / "webdataset")
    rows = match_pairs(shards, embedded.table)
    assert sorted(rows) == list(range(6))
    assert [embedded.table.captions[row] for row in rows] == list(shards.captions)
    colours = embedded.images[embedded.table.image_codes[rows], :3].astype(np.float32)
    number = np.array([int(caption.rpartition(" ")[2]) for caption in shards.captions])
    wanted = np.stack([40 * number, np.full(6, 80), np.full(6, 40)], 1)
    np.testing.assert_allclose(colours / colours[:, 1:2], wanted / 80, rtol=2e-3)  # half precision


def same_caption(*names):
    return PairTable.from_columns({"image": list(names), "caption": ["a pond"] * len(names)})


@pytest.mark.parametrize(
    ("here", "embedded", "rows"),
    [
        (["a/1.png", "b/1.png"], ["b/1.png", "a/1.png"], [1, 0]),  # the whole name
        (["1.png"], ["a/1.png", "1.png"], [1]),  # goes before any ending
        (["a/1.png", "b/1.png"], ["/x/b/1.png", "/x/a/1.png"], [1, 0]),  # the longest ending
        (["s/0.tar#1.png", "s/1.tar#1.png"], ["1.tar#1.png", "0.tar#1.png"], [1, 0]),
        (["1.png"], ["a/1.png", "b/1.png"], [-1]),  # may be either
        (["0.tar#000001.jpg"], ["000001"], [0]),  # the key of a sample, as img2dataset writes it
        (["0.tar#01.jpg", "1.tar#01.jpg"], ["01"], [-1, -1]),  # a key of two images
        (["c/1.png"], ["a/1.png", "b/1.png"], [-1]),
        (["a/1.png", "b/1.png"], ["a/1.png"], [0, -1]),  # that image is another one's
        (["x/a/1.png", "b/1.png"], ["y/a/1.png"], [0, -1]),
        (["a/1.png", "b/1.png"], ["c/1.png"], [-1, -1]),  # either may be it
        (["b/1.png"], ["c/1.png", "c/1.png"], [0]),  # one image, listed twice
    ],
)
def test_equal_file_names_and_captions_are_told_apart_by_their_folders(here, embedded, rows):
    assert match_pairs(same_caption(*here), same_caption(*embedded)).tolist() == rows


def test_a_pickled_array_is_never_opened(tmp_path):
    canary = tmp_path / "canary"

    class Planter:
        def __reduce__(self):
            return (open, (str(canary), "w"))

    write_clip_folder(tmp_path, planted(images=3, per_image=2))
    with (tmp_path / "img_emb/img_emb_0.npy").open("wb") as stream:
        np.save(stream, np.array([Planter()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"img_emb_0\.npy: not a plain \.npy array"):
        read_clip_embeddings(tmp_path)
    assert not canary.exists()


def damage_count(folder):
    np.save(folder / "text_emb/text_emb_0.npy", np.ones((1, 16), np.float16))


def damage_width(folder):
    np.save(folder / "img_emb/img_emb_1.npy", np.ones((3, 7), np.float16))


def damage_type(folder):
    np.save(folder / "img_emb/img_emb_0.npy", np.ones((3, 16), np.int64))


def damage_metadata(folder):
    (folder / "metadata/metadata_0.parquet").write_bytes(b"nonsense")


def damage_column_name(folder):
    """A name that is not UTF-8, as fuzzing found it."""
    path = folder / "metadata/metadata_0.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("spare_name", pa.array(["x"] * len(table))), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"spare_name", b"spare_\xfb\xfbme"))


def remove_metadata(folder):
    for file in (folder / "metadata").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_count, "rows do not pair up"),
        (damage_width, "7 dimensions"),
        (damage_type, "holds int64"),
        (damage_metadata, "not a readable parquet file"),
        (damage_column_name, "not a readable parquet file"),
        (remove_metadata, "no .parquet files"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    write_clip_folder(tmp_path, planted(images=3, per_image=2))
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        read_clip_embeddings(tmp_path)


def test_no_folder_says_what_is_expected(tmp_path):
    with pytest.raises(DataError, match="img_emb, text_emb and metadata"):
        read_clip_embeddings(tmp_path)


def write_apart(folder, images=3, per_image=2):
    """Images and captions each once, the captions not in the order of the images."""
    for name in ("img_emb", "text_emb", "metadata", "text_metadata"):
        (folder / name).mkdir(parents=True)
    np.save(folder / "img_emb/0.npy", np.arange(images, dtype=np.float32)[:, None] + [[0.5, 1.0]])
    order = [number for number in reversed(range(images)) for _ in range(per_image)]
    np.save(folder / "text_emb/0.npy", np.arange(len(order), dtype=np.float16)[:, None] + [[0.0, 1.0]])
    ids = [f"id {number}" for number in range(images)]
    pq.write_table(
        pa.table({"id": ids, "image": [f"{one}.png" for one in ids]}), folder / "metadata/0.parquet"
    )
    texts = {
        "id": [f"pair {place}" for place in range(len(order))],
        "image": [f"id {number}.png" for number in order],
        "image_id": [f"id {number}" for number in order],
        "caption": [f"caption {place}" for place in range(len(order))],
    }
    pq.write_table(pa.table(texts), folder / "text_metadata/0.parquet")
    (folder / "embedding.json").write_text('{"root": "/where/images/are"}')


def test_images_and_captions_listed_apart(tmp_path):
    write_apart(tmp_path)
    found = read_clip_embeddings(tmp_path)
    assert found.table.column("pair_id")[:2] == ["pair 0", "pair 1"]
    assert str(found.table.image_path(0)) == "/where/images/are/id 2.png"
    of_pairs = found.images[found.table.image_codes][:, 0]
    assert of_pairs.tolist() == [2.5, 2.5, 1.5, 1.5, 0.5, 0.5]
    assert found.captions[found.table.caption_codes][:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_captions_of_a_image_that_is_not_there(tmp_path):
    write_apart(tmp_path)
    lacking = pa.table({"id": ["id 0", "id 1", "other"], "image": ["a", "b", "c"]})
    pq.write_table(lacking, tmp_path / "metadata/0.parquet")
    with pytest.raises(DataError, match="captions of 'id 2', but no such image"):
        read_clip_embeddings(tmp_path)
    pq.write_table(lacking.drop_columns(["id"]), tmp_path / "metadata/0.parquet")
    with pytest.raises(DataError, match="no column 'id'"):
        read_clip_embeddings(tmp_path)
