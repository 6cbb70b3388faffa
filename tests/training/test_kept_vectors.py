"""Large sets of vectors lie on disk in float16, and what is made of them stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.planted_pairs import planted
from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.detection.vectors import unit_rows
from pmpguard.errors import FullDiskError
from pmpguard.evaluation.detection import auroc
from pmpguard.methods.method import TrainingView
from pmpguard.models.encoded import Encoded
from pmpguard.training import kept_vectors
from pmpguard.training.encode import Split
from pmpguard.training.kept_vectors import kept
from pmpguard.training.loop import build_method
from pmpguard.training.stored_features import FeatureFiles


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PMPGUARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("fragments", [0, 3])
def test_what_exceeds_the_size_is_mapped_from_a_file_that_is_gone(fragments: int, cache: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    parts = [
        Encoded(
            torch.randn(count, 8, generator=draw), torch.randn(count, fragments, 8, generator=draw),
            torch.rand(count, fragments, generator=draw) > 0.5,
        )
        for count in (4, 4, 1)
    ]  # fmt: skip
    whole = Encoded.cat(parts)
    size = kept_vectors.bytes_of(whole)
    same = kept(parts, 9, size)
    assert same.pooled.dtype == torch.float32 and torch.equal(same.fragments, whole.fragments)
    found = kept(parts, 9, size - 1)
    assert found.pooled.dtype == found.fragments.dtype == torch.float16
    for name in ("pooled", "fragments", "mask"):
        assert torch.equal(getattr(found, name), getattr(whole.to(dtype=torch.float16), name))
    assert not any((cache / "vectors").iterdir())
    share = kept(parts[:1], 4, size - 1, total=9)  # a rank decides by all ranks' vectors
    assert share.pooled.dtype == torch.float16


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: FeatureFiles, part: Encoded) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FeatureFiles, "append", full)
    one = Encoded(torch.ones(2, 4), torch.ones(2, 0, 4), torch.ones(2, 0, dtype=torch.bool))
    with pytest.raises(FullDiskError, match="vectors: could not be written"):
        kept([one], 2, 0)


def test_a_large_look_is_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    data = training_data(*coloured_squares(copies=3))
    method = build_method(small_config(), len(data.train), data.train.captions)
    split = Split.open(data.train, data.train_images, method.retriever)
    before = split.encode_pooled(method.retriever), split.pooled_features(method.retriever)
    monkeypatch.setattr(kept_vectors, "MAX_BYTES", 0)
    found = split.encode_pooled(method.retriever), split.pooled_features(method.retriever)
    for one, other in zip(before[0], found[0], strict=True):
        assert torch.equal(one.pooled.half(), other.pooled)
    for own, mapped in zip(before[1], found[1], strict=True):
        assert torch.equal(own.half(), mapped)


@pytest.mark.parametrize("epoch", [0, 1])  # before training, and by the model
def test_verdicts_are_those_of_vectors_in_memory(epoch: int) -> None:
    pairs = planted(images=80, rate=0.4, seed=3)
    count = len(pairs.wrong)
    method = build_method(small_config(method="pmpguard", settings={"detect_from_epoch": 1}), count, ["a"])
    before = {name: value.clone() for name, value in method.state_dict().items()}
    found = []
    for most in (None, 0):
        vectors = []
        for rows in (pairs.captions, pairs.images):
            pooled = unit_rows(rows, "vectors")
            empty = torch.zeros(len(pooled), 0, pooled.shape[1])
            vectors.append(kept([Encoded(pooled, empty, empty[..., 0].bool())], len(pooled), most))
        image_of = torch.from_numpy(pairs.image_of)
        view = TrainingView(lambda both=tuple(vectors): both, torch.arange(count), image_of, epoch, 0)  # type: ignore[misc]
        method.load_state_dict(before)
        method.begin_epoch(view)
        found.append((method.p_match.clone(), method.estimated_rate.clone()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0.02)
    assert auroc(-found[1][0].numpy(), pairs.wrong) > 0.9
