"""The hinge against loops: every kind of negative, margins of each pair, what a collapsed model pays."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses.hinge import HardNegatives, hinge_terms, own_and_negatives

RULES = ["hardest", "mean", "sum"]


def draw(captions: int, images: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(captions, images, generator=generator, dtype=torch.float64)
    image_of = torch.randint(images, (captions,), generator=generator)
    positives = torch.rand(captions, images, generator=generator) < 0.2
    return scores, image_of, positives


def naive(scores: Tensor, image_of: Tensor, positives: Tensor, margin: float, rule: str) -> list[float]:
    captions, images = scores.shape
    s = scores.tolist()
    labels = image_of.tolist()

    def belongs(t: int, v: int) -> bool:
        return labels[t] == v or bool(positives[t, v])

    def combine(hinges: list[float]) -> float:
        if not hinges:
            return 0.0
        return {"hardest": max(hinges), "sum": sum(hinges), "mean": sum(hinges) / len(hinges)}[rule]

    terms = []
    for t, v in enumerate(labels):
        own = s[t][v]
        other_images = [max(0.0, margin - own + s[t][k]) for k in range(images) if not belongs(t, k)]
        other_captions = [max(0.0, margin - own + s[k][v]) for k in range(captions) if not belongs(k, v)]
        terms.append(combine(other_images) + combine(other_captions))
    return terms


@settings(max_examples=60, deadline=None)
@given(
    captions=st.integers(1, 7),
    images=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    margin=st.sampled_from([0.0, 0.5, 2.0]),
    rule=st.sampled_from(RULES),
)
def test_equals_the_naive_loop(captions: int, images: int, seed: int, margin: float, rule: str) -> None:
    scores, image_of, positives = draw(captions, images, seed)
    terms = hinge_terms(scores, image_of, positives, margin, rule)  # type: ignore[arg-type]
    assert terms.tolist() == pytest.approx(naive(scores, image_of, positives, margin, rule), abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_gradients(rule: str) -> None:
    scores, image_of, positives = draw(5, 4, 1)
    assert torch.autograd.gradcheck(
        lambda s: hinge_terms(s, image_of, positives, 0.5, rule),  # type: ignore[arg-type]
        scores.requires_grad_(),
    )


@pytest.mark.parametrize("rule", RULES)
def test_permuting_the_batch_permutes_the_terms(rule: str) -> None:
    scores, image_of, positives = draw(8, 5, 2)
    captions, images = torch.randperm(8), torch.randperm(5)
    plain = hinge_terms(scores, image_of, positives, 0.5, rule)  # type: ignore[arg-type]
    shuffled = hinge_terms(
        scores[captions][:, images],
        torch.argsort(images)[image_of[captions]],
        positives[captions][:, images],
        0.5,
        rule,  # type: ignore[arg-type]
    )
    torch.testing.assert_close(shuffled, plain[captions])


@pytest.mark.parametrize("rule", RULES)
def test_positives_are_never_negatives(rule: str) -> None:
    scores, image_of, positives = draw(6, 6, 3)
    scores.requires_grad_()
    hinge_terms(scores, image_of, positives, 5.0, rule).sum().backward()  # type: ignore[arg-type]
    labelled = torch.zeros(6, 6, dtype=torch.bool)
    labelled[torch.arange(6), image_of] = True
    assert scores.grad is not None
    assert not scores.grad[positives & ~labelled].any()
    assert (scores.grad[labelled] <= 0).all() and scores.grad[labelled].any()


def test_separated_pairs_cost_nothing_and_only_the_hardest_negative_pulls() -> None:
    own = torch.arange(3)
    apart = torch.eye(3) * 0.6
    assert not hinge_terms(apart, own, torch.eye(3).bool()).any()
    scores = torch.tensor([[1.0, 0.9, 0.8], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], requires_grad=True)
    hinge_terms(scores, own, torch.eye(3).bool())[0].backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="negatives"):
        hinge_terms(torch.eye(2), torch.arange(2), torch.eye(2).bool(), 0.5, "all")  # type: ignore[arg-type]


GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.rand(6, 4, generator=GENERATOR, dtype=torch.float64)
IMAGE_OF = torch.tensor([0, 1, 2, 3, 0, 2])
POSITIVES = torch.nn.functional.one_hot(IMAGE_OF, 4).bool()
POSITIVES[1, 3] = True  # an equal string


def naive_of_hardest(margins: list[float], hardest: int) -> list[float]:
    terms = []
    for t, v in enumerate(IMAGE_OF.tolist()):
        own, margin = float(SCORES[t, v]), margins[t]
        rows = [
            max(0.0, margin - own + float(SCORES[t, k])) if not POSITIVES[t, k] else 0.0 for k in range(4)
        ]
        columns = [
            max(0.0, margin - own + float(SCORES[k, v])) if not POSITIVES[k, v] else 0.0 for k in range(6)
        ]
        terms.append(
            sum(
                sum(sorted(side, reverse=True)[:hardest]) / min(hardest, len(side))
                for side in (rows, columns)
            )
        )
    return terms


@pytest.mark.parametrize("hardest", [1, 2, 4, 9])
def test_hinges_against_a_loop(hardest: int) -> None:
    margins = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    found = hinge_terms(SCORES, IMAGE_OF, POSITIVES, margins, hardest=hardest)
    assert found.tolist() == pytest.approx(naive_of_hardest(margins.tolist(), hardest))
    same = hinge_terms(SCORES, IMAGE_OF, POSITIVES, 0.2, hardest=hardest)
    assert same.tolist() == pytest.approx(naive_of_hardest([0.2] * 6, hardest))


def test_a_positive_is_never_a_negative() -> None:
    own, rows, columns = own_and_negatives(SCORES, IMAGE_OF, POSITIVES)
    assert own.tolist() == [float(SCORES[t, v]) for t, v in enumerate(IMAGE_OF.tolist())]
    assert (rows[POSITIVES] < -1e30).all() and (columns.diagonal() < -1e30).all()
    assert float(columns[0, 4]) < -1e30 and columns[0, 1] == SCORES[1, 0]


def test_gradient_of_several() -> None:
    scores = SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda given: hinge_terms(given, IMAGE_OF, POSITIVES, 0.3, hardest=2), (scores,)
    )


def naive_hardest(margins: list[float], semi_hard: bool) -> list[float]:
    terms = []
    for t, v in enumerate(IMAGE_OF.tolist()):
        own, total = float(SCORES[t, v]), 0.0
        for side in (
            [float(SCORES[t, k]) for k in range(4) if not POSITIVES[t, k]],
            [float(SCORES[k, v]) for k in range(6) if not POSITIVES[k, v]],
        ):
            used = [negative for negative in side if negative < own or not semi_hard]
            total += max([0.0, *(margins[t] - own + negative for negative in used)])
        terms.append(total)
    return terms


@pytest.mark.parametrize("negatives", ["semi-hard", "hardest"])
def test_hard_negatives_against_a_loop(negatives: HardNegatives) -> None:
    margins = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    for margin, each in ((margins, margins.tolist()), (0.2, [0.2] * 6)):
        found = hinge_terms(SCORES, IMAGE_OF, POSITIVES, margin, negatives=negatives)
        assert found.tolist() == pytest.approx(naive_hardest(each, negatives == "semi-hard"))
    assert naive_hardest([0.2] * 6, True) != naive_hardest([0.2] * 6, False)


def test_only_hardest_negatives_cost_more_than_a_collapsed_model_pays() -> None:
    alike = hinge_terms(torch.ones(6, 4).double(), IMAGE_OF, POSITIVES, 0.2, negatives="hardest")
    assert alike.tolist() == pytest.approx([0.4] * 6)  # the margin each way
    assert (hinge_terms(SCORES, IMAGE_OF, POSITIVES, 0.2, negatives="semi-hard") <= alike).all()
    assert float(hinge_terms(SCORES, IMAGE_OF, POSITIVES, 0.2, negatives="hardest").mean()) > 0.4


def test_a_pair_below_all_others_or_alone_costs_nothing() -> None:
    scores = torch.tensor([[-0.5, 0.3], [0.2, 0.9]])
    own_images = torch.tensor([0, 1])
    terms = hinge_terms(scores, own_images, torch.eye(2).bool(), 0.2, negatives="semi-hard")
    assert terms.tolist() == [0, 0]
    for negatives in ("semi-hard", "hardest"):
        alone = hinge_terms(scores[:1, :1], own_images[:1], torch.eye(1).bool(), 0.2, negatives=negatives)
        assert alone.tolist() == [0]


@pytest.mark.parametrize("negatives", ["semi-hard", "hardest"])
def test_gradient_of_hard_negatives(negatives: HardNegatives) -> None:
    scores = SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda given: hinge_terms(given, IMAGE_OF, POSITIVES, 0.3, negatives=negatives), (scores,)
    )
