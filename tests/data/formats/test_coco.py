"""COCO's captions among its other annotations, as its archive has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import format_examples as examples

from pmpguard.data.formats import find_files, read_pairs
from pmpguard.errors import DataError


def write_boxes(folder: Path, name: str) -> Path:
    """Objects of the same images, before which the images and licences are listed."""
    captions = json.loads((folder / "annotations" / "captions_val2017.json").read_text())
    boxes = [{"id": 1, "image_id": captions["images"][0]["id"], "bbox": [0, 0, 2, 2], "category_id": 1}]
    path = folder / "annotations" / name
    path.write_text(json.dumps({**captions, "annotations": boxes, "categories": []}))
    return path


@pytest.mark.parametrize(
    "name", ["instances_val2017.json", "person_keypoints_val2017.json", "image_info_test-dev2017.json"]
)
def test_other_annotations_beside_the_captions(tmp_path: Path, name: str) -> None:
    other = write_boxes(examples.coco(tmp_path), name)
    assert find_files(tmp_path)[0] == "coco" and other not in find_files(tmp_path)[1]
    assert len(read_pairs(tmp_path, strict=True)) == 30
    with pytest.raises(DataError, match="not recognised"):
        read_pairs(other)


def test_annotations_without_captions_are_named(tmp_path: Path) -> None:
    path = write_boxes(examples.coco(tmp_path), "mine.json")
    with pytest.raises(
        DataError, match=r"mine\.json annotations\[0\]: no field 'caption'\nFix: found id, image_id"
    ):
        read_pairs(path)


def test_splits_of_karpathy_for_coco(tmp_path: Path) -> None:
    """The images that were left over of COCO's validation are trained on."""
    path = examples.karpathy(tmp_path)
    path.write_text(path.read_text().replace('"split": "val"', '"split": "restval"'))
    assert read_pairs(path).splits() == {"test": 10, "train": 20}
