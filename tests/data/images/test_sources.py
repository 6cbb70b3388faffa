"""Images decoded ahead equal images held in memory, and only a few are ever alive."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small_runs import SIZE, coloured_squares
from PIL import Image
from torch import Tensor

from pmpguard.data.images.sources import ImagesInMemory, StreamedImages, open_images
from pmpguard.data.pairs import PairTable
from pmpguard.errors import DataError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> tuple[PairTable, Tensor]:
    """The training squares as PNG files, and their pixels by image code."""
    folder = tmp_path_factory.mktemp("squares")
    table, images = coloured_squares(copies=3)
    train = PairTable(table.arrow, folder, table.name).split("train")
    pixels = images[: len(train.first_rows)]  # the training squares come first
    for row, image in zip(train.first_rows, pixels, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(train.image_path(int(row)))
    return train, pixels


def parts(count: int, size: int = 16) -> list[np.ndarray]:
    order = np.random.default_rng(0).permutation(count)
    return [order[start : start + size] for start in range(0, count, size)]


def test_streamed_equal_resident_and_both_equal_the_files(squares: tuple[PairTable, Tensor]) -> None:
    table, pixels = squares
    cache_images = open_images(table, SIZE, CPU, "always")
    streamed = open_images(table, SIZE, CPU, "never")
    assert isinstance(cache_images, ImagesInMemory) and isinstance(streamed, StreamedImages)
    assert len(cache_images) == len(streamed) == len(pixels)
    wanted = parts(len(pixels))
    for codes, left, right in zip(
        wanted, cache_images.batches(wanted), streamed.batches(wanted), strict=True
    ):
        assert left.dtype == right.dtype == torch.uint8
        assert torch.equal(left, pixels[codes]) and torch.equal(right, pixels[codes])


def test_auto_takes_what_fits(squares: tuple[PairTable, Tensor]) -> None:
    table, pixels = squares
    bytes_needed = pixels.numel()
    assert isinstance(open_images(table, SIZE, CPU, "auto", bytes_needed / 1e9), ImagesInMemory)
    assert isinstance(open_images(table, SIZE, CPU, "auto", (bytes_needed - 1) / 1e9), StreamedImages)


@pytest.mark.parametrize("batches", [8, 60])
def test_the_number_of_living_images_does_not_grow_with_the_dataset(
    squares: tuple[PairTable, Tensor], monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    table, _ = squares
    living: weakref.WeakSet[Tensor] = weakref.WeakSet()
    original = StreamedImages._one

    def one(self: StreamedImages, code: int) -> Tensor:
        image = original(self, code)
        living.add(image)
        return image

    monkeypatch.setattr(StreamedImages, "_one", one)
    streamed, most = StreamedImages(table, SIZE, CPU, ahead=2), 0
    wanted = [np.arange(4) + number % 20 for number in range(batches)]
    for number, _ in enumerate(streamed.batches(wanted)):
        most = max(most, len(living))
        assert number < batches
    assert 0 < most <= (2 + 2) * 4  # those ahead, the one being submitted and the one handed over


def test_stopping_early_leaves_no_thread_behind(squares: tuple[PairTable, Tensor]) -> None:
    table, pixels = squares
    before = threading.active_count()
    batches = StreamedImages(table, SIZE, CPU).batches(parts(len(pixels)))
    next(batches)
    assert threading.active_count() > before
    batches.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("cache_images", ["always", "never"])
def test_a_image_that_cannot_be_read_is_named(tmp_path: Path, cache_images: str) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image at all")
    one = PairTable.from_columns({"image": ["bad.png"], "caption": ["a square"]}, root=tmp_path)
    with pytest.raises(DataError, match=r"bad\.png"):
        list(open_images(one, SIZE, CPU, cache_images).batches([np.array([0])]))
