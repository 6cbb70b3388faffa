"""DECL: its losses against loops and distributions, the contract, what it learns from mismatched pairs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.feature_world import build_method, learn, learn_infonce
from helpers.robust_examples import CHANCE, example_batch, keeps_the_contract, learn_squares
from torch.distributions import Dirichlet, kl_divergence

from pmpguard.losses.hinge import hinge_terms
from pmpguard.methods.baselines.decl import (
    Decl,
    divergence_from_uniform,
    evidential_terms,
    negatives_used,
    own_share,
)
from pmpguard.methods.method import EncodedBatch
from pmpguard.models.encoded import Encoded

GENERATOR = torch.Generator().manual_seed(0)
EVIDENCE = torch.rand(4, 6, generator=GENERATOR, dtype=torch.float64) * 20


def test_divergence_equals_that_of_the_distributions() -> None:
    alpha = EVIDENCE + 1
    expected = kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha)))
    torch.testing.assert_close(divergence_from_uniform(alpha), expected)


def test_evidential_terms_against_a_loop() -> None:
    targets = torch.zeros(4, 6, dtype=torch.float64)
    targets[0, 1] = targets[1, 2] = targets[1, 5] = targets[2, 0] = 1  # query 3 should find nothing
    expected = []
    for query in range(4):
        alpha = [float(value) + 1 for value in EVIDENCE[query]]
        total, right = sum(alpha), float(targets[query].sum())
        term, wrong = 0.0, []
        for k, value in enumerate(alpha):
            label = float(targets[query, k]) / right if right else 0.0
            term += (label - value / total) ** 2 + value * (total - value) / (total**2 * (total + 1))
            wrong.append(1.0 if label else value)
        term += 0.1 * float(
            kl_divergence(Dirichlet(torch.tensor(wrong).double()), Dirichlet(torch.ones(6).double()))
        )
        expected.append(term)
    assert evidential_terms(EVIDENCE, targets, 0.1).tolist() == pytest.approx(expected, rel=1e-6)


def test_expected_error_is_that_of_samples() -> None:
    """The closed form of the expected squared error agrees with an average over the distribution."""
    evidence, targets = EVIDENCE[:1], torch.eye(6, dtype=torch.float64)[:1]
    torch.manual_seed(0)
    samples = Dirichlet(evidence[0] + 1).sample((100_000,))
    assert float(evidential_terms(evidence, targets, 0.0)) == pytest.approx(
        float(((targets - samples) ** 2).sum(1).mean()), rel=0.01
    )


def test_gradient() -> None:
    given, targets = EVIDENCE.clone().requires_grad_(), torch.eye(4, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda evidence: evidential_terms(evidence, targets, 0.1), (given,))


def test_own_share_against_a_loop() -> None:
    evidence = torch.rand(5, 4, generator=GENERATOR, dtype=torch.float64)
    image_of = torch.tensor([0, 1, 2, 3, 1])
    positives = torch.nn.functional.one_hot(image_of, 4).bool()
    expected = []
    for t in range(5):
        own = 2 * evidence[t, image_of[t]]
        negatives = [
            evidence[t, image_of[u]] + evidence[u, image_of[t]]
            for u in range(5)
            if image_of[u] != image_of[t]
        ]
        expected.append(float(own / (own + max(negatives))))
    assert own_share(evidence, image_of, positives).tolist() == pytest.approx(expected)


def test_losses_are_the_evidence_both_ways_and_the_hinge() -> None:
    method, batch = build_method("decl"), example_batch()
    assert isinstance(method, Decl)
    method.p_match[batch.rows[2]] = 0.3
    scores = torch.tanh(2 * (batch.texts.pooled @ batch.images.pooled.T) - 0.5)
    evidence = (scores.double() / 0.1).exp()
    targets = batch.weighted_targets((method.p_match[batch.rows] > 0.5).float()).double()
    rows, columns = evidential_terms(evidence, targets, 0.1), evidential_terms(evidence.T, targets.T, 0.1)
    terms = method.losses(batch)
    torch.testing.assert_close(terms["evidence"], (rows + columns[batch.image_of]).float())
    hinges = 0.8 * 128 * hinge_terms(scores, batch.image_of, batch.targets > 0, 0.2, hardest=5)
    hinges[2] = 0
    torch.testing.assert_close(terms["hinge"], hinges)


def test_unrelated_pairs_leave_no_evidence_without_opposite_embeddings() -> None:
    """At right angles the divergence from no evidence hardly pushes; bare cosines would go to -1 for that."""
    image_of = torch.arange(6)
    for slope, offset, pushed in ((2.0, -0.5, False), (1.0, 0.0, True)):
        method = build_method("decl", slope=slope, offset=offset)
        assert isinstance(method, Decl)
        method.p_match.zero_()  # nothing is believed
        texts, images = torch.eye(12)[:6].requires_grad_(), torch.eye(12)[6:]
        items = [Encoded(x, x[:, None], torch.ones(6, 1, dtype=torch.bool)) for x in (texts, images)]
        terms = method.losses(EncodedBatch(items[0], items[1], image_of, image_of, image_of, image_of, 0))
        terms["evidence"].sum().backward()
        assert texts.grad is not None
        assert bool((texts.grad @ images.T > 0.1).any()) == pushed


def test_evidence_of_a_label_is_wanted_and_that_of_a_disbelieved_one_is_not() -> None:
    for targets, sign in ((torch.eye(4, 6).double(), -1), (torch.zeros(4, 6).double(), 1)):
        evidence = EVIDENCE.clone().requires_grad_()
        evidential_terms(evidence, targets, 0.1).sum().backward()
        assert evidence.grad is not None and (evidence.grad.diagonal().sign() == sign).all()


def test_large_evidence_stays_finite() -> None:
    evidence = torch.full((2, 512), math.exp(7.6), dtype=torch.float64)
    assert torch.isfinite(evidential_terms(evidence, torch.eye(2, 512, dtype=torch.float64), 0.1)).all()


def test_negatives_become_harder() -> None:
    assert [negatives_used(epoch, 128, 5, 5) for epoch in range(7)] == [128, 103, 79, 54, 30, 5, 5]
    assert negatives_used(0, 3, 5, 5) == 5 and negatives_used(0, 128, 5, 0) == 5
    method = build_method("decl")
    assert [method.phase(epoch) for epoch in (0, 1, 5, 9)] == [0, 1, 5, 5]


@pytest.mark.parametrize("epoch", [0, 50])
def test_contract(epoch: int) -> None:
    method = build_method("decl")
    assert method.p_match is not None
    method.p_match[2] = 0.1
    keeps_the_contract(method, epoch)


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    robust, plain = learn("decl", 0.6, 0, epochs=15), learn_infonce(0.6)
    assert robust.mr > plain.mr + 20
    assert robust.auroc is not None and robust.auroc > 0.85


@pytest.mark.slow
def test_it_learns_squares(tmp_path: Path) -> None:
    assert learn_squares(tmp_path, "decl", warmup_epochs=11, harder_for=24).best_mr > 5 * CHANCE
