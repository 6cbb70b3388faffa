"""Features on disk: the numbers of those in memory, resumable, bounded, and never in the way."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.data.images.transforms import Augmentation
from pmpguard.files import sync
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.training import stored_features
from pmpguard.training.feature_cache import CachedImages, cache_features
from pmpguard.training.loader import TokenTable
from pmpguard.training.loop import build_method
from pmpguard.training.stored_features import PARTS, FeatureFiles, Storage, read_or_make

CPU = torch.device("cpu")
NEVER = Storage("never")
COUNT, BATCH = 20, 4


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMPGUARD_CACHE", str(tmp_path / "cache"))


def features(start: int, stop: int, kind: torch.dtype = torch.float32) -> Encoded:
    values = torch.arange(start * 12, stop * 12, dtype=torch.float32).view(-1, 3, 4)
    return Encoded(values[:, 0].to(kind), values.to(kind), torch.ones(stop - start, 3, dtype=torch.bool))


def make(first: int) -> Iterator[Encoded]:
    return (features(start, min(start + BATCH, COUNT)) for start in range(first, COUNT, BATCH))


def keep(name: str = "a", storage: Storage = NEVER, size: int = 1000, made=make) -> Encoded | None:
    return read_or_make(name, COUNT, size, BATCH, storage, made)


def test_where_features_go() -> None:
    assert Storage("always", 0.0).in_memory(10**12) and not Storage("never", 9.0).in_memory(1)
    assert Storage("auto", 1.0).in_memory(10**9) and not Storage("auto", 1.0).in_memory(10**9 + 1)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_what_was_written_is_mapped(tmp_path: Path, kind: torch.dtype) -> None:
    files = FeatureFiles(tmp_path, 7)
    files.append(features(0, 5, kind))
    files.append(features(5, 7, kind))
    files.sync()
    kept, expected = FeatureFiles(tmp_path, 7).features(), features(0, 7, kind)
    for name in ("pooled", "fragments", "mask"):
        assert torch.equal(getattr(kept, name), getattr(expected, name))


def test_a_run_that_was_stopped_goes_on_with_the_batch_it_was_at() -> None:
    def stopped(first: int) -> Iterator[Encoded]:
        yield from [features(0, 4), features(4, 8), features(8, 10)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(made=stopped)
    begun = []
    found = keep(made=lambda first: begun.append(first) or make(first))
    assert begun == [8] and found is not None and torch.equal(found.fragments, features(0, COUNT).fragments)
    again = keep(made=lambda first: begun.append(first) or make(first))
    assert begun == [8] and again is not None and torch.equal(again.pooled, found.pooled)


def test_what_a_power_cut_took_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files keep their lengths, but what was not synced before is zeros."""
    monkeypatch.setattr(stored_features, "SYNCED_BYTES", 500)  # two batches
    folder, kept = tmp_path / "cache/features/a", dict[str, bytes]()

    def noticed(path: Path) -> None:
        kept[path.name] = path.read_bytes()
        sync(path)

    def cut(first: int) -> Iterator[Encoded]:
        yield from [features(start, start + BATCH) for start in range(0, 12, BATCH)]
        for name in PARTS:
            left = kept[name]
            (folder / name).write_bytes(left.ljust((folder / name).stat().st_size, b"\0"))
        shutil.copytree(folder, tmp_path / "after")
        raise KeyboardInterrupt

    monkeypatch.setattr(stored_features, "sync", noticed)
    with pytest.raises(KeyboardInterrupt):
        keep(made=cut)
    shutil.rmtree(folder)
    (tmp_path / "after").rename(folder)
    begun = []
    found = keep(made=lambda first: begun.append(first) or make(first))
    assert begun == [8] and found is not None and torch.equal(found.fragments, features(0, COUNT).fragments)


def test_two_runs_at_once_make_them_once() -> None:
    begun, results = [], []

    def slow(first: int) -> Iterator[Encoded]:
        begun.append(first)
        barrier.wait(10)
        yield from make(first)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=lambda: results.append(keep(made=slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    barrier.wait(10)
    for thread in threads:
        thread.join()
    assert begun == [0] and all(torch.equal(found.pooled, features(0, COUNT).pooled) for found in results)


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    size = COUNT * (16 * 4 + 3)
    storage = Storage("never", disk_gb=2.5 * size / 1e9)
    for number, name in enumerate("ab"):
        keep(name, storage, size)
        os.utime(tmp_path / "cache/features" / name / "shape.json", (number, number))
    assert keep("c", storage, size) is not None
    assert sorted(path.name for path in (tmp_path / "cache/features").iterdir()) == ["b", "c"]
    with caplog.at_level("WARNING"):
        assert keep("d", storage, 10 * size) is None
    assert "do not fit" in caplog.text and "Set PMPGUARD_CACHE" in caplog.text


def test_a_full_disk_is_said_and_what_was_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append = FeatureFiles.append

    def full(self: FeatureFiles, part: Encoded) -> None:
        if self.written():
            raise OSError(28, "No space left on device")
        append(self, part)

    monkeypatch.setattr(stored_features.FeatureFiles, "append", full)
    with caplog.at_level("WARNING"):
        assert keep() is None
    assert "No space left on device" in caplog.text and "encoders run in every epoch" in caplog.text
    assert not (tmp_path / "cache/features/a").exists()


@pytest.mark.parametrize("fits", [True, False])
def test_features_on_disk_are_those_in_memory(monkeypatch: pytest.MonkeyPatch, fits: bool) -> None:
    data = training_data(*coloured_squares(copies=3))
    base = small_config(augmentation=Augmentation(flip=False, rotate=False, crop_min=1.0))
    frozen = EncoderOptions(frozen=True)
    model = replace(base.model, vision_options=frozen, text_options=frozen)
    retriever = build_method(replace(base, model=model), len(data.train), data.train.captions).retriever
    tokens = TokenTable.of(data.train, retriever, CPU)
    pixels = data.train_images.pixels  # type: ignore[attr-defined]
    storage = NEVER if fits else Storage("never", disk_gb=1e-9)
    memory, texts = cache_features(retriever, ImagesInMemory(pixels, CPU), tokens, 16, CPU)
    disk, mapped = cache_features(retriever, ImagesInMemory(pixels, CPU), tokens, 16, CPU, "fp32", storage)
    assert isinstance(disk, CachedImages) == fits and (mapped.features is not None) == fits
    if not fits:
        assert mapped is tokens and torch.equal(next(disk.batches([np.arange(3)])), pixels[:3])  # type: ignore[arg-type]
        return
    some = np.array([5, 0, 17])
    given, expected = next(disk.batches([some])), next(memory.batches([some]))
    assert isinstance(given, Encoded) and isinstance(expected, Encoded)
    assert torch.equal(given.fragments, expected.fragments) and torch.equal(given.pooled, expected.pooled)
    assert np.array_equal(mapped.lengths, texts.lengths)
    words, known = mapped.padded(some), texts.padded(some)
    torch.testing.assert_close(words.pooled, known.pooled)  # type: ignore[union-attr]
    torch.testing.assert_close(
        words.fragments * words.mask[..., None],  # type: ignore[union-attr]
        known.fragments * known.mask[..., None],  # type: ignore[union-attr]
    )
