"""What the tests of the noise-robust methods share: a small batch, its shuffle, a run on coloured squares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from helpers.small_runs import coloured_squares, small_config, training_data
from torch import Tensor

from pmpguard.methods.method import EncodedBatch, Method
from pmpguard.models.encoded import Encoded
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.loop import TrainResult, train

CHANCE = 4.4  # mean recall of a guess on the squares' 120 images with two captions each


def example_batch(captions: int = 7, images: int = 5, epoch: int = 50, seed: int = 0) -> EncodedBatch:
    """Some images have two captions, and captions 1 and 3 are one string."""
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)

    def items(count: int, fragments: int) -> Encoded:
        lengths = torch.randint(1, fragments + 1, (count, 1), generator=generator)
        return Encoded(unit(count, 8), unit(count, fragments, 8), torch.arange(fragments)[None] < lengths)

    extra = torch.randint(images, (captions - images,), generator=generator)
    caption_keys = torch.arange(captions)
    caption_keys[3] = 1
    return EncodedBatch(
        items(captions, 4), items(images, 3), torch.cat([torch.arange(images), extra]),
        torch.arange(images) + 10, caption_keys, torch.arange(captions) * 2, epoch,
    )  # fmt: skip


def shuffled(batch: EncodedBatch, order: Tensor) -> EncodedBatch:
    return replace(
        batch, texts=batch.texts[order], image_of=batch.image_of[order],
        caption_keys=batch.caption_keys[order], rows=batch.rows[order],
    )  # fmt: skip


def keeps_the_contract(method: Method, epoch: int) -> None:
    """Finite per-pair terms, a gradient, no dependence on a batch's order; also where few take part."""
    for captions, images in ((7, 5), (2, 2), (4, 3)):
        batch = example_batch(captions + 2, images, epoch, seed=captions)
        batch.texts.pooled.requires_grad_()
        terms = method.losses(batch)
        for name, term in terms.items():
            assert term.shape == (captions + 2,) and term.dtype == torch.float32, name
            assert torch.isfinite(term).all() and (term >= -1e-4).all(), name
        sum(term.mean() for term in terms.values()).backward()  # type: ignore[union-attr]
        gradient = batch.texts.pooled.grad
        assert gradient is not None and torch.isfinite(gradient).all() and gradient.abs().sum() > 0
        order = torch.randperm(captions + 2, generator=torch.Generator().manual_seed(1))
        for name, term in method.losses(shuffled(batch, order)).items():
            torch.testing.assert_close(term, terms[name][order], rtol=1e-3, atol=1e-4)


def learn_squares(run: Path, method: str, seed: int = 0, **settings: object) -> TrainResult:
    """Twelve short epochs on squares of which 60 % have a wrong caption."""
    table, images = coloured_squares(copies=4)
    noisy = corrupt_pairs(table, 0.6, seed).table
    config = small_config(
        method=method, settings=settings, epochs=12, seed=seed, evaluate_every=12, checkpoint_every=-1
    )
    return train(config, training_data(noisy, images), run)
