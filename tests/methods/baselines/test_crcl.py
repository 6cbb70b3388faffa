"""CRCL: its loss and labels against loops, the contract, and what it learns from mismatched pairs."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.feature_world import build_method, learn, learn_infonce
from helpers.robust_examples import example_batch, keeps_the_contract

from pmpguard.methods.baselines.crcl import Crcl, complementary_share, own_and_others


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def test_losses_against_a_loop() -> None:
    method, batch = build_method("crcl").eval(), example_batch(epoch=5)
    assert isinstance(method, Crcl)
    method.p_match[batch.rows] = torch.linspace(0.05, 1, 7)
    scores = (batch.texts.pooled @ batch.images.pooled.T / 0.05).double()
    terms = method.losses(batch)
    for t in range(7):
        image = int(batch.image_of[t])
        rows = [float(scores[t, image])]
        rows += [float(scores[t, k]) for k in range(5) if not batch.targets[t, k]]
        columns = [float(scores[t, image])]
        columns += [float(scores[k, image]) for k in range(7) if not batch.targets[k, image]]
        p_row, p_column = softmax(rows), softmax(columns)
        label = 0.8 * float(method.p_match[batch.rows[t]]) + 0.2 * (p_row[0] + p_column[0]) / 2
        label = label if label >= 0.1 else 0.0
        active = -label * (math.log(p_row[0]) + math.log(p_column[0]))
        bounded = sum(
            sum(map(math.tan, p[1:])) / sum(map(math.tan, p)) ** (1 - label) for p in (p_row, p_column)
        )
        assert float(terms["active"][t]) == pytest.approx(active, rel=1e-3, abs=1e-5)
        assert float(terms["complementary"][t]) == pytest.approx(5 * bounded, rel=1e-3, abs=1e-5)


def test_a_disbelieved_pair_costs_at_most_one_each_way() -> None:
    """The complementary part is bounded, so a wrong label cannot take over."""
    log_own, others = own_and_others(torch.tensor([-30.0]), torch.tensor([[30.0, 0.0]]))
    assert float(complementary_share(log_own, others, torch.tensor([0.0]))) == pytest.approx(1.0)


def test_labels_are_kept_at_first_then_predicted_then_moved() -> None:
    method = build_method("crcl")
    assert isinstance(method, Crcl)
    batch = example_batch(epoch=0)
    method.losses(batch)
    assert method.p_match.unique().tolist() == [1.0]
    method.losses(example_batch(epoch=1))
    first = method.p_match[batch.rows].clone()
    assert bool((first < 1).all())
    method.losses(example_batch(epoch=2))
    expected = torch.where(first < 0.1, 0.0, first)  # the same prediction: the average is where it was
    torch.testing.assert_close(method.p_match[batch.rows], expected)
    method.eval()
    method.losses(example_batch(epoch=1, seed=4))
    torch.testing.assert_close(method.p_match[batch.rows], expected)
    assert [method.phase(epoch) for epoch in range(4)] == [0, 1, 2, 2]


@pytest.mark.parametrize("epoch", [0, 1, 50])
def test_contract(epoch: int) -> None:
    keeps_the_contract(build_method("crcl").eval(), epoch)


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    robust, plain = learn("crcl", 0.6, 0, epochs=15), learn_infonce(0.6)
    assert robust.mr > plain.mr + 10
    assert robust.auroc is not None and robust.auroc > 0.9
