"""L2RM: its losses against loops, the contract, and what it learns from mismatched pairs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.feature_world import build_method, learn, learn_infonce
from helpers.look_alikes import mean_cosine_after
from helpers.robust_examples import CHANCE, example_batch, keeps_the_contract, learn_squares

from pmpguard.losses.hinge import HardNegatives, hinge_terms
from pmpguard.losses.optimal_transport import partial_plan
from pmpguard.methods.baselines.l2rm import (
    L2rm,
    L2rmSettings,
    symmetric_cross_entropy,
    symmetric_divergence,
    transport_cost,
)

GENERATOR = torch.Generator().manual_seed(0)


def test_symmetric_cross_entropy_against_a_loop() -> None:
    logits = torch.randn(5, 4, generator=GENERATOR, dtype=torch.float64) * 3
    image_of = torch.tensor([0, 1, 2, 3, 1])
    targets = torch.nn.functional.one_hot(image_of, 4).double()
    expected = []
    for t, v in enumerate(image_of.tolist()):
        total = 0.0
        for scores, right in ((logits[t], targets[t]), (logits[:, v], targets[:, v])):
            p = [math.exp(value) for value in scores.tolist()]
            p = [value / sum(p) for value in p]
            labels = [share / float(right.sum()) for share in right.tolist()]
            forward = -sum(label * math.log(value) for label, value in zip(labels, p, strict=True))
            reverse = -sum(
                value * math.log(1.0 if label else 1e-7) for label, value in zip(labels, p, strict=True)
            )
            total += (forward + reverse) / 2
        expected.append(total)
    assert symmetric_cross_entropy(logits, targets, image_of).tolist() == pytest.approx(expected, rel=1e-9)


def test_divergence_against_a_loop_over_those_that_take_part() -> None:
    logits = torch.randn(4, 5, generator=GENERATOR, dtype=torch.float64)
    plan = torch.rand(4, 5, generator=GENERATOR, dtype=torch.float64)
    captions, images = torch.tensor([1.0, 0, 1, 1]).double(), torch.tensor([1.0, 1, 0, 1, 1]).double()
    rows, columns = symmetric_divergence(logits, plan, captions, images)

    def naive(scores: list[float], shares: list[float]) -> float:
        p = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
        q = [share / sum(shares) for share in shares]
        return sum(
            a * math.log(a / b) + b * math.log(b / a) for a, b in zip(p, q, strict=True)
        ) / 2  # fmt: skip

    used_rows, used_columns = [0, 2, 3], [0, 1, 3, 4]
    for t in used_rows:
        assert float(rows[t]) == pytest.approx(
            naive(logits[t, used_columns].tolist(), plan[t, used_columns].tolist()), rel=1e-6
        )
    for v in used_columns:
        assert float(columns[v]) == pytest.approx(
            naive(logits[used_rows, v].tolist(), plan[used_rows, v].tolist()), rel=1e-6
        )


def test_cost_starts_as_one_minus_similarity_and_clean_pairs_make_it_cheaper() -> None:
    scores = torch.tensor([[0.9, -0.2], [0.1, 1.2]])
    torch.testing.assert_close(transport_cost(scores, torch.zeros(3)), torch.tensor([[0.1, 1.2], [0.9, 0.0]]))
    method = build_method("l2rm")
    assert isinstance(method, L2rm)
    before = float(method.losses(example_batch())["cost"].detach().mean())
    optimiser = torch.optim.SGD([method.cost_change], lr=100.0)
    for _ in range(5):
        optimiser.zero_grad()
        method.losses(example_batch())["cost"].mean().backward()
        optimiser.step()
    assert float(method.losses(example_batch())["cost"].detach().mean()) < before - 0.01


def test_the_cost_teaches_the_cost_function_alone() -> None:
    batch = example_batch()
    batch.texts.pooled.requires_grad_()
    build_method("l2rm").losses(batch)["cost"].sum().backward()
    assert batch.texts.pooled.grad is None


@pytest.mark.parametrize("negatives", ["semi-hard", "hardest"])
def test_clean_pairs_have_triplets_and_the_others_the_plan(negatives: HardNegatives) -> None:
    method, batch = build_method("l2rm", rematch_weight=1.0, negatives=negatives), example_batch()
    assert isinstance(method, L2rm)
    wrong = torch.tensor([0, 2, 6])
    method.p_match[batch.rows[wrong]] = 0.2
    terms = method.losses(batch)
    is_mismatched = torch.zeros(7).index_fill(0, wrong, 1).bool()
    assert (terms["triplet"][is_mismatched] == 0).all() and (terms["rematch"][~is_mismatched] == 0).all()
    assert (terms["cost"][is_mismatched] == 0).all() and (terms["rematch"][is_mismatched] > 0).all()
    scores = batch.texts.pooled @ batch.images.pooled.T
    triplets = hinge_terms(scores, batch.image_of, batch.targets > 0, 0.2, negatives=negatives)
    torch.testing.assert_close(terms["triplet"][~is_mismatched], triplets[~is_mismatched])
    images = sorted({int(batch.image_of[t]) for t in wrong})
    small = scores[wrong][:, images]
    even = [torch.full((count,), 1 / count) for count in small.shape]
    plan = partial_plan((1 - small).clamp(min=0), even[0], even[1], 0.1, 0.07, iterations=2000)
    rows, columns = symmetric_divergence(small / 0.05, plan, torch.ones(3), torch.ones(len(images)))
    for place, t in enumerate(wrong.tolist()):
        expected = rows[place] + columns[images.index(int(batch.image_of[t]))]
        assert float(terms["rematch"][t]) == pytest.approx(float(expected), rel=2e-2)


def test_the_oracle_forbids_the_label() -> None:
    batch = example_batch(captions=5, images=5)
    plans = {}
    for oracle in (False, True):
        method = build_method("l2rm", oracle_diagonal=oracle)
        assert isinstance(method, L2rm)
        plans[oracle] = method._plan(torch.zeros(5, 5), torch.ones(5), torch.ones(5), batch.image_of)
    assert float(plans[True].diagonal().sum()) < 1e-6 < float(plans[False].diagonal().sum())
    assert not L2rmSettings().oracle_diagonal


@pytest.mark.parametrize("epoch", [0, 50])
@pytest.mark.parametrize("wrong", [0, 1, 20])
def test_contract(epoch: int, wrong: int) -> None:
    method = build_method("l2rm")
    assert method.p_match is not None
    method.p_match[:wrong] = 0.1
    keeps_the_contract(method, epoch)
    assert [method.phase(number) for number in (0, 4, 5, 9)] == [0, 0, 1, 1]


def test_look_alikes_do_not_collapse_it() -> None:
    """With the original's hardest negatives all captions move towards all images."""
    assert abs(mean_cosine_after("l2rm", epochs=8, warmup_epochs=0, iterations=5)) < 0.1
    assert mean_cosine_after("l2rm", epochs=8, warmup_epochs=0, iterations=5, negatives="hardest") > 0.3


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    robust, plain = learn("l2rm", 0.6, 0, epochs=15), learn_infonce(0.6)
    assert robust.mr > plain.mr + 20
    assert robust.auroc is not None and robust.auroc > 0.9


@pytest.mark.slow
def test_it_learns_squares(tmp_path: Path) -> None:
    assert learn_squares(tmp_path, "l2rm", warmup_epochs=10).best_mr > 7 * CHANCE
