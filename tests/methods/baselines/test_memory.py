"""The memory of trusted pairs: what it holds, and that checkpoints hold it."""

from __future__ import annotations

import torch

from pmpguard.methods.baselines.memory import PairMemory, nearest_remembered, p_low_loss
from pmpguard.methods.method import TrainingView
from pmpguard.models.encoded import Encoded


def view_of(texts: torch.Tensor, images: torch.Tensor, caption_of: torch.Tensor) -> TrainingView:
    def encoded(vectors: torch.Tensor) -> Encoded:
        return Encoded(vectors, vectors[:, None], torch.ones(len(vectors), 1, dtype=torch.bool))

    return TrainingView(
        lambda: (encoded(texts), encoded(images)), caption_of, torch.arange(len(caption_of)), 0, 0
    )


def unit(count: int, seed: int, dim: int = 6) -> torch.Tensor:
    drawn = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=1)


def test_it_keeps_the_surest_pairs_and_repeats_them_where_there_are_too_few() -> None:
    texts, images, caption_of = unit(5, 0), unit(5, 1), torch.tensor([4, 3, 2, 1, 0])
    memory = PairMemory(4, 6)
    p_match = torch.tensor([0.2, 0.95, 0.5, 0.99, 0.91])
    rows = memory.fill(view_of(texts, images, caption_of), p_match, 0.9)
    assert rows.tolist() == [3, 1, 4, 3]
    torch.testing.assert_close(memory.texts, texts[caption_of[rows]])
    torch.testing.assert_close(memory.images, images[rows])
    assert set(memory.state_dict()) == {"texts", "images"}
    assert memory.fill(view_of(texts, images, caption_of), torch.zeros(5), 0.9).tolist() == [0, 0, 0, 0]


def test_the_nearest_against_a_loop() -> None:
    items, memory = unit(7, 2), unit(4, 3)
    expected = [max(range(4), key=lambda m: float(items[k] @ memory[m])) for k in range(7)]
    assert nearest_remembered(items, memory).tolist() == expected


def test_pairs_that_fit_have_the_lower_losses() -> None:
    vectors = unit(400, 5, dim=32)
    caption_of = torch.arange(400)
    caption_of[:120] = caption_of[:120].roll(1)
    p_low = p_low_loss(view_of(vectors, vectors, caption_of), 0.07)
    assert float(p_low[120:].mean()) > 0.9 > 0.1 > float(p_low[:120].mean())
