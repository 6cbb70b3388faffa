"""RRSITR: its weights and terms against loops, the contract, and what it learns from wrong pairs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from feature_world import build_method, learn
from robust_examples import CHANCE, example_batch, keeps_the_contract, learn_squares

from pmpguard.methods.rrsitr import (
    Rrsitr,
    batch_factor,
    fragment_similarities,
    growing_margin_terms,
    paced_weights,
)


def test_fragment_similarities_against_a_loop_over_real_fragments() -> None:
    batch = example_batch()
    found = fragment_similarities(batch.texts, batch.images)
    for t in range(len(batch.texts)):
        for v in range(len(batch.images)):
            words = batch.texts.fragments[t][batch.texts.mask[t]].double()
            regions = batch.images.fragments[v][batch.images.mask[v]].double()
            squares = [float(word @ region) ** 2 for word in words for region in regions]
            assert float(found[t, v]) == pytest.approx(math.sqrt(sum(squares) / len(squares)), rel=1e-4)


def test_growing_margins_against_a_loop() -> None:
    scores = torch.rand(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    image_of = torch.tensor([0, 1, 2, 3, 3])
    positives = torch.nn.functional.one_hot(image_of, 4).bool()
    expected = []
    for t, v in enumerate(image_of.tolist()):
        own, term = float(scores[t, v]), 0.0
        rows = [float(scores[t, k]) for k in range(4) if not positives[t, k]]
        columns = [float(scores[k, v]) for k in range(5) if not positives[k, v]]
        for rival in (max(rows), max(columns)):
            margin = 0.6 * (1 + max(0.0, rival - own))
            term += max(0.0, margin - own + rival)
        expected.append(term)
    assert growing_margin_terms(scores, image_of, positives, 0.6).tolist() == pytest.approx(expected)


def test_weights_fall_from_one_to_zero() -> None:
    found = paced_weights(torch.tensor([0.0, 2.5, 5.0, 9.0]), 5.0).tolist()
    assert found == pytest.approx([1.0, math.cos(math.pi / 4), 0.0, 0.0], abs=1e-6)


def test_limits_are_the_published_ones_at_a_batch_of_100() -> None:
    assert batch_factor(100, 100, 100) == 1.0
    assert batch_factor(256, 256, 100) == pytest.approx(math.log(256) / math.log(100))


@pytest.mark.parametrize("scale", [20.0, 2.0])  # far apart, and near a guess
def test_every_pair_is_trained_by_the_class_of_its_loss(scale: float) -> None:
    method, batch = build_method("rrsitr", scale=scale), example_batch()
    assert isinstance(method, Rrsitr)
    terms = method.losses(batch)
    scores = (batch.texts.pooled @ batch.images.pooled.T).double()
    local = fragment_similarities(batch.texts, batch.images).double()
    factor = batch_factor(7, 5, 100)
    positives = batch.targets.double()
    triplets = growing_margin_terms(scores, batch.image_of, positives > 0, 0.6)
    for t, v in enumerate(batch.image_of.tolist()):
        loss = 0.0
        for logits in (scale * scores, scale * local):
            for line, right in ((logits[t], positives[t]), (logits[:, v], positives[:, v])):
                loss -= float((right / right.sum() * line.log_softmax(0)).sum())
        paced, triplet = 0.0, 0.0
        if loss < 5 * factor:
            paced = math.cos(math.pi / 2 * loss / (5 * factor)) * loss
        elif loss < 18 * factor:
            paced = 0.8 * math.cos(math.pi / 2 * loss / (18 * factor)) * loss
        else:
            triplet = 0.9 * float(triplets[t])
        assert float(terms["paced"][t]) == pytest.approx(paced, rel=1e-3, abs=1e-4)
        assert float(terms["triplet"][t]) == pytest.approx(triplet, rel=1e-3, abs=1e-5)
        reliability = math.cos(math.pi / 2 * min(1.0, loss / (18 * factor)))
        assert float(method.p_match[batch.rows[t]]) == pytest.approx(reliability, abs=1e-4)
    assert float(method.p_match[1]) == 1.0  # was in no batch


def test_warm_up_counts_every_pair_fully() -> None:
    method, batch = build_method("rrsitr", warm_up=3), example_batch(epoch=2)
    assert set(method.losses(batch)) == {"paced"} and (method.losses(batch)["paced"] > 1).all()
    assert [method.phase(epoch) for epoch in (0, 2, 3)] == [0, 0, 1]


@pytest.mark.parametrize("epoch", [0, 50])
def test_contract(epoch: int) -> None:
    keeps_the_contract(build_method("rrsitr", warm_up=1), epoch)


def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    for seed in range(2):
        robust, plain = (learn(name, 0.6, seed, epochs=10) for name in ("rrsitr", "infonce"))
        assert robust.mr > plain.mr + 20
        assert robust.auroc is not None and robust.auroc > 0.85


@pytest.mark.slow
def test_it_learns_squares_better_than_infonce_does(tmp_path: Path) -> None:
    assert learn_squares(tmp_path, "rrsitr", warm_up=4).best_mr > 14 * CHANCE  # infonce: 9 to 12 times
