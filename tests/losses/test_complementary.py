"""The complementary loss against a loop, what it counts, and when it is worth knowing something."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pmpguard.losses.complementary import Penalty, complementary_terms, log1m_exp


@pytest.mark.parametrize("penalty", ["log", "linear"])
def test_terms_against_a_loop(penalty: Penalty) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64) * 5
    image_of = torch.tensor([0, 1, 2, 3, 0, 0])
    positives = torch.nn.functional.one_hot(image_of, 4).bool()
    positives[1, 2] = True
    rows, columns = logits.softmax(1), logits.softmax(0)

    def cost(p: Tensor) -> float:
        return -math.log(1 - p) if penalty == "log" else float(p)

    expected = []
    for t, v in enumerate(image_of.tolist()):
        row = sum(cost(rows[t, k]) for k in range(4) if not positives[t, k])
        column = sum(cost(columns[k, v]) for k in range(6) if not positives[k, v])
        expected.append(row + column)
    found = complementary_terms(logits, positives, image_of, penalty)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_it_counts_images_as_much_as_captions_however_many_captions_they_have() -> None:
    """Flat probabilities cost a query its negatives' share, nearly 1, be it caption or image."""
    for captions in (1, 5):
        image_of = torch.arange(100).repeat_interleave(captions)
        positives = torch.nn.functional.one_hot(image_of, 100).bool()
        found = complementary_terms(torch.zeros(len(image_of), 100), positives, image_of).mean()
        assert float(found) == pytest.approx(2.0, abs=0.03)


def test_it_can_make_knowing_the_scene_cheaper_than_no_opinion_when_most_labels_are_wrong() -> None:
    """128 images of 32 scenes, one caption each, a fifth labelled right; only scenes can be known."""
    scene = torch.arange(128) % 32
    image_of = torch.arange(128).roll(1)  # another scene's image
    image_of[:26] = torch.randperm(26, generator=torch.Generator().manual_seed(0))
    caption_scene = scene.clone()
    caption_scene[:26] = scene[image_of[:26]]
    positives = torch.nn.functional.one_hot(image_of, 128).bool()
    known = 6.0 * (caption_scene[:, None] == scene[None]).double()  # (128, 128)
    gain = {
        penalty: float(
            (
                complementary_terms(torch.zeros_like(known), positives, image_of, penalty)
                - complementary_terms(known, positives, image_of, penalty)
            ).mean()
        )
        for penalty in ("log", "linear")
    }
    assert gain["linear"] > 0 > gain["log"]


def test_log_of_one_minus_p_is_accurate_at_both_ends() -> None:
    log_p = torch.tensor([-1e-5, -0.1, -0.7, -5.0, -50.0], dtype=torch.float64)
    expected = [math.log(-math.expm1(value)) for value in log_p.tolist()]
    assert log1m_exp(log_p).tolist() == pytest.approx(expected, rel=1e-9)
