"""What is written, read by those it is written for: Hugging Face's datasets, COCO's own code, webdataset."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import webdataset
import yaml
from helpers import format_examples as examples
from helpers.hugging_face import datasets
from PIL import Image
from pycocotools.coco import COCO

from pmpguard.data.formats import read_pairs, write_pairs
from pmpguard.data.pairs import PairTable

LOADED = {"train": "train", "validation": "val", "test": "test"}  # by the splits' names there


def audited(folder: Path) -> PairTable:
    """The scenes with what a cleaned dataset has besides."""
    table = read_pairs(examples.karpathy(folder))
    count = len(table)
    table = table.with_column("p_match", [row / count for row in range(count)])
    return table.with_column("original_caption", [None if row % 3 else "another" for row in range(count)])


def load(path: Path, cache: Path, kind: str | None = None, **options: Any) -> Any:
    return datasets.load_dataset(*([kind] if kind else []), str(path), cache_dir=str(cache), **options)


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def test_load_dataset_takes_an_image_folder_with_its_splits(tmp_path: Path) -> None:
    table = audited(tmp_path / "in")
    write_pairs(table, tmp_path / "out", "folder", ["Estimated noise rate: 12 %."])
    loaded = load(tmp_path / "out", tmp_path / "cache")
    rows = sorted(
        (png(row["image"]), row["text"], LOADED[split], row["label"])
        for split, part in loaded.items()
        for row in part
    )
    assert rows == examples.rows()
    known = {row["pair_id"]: row["p_match"] for part in loaded.values() for row in part}
    assert known == dict(zip(table.column("pair_id"), table.column("p_match"), strict=True))
    assert read_pairs(tmp_path / "out", strict=True).splits() == table.splits()


def test_load_dataset_takes_a_folder_of_the_hub(tmp_path: Path) -> None:
    table = audited(tmp_path / "in")
    write_pairs(table, tmp_path / "out", "hub")
    loaded = load(tmp_path / "out", tmp_path / "cache")
    assert isinstance(loaded["train"].features["image"], datasets.Image)
    rows = sorted(
        (png(row["image"]), caption, LOADED[split], row["label"])
        for split, part in loaded.items()
        for row in part
        for caption in row["captions"]
    )
    assert rows == examples.rows()
    back = read_pairs(tmp_path / "out", strict=True)
    for column in ("caption", "image_id", "p_match", "original_caption", "split", "label"):
        by_id = [dict(zip(t.column("pair_id"), t.column(column), strict=True)) for t in (table, back)]
        assert by_id[0] == by_id[1]


def test_splits_of_any_name_are_kept(tmp_path: Path) -> None:
    table = read_pairs(examples.karpathy(tmp_path / "in")).with_column("split", ["north-2"] * 30)
    for form in ("folder", "hub"):
        write_pairs(table, tmp_path / form, form)
        assert set(load(tmp_path / form, tmp_path / "cache")) == {"north_2"}
        assert read_pairs(tmp_path / form, strict=True).splits() == {"north-2": 30}


def test_an_image_in_two_splits_is_stored_in_both(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(examples.image())
    columns = {"image": ["a.png"] * 2, "caption": ["x", "y"], "split": ["train", "test"]}
    for form in ("folder", "hub", "coco", "webdataset"):
        write_pairs(PairTable.from_columns(columns, tmp_path), tmp_path / form, form)
        assert read_pairs(tmp_path / form, strict=True).splits() == {"test": 1, "train": 1}


def test_the_card_names_files_columns_and_where_it_comes_from(tmp_path: Path) -> None:
    write_pairs(
        audited(tmp_path / "in"), tmp_path / "out", "hub", ["Estimated noise rate: 12 %.\n# not a title"]
    )
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    _, head, body = card.split("---\n", 2)
    described = yaml.safe_load(head)
    assert described["size_categories"] == ["n<1K"] and "image-to-text" in described["task_categories"]
    assert described["configs"][0]["data_files"][0] == {"split": "train", "path": "data/train-*.parquet"}
    assert "| train | 15 | 3 |" in body and "* `p_match`:" in body and "`weight`" not in body
    assert "* Estimated noise rate: 12 %.\\u000a# not a title" in body


@pytest.mark.parametrize("form", ["coco", "webdataset"])
def test_every_folder_has_a_card(tmp_path: Path, form: str) -> None:
    write_pairs(audited(tmp_path / "in"), tmp_path / "out", form, ["Estimated noise rate: 12 %."])
    _, head, body = (tmp_path / "out" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    files = [{"split": "train", "path": "train-??????.tar"}] if form == "webdataset" else []
    assert [each["data_files"][0] for each in yaml.safe_load(head).get("configs", [])] == files
    assert "| train | 15 | 3 |" in body and "* Estimated noise rate: 12 %." in body


def test_coco_reads_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = audited(tmp_path / "in")
    write_pairs(table, tmp_path / "out", "coco")
    found = []
    for split in table.splits():
        coco = COCO(str(tmp_path / "out" / "annotations" / f"captions_{split}.json"))
        for entry in coco.loadImgs(coco.getImgIds()):
            data = (tmp_path / "out" / "images" / Path(entry["file_name"]).name).read_bytes()
            assert (entry["width"], entry["height"]) == (4, 4)
            for annotation in coco.loadAnns(coco.getAnnIds(imgIds=[entry["id"]])):
                found.append((data, annotation["caption"], split, entry["label"]))
    assert sorted(found) == examples.rows()
    back = read_pairs(tmp_path / "out", strict=True)
    assert dict(zip(back.column("pair_id"), back.column("p_match"), strict=True)) == dict(
        zip(table.column("pair_id"), table.column("p_match"), strict=True)
    )


def test_webdataset_and_datasets_read_our_shards(tmp_path: Path) -> None:
    write_pairs(audited(tmp_path / "in"), tmp_path / "out", "webdataset")
    samples = list(webdataset.WebDataset(str(tmp_path / "out" / "train-000000.tar"), shardshuffle=False))
    assert [json.loads(sample["json"])["captions"][0] for sample in samples] == [
        sample["txt"].decode() for sample in samples
    ]
    wanted = {row[:2] for row in examples.rows() if row[2] == "train"}
    assert {(sample["png"], sample["txt"].decode()) for sample in samples} <= wanted and len(samples) == 3
    loaded = load(tmp_path / "out", tmp_path / "cache")
    assert {LOADED[split] for split in loaded} == {row[2] for row in examples.rows()}
    assert [row["txt"] for row in loaded["train"]] == [sample["txt"].decode() for sample in samples]
