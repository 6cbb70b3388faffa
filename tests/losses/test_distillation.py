"""Learning from beliefs: against a loop, and what it asks of a model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pmpguard.losses.distillation import distillation_terms, soft_targets


def scores(seed: int, captions: int = 5, images: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(captions, images, generator=generator, dtype=torch.float64)


def test_terms_against_a_loop() -> None:
    logits, caption_share = scores(0), torch.tensor([1.0, 0.0, 0.3, 0.7, 1.0])
    image_share, (rows, columns) = torch.tensor([0.2, 1.0, 0.0]), soft_targets([scores(1), scores(2)])

    def crossed(belief: list[float], logit: list[float]) -> float:
        total = math.log(sum(math.exp(value) for value in logit))
        return sum(share * (total - value) for share, value in zip(belief, logit, strict=True))

    by_image = [float(image_share[i]) * crossed(columns[i].tolist(), logits[:, i].tolist()) for i in range(3)]
    expected = [
        (float(caption_share[t]) * crossed(rows[t].tolist(), logits[t].tolist()) + sum(by_image) / 3) / 2
        for t in range(5)
    ]
    found = distillation_terms(logits, (rows, columns), caption_share, image_share)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_beliefs_are_shares_and_the_mean_of_the_scorings() -> None:
    rows, columns = soft_targets([scores(1), scores(2)])
    assert rows.shape == (5, 3) and columns.shape == (3, 5)
    for each in (rows, columns):
        torch.testing.assert_close(each.sum(1), torch.ones(len(each), dtype=each.dtype))
    torch.testing.assert_close(rows, (scores(1).softmax(1) + scores(2).softmax(1)) / 2)


def test_a_model_that_believes_the_same_has_nothing_to_learn() -> None:
    logits, all_of = scores(3).requires_grad_(), torch.ones
    soft = soft_targets([logits.detach()])
    distillation_terms(logits, soft, all_of(5), all_of(3)).mean().backward()
    assert logits.grad is not None and float(logits.grad.abs().max()) < 1e-12
    other = scores(4).requires_grad_()
    distillation_terms(other, soft, all_of(5), all_of(3)).mean().backward()
    assert other.grad is not None and float(other.grad.abs().max()) > 0.01


def test_trusted_pairs_learn_nothing_from_beliefs() -> None:
    logits = scores(0)
    soft = soft_targets([scores(1)])
    assert (distillation_terms(logits, soft, torch.zeros(5), torch.zeros(3)) == 0).all()
