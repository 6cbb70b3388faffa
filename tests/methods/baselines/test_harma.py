"""HarMA: its loss against a loop, what it trains, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.method_examples import batch, build
from helpers.peer_runs import CHANCE, short_run

import pmpguard
from pmpguard.methods.baselines.harma import Harma, HarmaSettings, adaptive_triplet_terms
from pmpguard.models.config import RetrieverConfig


def naive_triplet(scores, image_of, positives, margin, focus):
    result = []
    for t, v in enumerate(image_of.tolist()):
        total = 0.0
        negatives = [scores[t, k] for k in range(scores.shape[1]) if k != v and not positives[t, k]]
        negatives += [
            scores[k, v] for k in range(scores.shape[0]) if image_of[k] != v and not positives[k, v]
        ]
        for negative in negatives:
            hinge = max(0.0, margin + float(negative) - float(scores[t, v]))
            total += hinge * (1 - math.exp(-hinge)) ** focus
        result.append(total / 2)
    return result


@pytest.mark.parametrize("focus", [0.0, 1.0, 2.0])
def test_the_adaptive_triplet_loss_against_a_loop(focus):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(7, 5, generator=generator, dtype=torch.float64) * 2 - 1
    image_of = torch.tensor([0, 1, 2, 3, 4, 0, 2])
    positives = torch.nn.functional.one_hot(image_of, 5).bool()
    positives[1, 3] = True  # the same sentence under another image
    found = adaptive_triplet_terms(scores, image_of, positives, 0.2, focus)
    assert found.tolist() == pytest.approx(naive_triplet(scores, image_of, positives, 0.2, focus), rel=1e-9)


def test_the_adaptive_triplet_loss_has_right_gradients_and_turns_to_hard_negatives():
    image_of = torch.arange(3)
    positives = torch.eye(3).bool()
    scores = torch.tensor([[0.5, 0.9, 0.45], [0.1, 0.6, 0.1], [0.0, 0.0, 0.7]], dtype=torch.float64)
    scores.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda given: adaptive_triplet_terms(given, image_of, positives, 0.2, 2.0), (scores,)
    )
    adaptive_triplet_terms(scores, image_of, positives, 0.2, 2.0).sum().backward()
    assert scores.grad[0, 1] > 10 * scores.grad[0, 2] > 0 and scores.grad[2, 0] == 0


def test_the_objective_is_the_sum_of_both_losses():
    given = batch(captions=5)
    terms = build("harma", triplet_weight=3.0).losses(given)
    assert set(terms) == {"infonce", "triplet"}
    torch.testing.assert_close(terms["infonce"], build("infonce").losses(given)["infonce"])
    scores = given.texts.pooled @ given.images.pooled.T
    expected = [3 * value for value in naive_triplet(scores, given.image_of, given.targets > 0, 0.2, 2.0)]
    assert terms["triplet"].tolist() == pytest.approx(expected, rel=1e-4)


def test_pretrained_towers_are_frozen_and_untrained_ones_are_not():
    light = RetrieverConfig(vision="mobilenet-v2", text="minilm-l6")
    shaped = Harma.model_config(light, HarmaSettings())
    assert shaped.vision_options.frozen and shaped.text_options.frozen
    assert shaped.adapters.name == "harma" and shaped.adapters.width == 128 and shaped.ranking == "pooled"
    assert not Harma.model_config(replace(light, vision="tiny"), HarmaSettings()).vision_options.frozen
    assert Harma.model_config(light, HarmaSettings(place="output")).adapters.place == "output"


@pytest.mark.slow
def test_it_learns_and_what_it_learned_is_saved(tmp_path):
    result = short_run("harma", tmp_path / "run")
    assert result.best_mr > 5 * CHANCE
    loaded = pmpguard.load(tmp_path / "run" / "model")
    adapters = dict(loaded.adapters.named_parameters())
    assert all(adapters[name].abs().sum() > 0 for name in adapters if name.endswith("widen.weight"))
