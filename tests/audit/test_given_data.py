"""Pairs from memory: data frames, datasets in every manner, samples as torchgeo gives them."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
from helpers import format_examples as examples
from helpers.hugging_face import dataset_of, datasets
from PIL import Image

import pmpguard
from pmpguard.audit.given_data import holds_pairs, image_path, pairs_of_data
from pmpguard.data.formats.shards import image_bytes
from pmpguard.data.images.decode import load_pair_image
from pmpguard.data.pairs import PairTable
from pmpguard.errors import DataError

SCENES = examples.scenes()
PEERS = os.environ.get("PMPGUARD_PEERS", "")  # a Python that has torchgeo


def pairs(data: Any, folder: Path, columns: Any = None) -> PairTable:
    assert holds_pairs(data)
    return pairs_of_data(data, columns, None, folder)


def contents(table: PairTable) -> list[tuple[bytes, str, str, str | None]]:
    return sorted((image_bytes(table, row.image), row.caption, row.split, row.label) for row in table)


TRAIN = [row for row in examples.rows() if row[2] == "train"]


@pytest.mark.parametrize("manner", ["whole", "streamed", "numpy", "torch"])
def test_a_dataset_keeps_its_images_as_they_are(tmp_path: Path, manner: str) -> None:
    data = dataset_of("train")
    data = data.to_iterable_dataset() if manner == "streamed" else data
    data = data.with_format(manner) if manner in ("numpy", "torch") else data
    assert contents(pairs(data, tmp_path)) == TRAIN


@pytest.mark.parametrize("streamed", [False, True])
def test_a_dict_of_splits(tmp_path: Path, streamed: bool) -> None:
    parts = {"validation" if split == "val" else split: dataset_of(split) for split in examples.SPLITS}
    kind = datasets.IterableDatasetDict if streamed else datasets.DatasetDict
    data = kind({name: part.to_iterable_dataset() if streamed else part for name, part in parts.items()})
    assert contents(pairs(data, tmp_path)) == examples.rows()


def test_a_stream_that_was_mapped_does_not_know_its_columns(tmp_path: Path) -> None:
    stream = dataset_of("train").to_iterable_dataset().map(lambda row: {"captions": row["captions"][:2]})
    assert stream.features is None and len(pairs(stream, tmp_path)) == 6


def test_frames_with_several_caption_columns_and_gaps(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {"file": ["a.png", "b.png"], "c1": ["one", "two"], "c2": [None, "three"], "gsd": [np.nan, 2.5]}
    )
    table = pairs(frame, tmp_path, {"image": "file", "caption": ["c1", "c2"]})
    assert table.captions == ["one", "two", "three"] and table.column("gsd") == [None, 2.5, 2.5]
    lists = pandas.DataFrame({"image": ["a.png"], "captions": [np.array(["one", "two"], object)]})
    assert pairs(lists, tmp_path).captions == ["one", "two"]


class Samples:
    """As a data set of torchgeo: bands as a tensor, a class by its number, names of the classes."""

    classes = examples.CLASSES

    def __init__(self, scale: float = 1.0, bands: int = 4) -> None:
        self.scale, self.bands = scale, bands

    def __len__(self) -> int:
        return len(SCENES)

    def __getitem__(self, number: int) -> dict[str, Any]:
        bands = torch.arange(self.bands * 16.0).reshape(self.bands, 4, 4) + number
        label = torch.tensor(examples.CLASSES.index(SCENES[number]["label"]))
        return {"image": bands * self.scale, "caption": SCENES[number]["captions"], "label": label}


@pytest.mark.parametrize("scale", [1.0, 1 / 255])
def test_samples_by_number(tmp_path: Path, scale: float) -> None:
    table = pairs(Samples(scale), tmp_path)
    assert table.captions == [text for scene in SCENES for text in scene["captions"]]
    assert table.column("label")[::5] == [scene["label"] for scene in SCENES]
    pixels = np.asarray(load_pair_image(table, 5))  # of the second image
    expected = np.moveaxis(np.arange(48).reshape(3, 4, 4) + 1, 0, 2)  # (H, W, 3), the first three bands
    assert np.array_equal(pixels, expected)


def test_deep_bands_are_stretched_and_one_band_is_grey(tmp_path: Path) -> None:
    deep = np.asarray(load_pair_image(pairs(Samples(137.5), tmp_path), 0))
    assert deep.min() == 0 and deep.max() == 255
    grey = np.asarray(load_pair_image(pairs(Samples(bands=1), tmp_path), 0))
    assert (grey[..., 0] == grey[..., 1]).all() and grey[0, 1, 0] == 1


class Sentinel:
    """As torchgeo's sets, which say what bands they give and which of them are red, green and blue."""

    bands = ("B01", "B02", "B03", "B04", "B05", "B06")
    rgb_bands: tuple[str, ...] = ("B04", "B03", "B02")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"image": torch.arange(6.0)[:, None, None].expand(6, 8, 8) + number, "caption": "a pond"}


