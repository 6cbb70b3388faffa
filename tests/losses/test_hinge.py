from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses.hinge import hinge_terms

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
