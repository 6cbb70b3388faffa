"""Folders as clip-retrieval writes them."""

from __future__ import annotations

import numpy as np
import pytest
from planted_pairs import planted, write_clip_folder

from pmpguard.audit.clip_embeddings import match_pairs, read_clip_embeddings
from pmpguard.errors import DataError


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


def test_pairs_are_matched_by_file_name_and_caption(tmp_path):
    write_clip_folder(tmp_path, planted(images=3, per_image=2))
    embedded = read_clip_embeddings(tmp_path).table
    moved = embedded.take([4, 1]).with_column("image", ["elsewhere/2.png", "elsewhere/2.png"])
    assert match_pairs(moved, embedded).tolist() == [4, -1]


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


def remove_metadata(folder):
    for file in (folder / "metadata").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_count, "rows do not pair up"),
        (damage_width, "7 dimensions"),
        (damage_type, "holds int64"),
        (damage_metadata, "not readable as parquet"),
        (remove_metadata, "no .parquet files"),
    ],
)
def test_damage_is_named(tmp_path, damage, said):
    write_clip_folder(tmp_path, planted(images=3, per_image=2))
    damage(tmp_path)
    with pytest.raises(DataError, match=said):
        read_clip_embeddings(tmp_path)


def test_no_folder_says_what_is_expected(tmp_path):
    with pytest.raises(DataError, match="img_emb, text_emb and metadata"):
        read_clip_embeddings(tmp_path)
