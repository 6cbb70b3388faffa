"""Measuring the training set in blocks."""

from __future__ import annotations

import pytest
import torch

from pmpguard.methods.baselines.blocks import block_of, mean_hinges, measure_in_blocks
from pmpguard.methods.method import EncodedBatch, TrainingView
from pmpguard.models.encoded import Encoded


def view_of(captions: int, images: int, pairs: int, epoch: int = 0) -> TrainingView:
    generator = torch.Generator().manual_seed(0)

    def items(count: int) -> Encoded:
        pooled = torch.nn.functional.normalize(torch.randn(count, 6, generator=generator), dim=1)
        return Encoded(pooled, pooled[:, None], torch.ones(count, 1, dtype=torch.bool))

    texts, pixels = items(captions), items(images)
    drawn = [torch.randint(count, (pairs,), generator=generator) for count in (captions, images)]
    return TrainingView(lambda: (texts, pixels), drawn[0], drawn[1], epoch, 3)


@pytest.mark.parametrize("pairs", [1, 5, 128, 129, 300])
def test_every_pair_is_measured_once_among_enough_others(pairs: int) -> None:
    view, seen, sizes = view_of(20, 9, pairs), [], []

    def measure(block: EncodedBatch) -> torch.Tensor:
        seen.extend(block.rows.tolist())
        sizes.append(len(block.rows))
        return block.rows.float()

    assert measure_in_blocks(view, measure).tolist() == list(range(pairs))
    assert sorted(seen) == list(range(pairs)) and max(sizes) - min(sizes) <= 1
    assert pairs < 100 or min(sizes) >= 100


def test_a_block_holds_the_pairs_embeddings_and_keys() -> None:
    view = view_of(6, 4, 10)
    block = block_of(view, torch.tensor([7, 2, 5]))
    assert len(block.images) == len(torch.unique(view.image_of[[7, 2, 5]]))
    for place, row in enumerate((7, 2, 5)):
        assert torch.equal(block.texts.pooled[place], view.captions.pooled[view.caption_of[row]])
        assert torch.equal(block.images.pooled[block.image_of[place]], view.images.pooled[view.image_of[row]])
    assert torch.equal(block.caption_keys, view.caption_of[[7, 2, 5]])


def test_blocks_follow_seed_and_epoch() -> None:
    def measured(epoch: int) -> list[float]:
        return measure_in_blocks(
            view_of(200, 200, 300, epoch), lambda block: mean_hinges(block, 0.2)
        ).tolist()

    assert measured(0) == measured(0) != measured(1)


def test_mean_hinges_against_a_loop() -> None:
    block = block_of(view_of(9, 5, 12), torch.arange(12))
    scores = (block.texts.pooled @ block.images.pooled.T).double()
    expected = []
    for t, v in enumerate(block.image_of.tolist()):
        own, both = scores[t, v], 0.0
        negative = block.targets == 0
        for negatives in (scores[t][negative[t]], scores[:, v][negative[:, v]]):
            both += float((0.2 - own + negatives).clamp(min=0).sum()) / max(len(negatives), 1)
        expected.append(both)
    assert mean_hinges(block, 0.2).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)
