"""Index files of other projects, built as those projects build them, and never unpickled."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.noise_rules import make_table

from pmpguard.errors import DataError
from pmpguard.noise.imported import from_image_index, from_permutation, read_index


def partly_shuffled(values, share, seed):
    """Shuffle a share of the entries among themselves; some may stay where they are."""
    chance = np.random.default_rng(seed)
    chosen = chance.permutation(len(values))[: int(share * len(values))]
    result = values.copy()
    result[chosen] = chance.permutation(values[chosen])
    return result


def wrong_rows(clean, noisy):
    """Row by row: the new caption is none of the image's."""
    captions_of = {}
    for pair in clean:
        captions_of.setdefault(pair.image_id, set()).add(pair.caption)
    return [after.caption not in captions_of[after.image_id] for after in noisy]


def test_permutation_of_pairs():
    clean = make_table(sentences=30)
    train = np.array([row for row, pair in enumerate(clean) if pair.split == "train"])
    order = partly_shuffled(np.arange(len(train)), 0.6, 0)
    result = from_permutation(clean, order)
    assert [result.table.row(row).caption for row in train] == [
        clean.row(train[place]).caption for place in order
    ]
    assert result.is_noisy.tolist() == wrong_rows(clean, result.table)
    assert result.effective_rate == result.is_noisy.sum() / len(train) < result.requested_rate
    assert (result.level, result.mode) == ("caption", "imported")


def test_permutation_of_images():
    clean = make_table(sentences=300)
    images = list(dict.fromkeys(pair.image_id for pair in clean if pair.split == "train"))
    order = partly_shuffled(np.arange(len(images)), 0.5, 1)
    result = from_permutation(clean, order)
    captions = {name: [pair.caption for pair in clean if pair.image_id == name] for name in images}
    for place, name in zip(order, images, strict=True):
        assert [p.caption for p in result.table if p.image_id == name] == captions[images[place]]
    assert result.is_noisy.tolist() == wrong_rows(clean, result.table)
    assert result.level == "image"


def test_image_of_each_caption():
    clean = make_table(sentences=40)
    train = [pair for pair in clean if pair.split == "train"]
    images = list(dict.fromkeys(pair.image_id for pair in train))
    own = np.array([images.index(pair.image_id) for pair in train])
    index = partly_shuffled(own, 0.4, 2)
    result = from_image_index(clean, index)
    expected = sorted((images[image], pair.caption) for image, pair in zip(index, train, strict=True))
    made = [pair for pair in result.table if pair.split == "train"]
    assert sorted((pair.image_id, pair.caption) for pair in made) == expected
    for row, (before, after) in enumerate(zip(train, made, strict=True)):
        if index[row] == own[row]:
            assert before == after
    assert result.is_noisy.tolist() == wrong_rows(clean, result.table)
    assert [p for p in result.table if p.split == "test"] == [p for p in clean if p.split == "test"]


def test_files_are_read_but_not_unpickled(tmp_path):
    np.save(tmp_path / "good.npy", np.array([2, 0, 1], dtype=np.int32))
    assert read_index(tmp_path / "good.npy").tolist() == [2, 0, 1]

    canary = tmp_path / "canary"

    class Planted:
        def __reduce__(self):
            return canary.touch, ()

    np.save(tmp_path / "pickled.npy", np.array([Planted()], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("0 1 2")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "several.npz", a=np.arange(3))
    np.save(tmp_path / "floats.npy", np.arange(3.0))
    np.save(tmp_path / "square.npy", np.zeros((2, 2), dtype=int))
    for name in (
        "pickled.npy",
        "text.npy",
        "empty.npy",
        "several.npz",
        "floats.npy",
        "square.npy",
        "absent.npy",
    ):
        with pytest.raises(DataError, match=name):
            read_index(tmp_path / name)
    assert not canary.exists()


def test_indices_of_other_datasets_are_refused():
    clean = make_table()
    with pytest.raises(DataError, match="7 entries; split 'train' has 160 pairs of 32 images"):
        from_permutation(clean, np.arange(7))
    with pytest.raises(DataError, match="each number from 0 to 159 once"):
        from_permutation(clean, np.zeros(160, dtype=np.int64))
    with pytest.raises(DataError, match="7 entries, split 'train' has 160 captions"):
        from_image_index(clean, np.arange(7))
    with pytest.raises(DataError, match="as many captions to each image"):
        from_image_index(clean, np.zeros(160, dtype=np.int64))
