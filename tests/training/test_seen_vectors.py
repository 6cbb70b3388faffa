"""Vectors of an epoch's steps serve the look after it; what no step saw is encoded, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.small_runs import coloured_squares, press_ctrl_c, same, small_config, training_data

from pmpguard.methods.method import EncodedBatch
from pmpguard.models.encoded import Encoded
from pmpguard.training.distributed import World
from pmpguard.training.encode import Split
from pmpguard.training.interrupt import Interrupted
from pmpguard.training.loop import build_method, train
from pmpguard.training.seen_vectors import SeenVectors

CPU = torch.device("cpu")
DATA = training_data(*coloured_squares(copies=3))


def batch_of(captions: list[int], images: list[int], dim: int) -> EncodedBatch:
    """Vectors whose first number tells whose they are."""
    encoded = []
    for numbers in (captions, images):
        pooled = torch.zeros(len(numbers), dim)
        pooled[:, 0] = torch.tensor(numbers) + 2.0
        encoded.append(Encoded(pooled, pooled[:, None], torch.ones(len(numbers), 1, dtype=torch.bool)))
    keys = torch.tensor(captions), torch.tensor(images)
    return EncodedBatch(*encoded, torch.zeros_like(keys[0]), keys[1], keys[0], keys[0], 0)


def test_what_a_step_saw_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    method = build_method(small_config(), len(DATA.train), DATA.train.captions).eval()
    split = Split.open(DATA.train, DATA.train_images, method.retriever, batch=16)
    expected = split.encode_pooled(method.retriever)
    seen = SeenVectors(split, 32, CPU)
    for found, encoded in zip(seen.look(method.retriever, World()), expected, strict=True):
        torch.testing.assert_close(found.pooled, encoded.pooled, rtol=0, atol=1e-3)  # kept in float16
        assert found.fragments.shape == (len(encoded), 0, 32)
    asked: list[tuple[list[int], list[int]]] = []
    encode = Split.encode_pooled

    def told(self: Split, *arguments: object) -> tuple[Encoded, Encoded]:
        captions, images = arguments[2:]
        asked.append((list(captions), list(images)))  # type: ignore[call-overload]
        return encode(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Split, "encode_pooled", told)
    seen.keep(batch_of([7, 3, 7], [5, 2], 32))
    texts, images = seen.look(method.retriever, World())
    assert texts.pooled[[3, 7], 0].tolist() == [5, 9] and images.pooled[[2, 5], 0].tolist() == [4, 7]
    others = np.setdiff1d(np.arange(len(split.tokens)), [3, 7])
    assert asked[0][0] == others.tolist() and len(asked[0][1]) == len(split.images) - 2
    torch.testing.assert_close(texts.pooled[others], expected[0].pooled[others], rtol=0, atol=1e-3)
    seen.look(method.retriever, World())  # no vector serves twice
    assert len(asked[1][0]) == len(split.tokens) and len(asked[1][1]) == len(split.images)


def test_a_look_at_vectors_that_were_all_seen_changes_none() -> None:
    method = build_method(small_config(), len(DATA.train), DATA.train.captions).eval()
    seen = SeenVectors(Split.open(DATA.train, DATA.train_images, method.retriever), 32, CPU)
    seen.keep(batch_of(list(range(len(seen.captions))), list(range(len(seen.images))), 32))
    texts, _ = seen.look(method.retriever, World())
    assert texts.pooled[:, 0].tolist() == [number + 2.0 for number in range(len(texts))]


@pytest.mark.slow
def test_a_run_looks_at_what_its_steps_saw_also_when_it_is_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counts: list[int] = []
    encode = Split.encode_pooled

    def told(self: Split, *arguments: object) -> tuple[Encoded, Encoded]:
        counts.append(len(arguments[3]))  # type: ignore[arg-type]
        return encode(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Split, "encode_pooled", told)
    config = small_config(method="pmpguard", epochs=3, look="steps")
    straight = train(config, DATA, tmp_path / "straight")
    assert len(counts) == 2  # before the second and the third epoch
    assert all(0 < count <= config.batch_size for count in counts)  # of a last batch that is dropped
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, 8)  # in the middle of an epoch, whose first batches must not be lost
        with pytest.raises(Interrupted):
            train(config, DATA, tmp_path / "resumed")
    same(straight, train(config, DATA, tmp_path / "resumed"))
