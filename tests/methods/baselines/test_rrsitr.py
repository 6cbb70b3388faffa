"""RRSITR: its weights and terms against loops, the contract, and what it learns from mismatched pairs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.feature_world import build_method, learn, learn_infonce
from helpers.robust_examples import CHANCE, example_batch, keeps_the_contract, learn_squares
from torch import Tensor

from pmpguard.methods.baselines.rrsitr import (
    Rrsitr,
    batch_factor,
    fragment_similarities,
    growing_margin_terms,
    own_terms,
    paced_weights,
)
from pmpguard.methods.method import EncodedBatch
from pmpguard.models.encoded import Encoded


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
        for negative in (max(rows), max(columns)):
            margin = 0.6 * (1 + max(0.0, negative - own))
            term += max(0.0, margin - own + negative)
        expected.append(term)
    assert growing_margin_terms(scores, image_of, positives, 0.6).tolist() == pytest.approx(expected)


def own_loss(logits: Tensor, positives: Tensor, t: int, v: int) -> float:
    own = math.exp(logits[t, v])
    rows = sum(math.exp(logits[t, k]) for k in range(logits.shape[1]) if not positives[t, k])
    columns = sum(math.exp(logits[k, v]) for k in range(logits.shape[0]) if not positives[k, v])
    return -math.log(own / (own + rows)) - math.log(own / (own + columns))


def test_own_terms_against_a_loop() -> None:
    logits = 5 * torch.rand(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    image_of = torch.tensor([0, 1, 2, 3, 3, 3])
    positives = torch.nn.functional.one_hot(image_of, 4).bool()
    positives[1, 2] = positives[2, 1] = True
    expected = [own_loss(logits, positives, t, v) for t, v in enumerate(image_of.tolist())]
    assert own_terms(logits, image_of, positives).tolist() == pytest.approx(expected)


def test_a_pair_without_negatives_costs_nothing() -> None:
    found = own_terms(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), torch.ones(2, 1, dtype=torch.bool))
    assert found.tolist() == [0.0, 0.0]


def test_a_right_pair_is_trusted_whatever_else_its_image_is_said_to_show() -> None:
    """Twenty images with five captions each, of which four describe something else."""
    directions = torch.eye(120)
    image_of = torch.arange(20).repeat_interleave(5)
    is_right = torch.arange(100) % 5 == 0
    texts = torch.where(is_right[:, None], directions[image_of], directions[20:])
    items = [
        Encoded(x, x[:, None], torch.ones(len(x), 1, dtype=torch.bool)) for x in (texts, directions[:20])
    ]
    method = build_method("rrsitr", pairs=100)
    assert isinstance(method, Rrsitr)
    keys = torch.arange(100)
    method.losses(EncodedBatch(items[0], items[1], image_of, torch.arange(20), keys, keys, 0))
    assert (method.p_match[is_right] > 0.99).all() and (method.p_match[~is_right] < 0.1).all()


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
        loss = own_loss(scale * scores, positives > 0, t, v)
        loss += own_loss(scale * math.sqrt(6) * local, positives > 0, t, v)
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
    method, batch = build_method("rrsitr", warmup_epochs=3), example_batch(epoch=2)
    assert set(method.losses(batch)) == {"paced"} and (method.losses(batch)["paced"] > 1).all()
    assert [method.phase(epoch) for epoch in (0, 2, 3)] == [0, 0, 1]


@pytest.mark.parametrize("epoch", [0, 50])
def test_contract(epoch: int) -> None:
    keeps_the_contract(build_method("rrsitr", warmup_epochs=1), epoch)


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    robust, plain = learn("rrsitr", 0.6, 0, epochs=15), learn_infonce(0.6)
    assert robust.mr > plain.mr + 20
    assert robust.auroc is not None and robust.auroc > 0.85


@pytest.mark.slow
def test_it_learns_squares_better_than_infonce_does(tmp_path: Path) -> None:
    assert learn_squares(tmp_path, "rrsitr", warmup_epochs=4).best_mr > 14 * CHANCE  # infonce: 9 to 12 times
