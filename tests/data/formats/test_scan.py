"""Precomputed regions: captions and images by number, features by image, what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import format_examples as examples

from pmpguard.data.formats import find_files, read_pairs
from pmpguard.data.formats.scan import image_features
from pmpguard.data.formats.shards import image_bytes
from pmpguard.errors import DataError


def test_captions_and_regions(tmp_path: Path) -> None:
    folder = examples.scan(tmp_path / "f30k_precomp")
    assert find_files(folder)[0] == "scan"
    table = read_pairs(folder, strict=True)
    assert table.splits() == {"val": 5, "test": 10, "train": 15} and table.name == "f30k_precomp"
    wanted = {
        caption: shade for shade, scene in enumerate(examples.scenes()) for caption in scene["captions"]
    }
    features = image_features(table)
    assert features.shape == (6, 8) and features.dtype == np.float32
    assert [features[code, 0] for code in table.image_codes] == [wanted[text] for text in table.captions]
    with pytest.raises(DataError, match="holds no images\nFix: it has features"):
        image_bytes(table, table.column("image")[0])


def test_pooled_features_and_images_repeated_for_each_caption(tmp_path: Path) -> None:
    (tmp_path / "train_caps.txt").write_text("a\nb\nc\nd\n")
    np.save(tmp_path / "train_ims.npy", np.array([[1.0, 2], [1, 2], [3, 4], [1, 2]], np.float16))
    table = read_pairs(tmp_path)
    assert table.column("image") == [f"train_ims.npy#{number}" for number in (0, 0, 2, 3)]
    assert image_features(table).tolist() == [[1, 2], [3, 4], [1, 2]]


def test_images_that_begin_alike_are_different_images(tmp_path: Path) -> None:
    (tmp_path / "train_caps.txt").write_text("a\nb\nc\n")
    regions = np.zeros((3, 5, 8))
    regions[2, 4, 7] = 1
    np.save(tmp_path / "train_ims.npy", regions)
    assert read_pairs(tmp_path).column("image") == [f"train_ims.npy#{number}" for number in (0, 0, 2)]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 2)), "4 captions, but train_ims.npy has 3 images"),
        (np.zeros((0, 2)), "has 0 images"),
        (np.zeros(4), r"holds float64 of shape \(4,\)"),
        (np.zeros((4, 2), int), "holds int64 of shape"),
        (np.array([None, 1], object), "not a plain .npy array"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, array: np.ndarray, message: str) -> None:
    (tmp_path / "train_caps.txt").write_text("a\nb\nc\nd\n")
    np.save(tmp_path / "train_ims.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=message):
        read_pairs(tmp_path)


def test_features_of_other_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"image .*\.png is no row of features"):
        image_features(read_pairs(examples.karpathy(tmp_path)))
