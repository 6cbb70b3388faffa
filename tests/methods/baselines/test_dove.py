"""DOVE: its losses against loops, the model it asks for, and that it learns."""

from __future__ import annotations

import pytest
import torch
from helpers.method_examples import batch, build
from helpers.peer_runs import CHANCE, short_run

import pmpguard


def naive_sum_of_hinges(scores, image_of):
    expected = []
    for t, v in enumerate(image_of.tolist()):
        negatives = [scores[t, k] for k in range(scores.shape[1]) if k != v]
        negatives += [scores[k, v] for k in range(scores.shape[0]) if image_of[k] != v]
        expected.append(sum(max(0.0, 0.2 - float(scores[t, v]) + float(negative)) for negative in negatives))
    return expected


def test_both_losses_against_loops():
    method, given = build("dove", global_weight=3.0), batch()
    terms = method.losses(given)
    pooled = given.texts.pooled @ given.images.pooled.T
    expected = [3 * value for value in naive_sum_of_hinges(pooled, given.image_of)]
    assert terms["global"].tolist() == pytest.approx(expected, rel=1e-4)
    oriented = method.score(given.texts, given.images)
    assert terms["oriented"].tolist() == pytest.approx(
        naive_sum_of_hinges(oriented, given.image_of), rel=1e-3
    )


def test_it_ranks_by_the_regional_oriented_score():
    method, given = build("dove"), batch()
    config = method.retriever.config
    assert config.ranking == "head" and config.head.name == "dove" and config.multi_scale
    found = method.score(given.texts, given.images)
    torch.testing.assert_close(found, method.retriever.head.score(given.texts, given.images))
    pooled = method.retriever.score(given.texts, given.images, "pooled")
    assert not torch.allclose(found, pooled) and not found.requires_grad


def test_training_twice_on_a_batch_gives_the_same_losses():
    """Every process of a distributed run computes them, so nothing random may be left in them."""
    method, given = build("dove").train(), batch()
    assert torch.equal(method.losses(given)["oriented"], method.losses(given)["oriented"])


@pytest.mark.slow
def test_it_learns_and_what_it_learned_is_saved(tmp_path):
    result = short_run("dove", tmp_path / "run")
    assert result.best_mr > 5 * CHANCE
    loaded, images = pmpguard.load(tmp_path / "run" / "model"), torch.rand(3, 3, 32, 32)
    texts = ["a red square in the corner of blue ground", "green ground with a black square"]
    scores = [
        model.score(model.encode_texts(texts), model.encode_images(images))
        for model in (loaded, result.retriever)
    ]
    assert torch.equal(*scores)