def test_bands_are_chosen_as_the_data_set_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert np.asarray(load_pair_image(pairs(Sentinel(), tmp_path), 0))[0, 0].tolist() == [3, 2, 1]
    assert not caplog.text
    nameless = Sentinel()
    nameless.rgb_bands = ()
    assert np.asarray(load_pair_image(pairs(nameless, tmp_path), 0))[0, 0].tolist() == [0, 1, 2]
    assert caplog.text.count("row 0: the first three of 6 bands are taken for red, green and blue") == 1


@pytest.mark.slow
@pytest.mark.skipif(not PEERS, reason="PMPGUARD_PEERS names no Python that has torchgeo")
def test_a_data_set_of_the_real_torchgeo(tmp_path: Path, record_property: Any) -> None:
    script = Path(__file__).parents[1] / "peers" / "torchgeo_samples.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PEERS, str(script), str(tmp_path)], check=True, env=environment, capture_output=True
    )
    found = json.loads(done.stdout)
    record_property("images of torchgeo", len(found["pixels"]))
    assert found["captions"] == ["Forest", "River"]
    assert found["pixels"] == [[40, 30, 20], [140, 130, 120]]  # bands 4, 3 and 2


def test_a_table_of_arrow(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(examples.image())
    table = pa.table(
        {"image": [str(tmp_path / "a.png")], "captions": [["one", "two"]], "split": ["validation"]}
    )
    assert [(row.caption, row.split) for row in pairs(table, tmp_path)] == [("one", "val"), ("two", "val")]


def test_equal_images_are_one_file(tmp_path: Path) -> None:
    picture = Image.open(io.BytesIO(examples.image()))
    assert len({image_path(picture, tmp_path, "row 0") for _ in range(2)}) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_no_dataset_is_said(tmp_path: Path) -> None:
    assert not holds_pairs("path") and not holds_pairs(np.zeros(3)) and not holds_pairs(3)
    with pytest.raises(
        DataError, match="row 0: a sample is a tuple\nFix: give a dict with image and caption"
    ):
        pairs([(1, 2)], tmp_path)
    with pytest.raises(DataError, match=r"row 0: image has shape \(2, 2, 2, 2\) of float64"):
        pairs([{"image": np.zeros((2, 2, 2, 2)), "caption": "x"}], tmp_path)
    with pytest.raises(DataError, match="row 0: image is a object"):
        pairs([{"image": object(), "caption": "x"}], tmp_path)
    with pytest.raises(DataError, match="train row 0: no column for the caption"):
        pairs({"train": [{"image": "a.png", "words": "x"}]}, tmp_path)


@pytest.mark.slow
def test_an_audit_takes_samples(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = generator.normal(size=(len(SCENES), 16))
    texts = np.repeat(images, 5, 0) + 0.1 * generator.normal(size=(30, 16))
    audit = pmpguard.audit(Samples(), texts=texts, images=images, bootstrap=0)
    assert len(audit.p_match) == 30 and audit.table.column("label")[0] == "pond"
