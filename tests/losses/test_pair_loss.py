"""The loss modules: equal to loops over the pairs, weights, repeated images and sentences, plain errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from pmpguard.errors import ConfigError
from pmpguard.losses import (
    AwarenessHinge,
    Complementary,
    Distillation,
    InfoNCE,
    PairLoss,
    complementary_terms,
    hinge_terms,
    infonce_terms,
    positive_targets,
)

GENERATOR = torch.Generator().manual_seed(3)
SCORES = torch.rand(5, 4, generator=GENERATOR, dtype=torch.float64) * 2 - 1
TEACHER = torch.rand(5, 4, generator=GENERATOR, dtype=torch.float64) * 2 - 1
IMAGE_OF = torch.tensor([0, 1, 2, 3, 0])
WEIGHTS = torch.tensor([1.0, 0.0, 0.3, 0.8, 0.6], dtype=torch.float64)
IMAGE_KEYS = torch.tensor([7, 8, 9, 8])  # images 1 and 3 are one
CAPTION_KEYS = torch.tensor([1, 2, 3, 4, 3])  # captions 2 and 4 are one sentence
LOSSES: list[PairLoss] = [InfoNCE(), AwarenessHinge(), Complementary()]


def cross_entropy(target: list[float], logits: list[float]) -> float:
    total = math.log(sum(map(math.exp, logits)))
    return sum(share * (total - logit) for share, logit in zip(target, logits, strict=True))


def softmax(logits: list[float]) -> list[float]:
    total = sum(map(math.exp, logits))
    return [math.exp(logit) / total for logit in logits]


def test_infonce_of_distinct_pairs_is_cross_entropy_both_ways() -> None:
    square, tau = SCORES[:4], 0.2
    found = InfoNCE(temperature=tau)(square)
    logits = (square / tau).tolist()
    each = []
    for t in range(4):
        one_hot = [float(k == t) for k in range(4)]
        column = [row[t] for row in logits]
        each.append((cross_entropy(one_hot, logits[t]) + cross_entropy(one_hot, column)) / 2)
    assert float(found) == pytest.approx(sum(each) / 4)


def test_distillation_against_a_loop() -> None:
    tau, teacher_tau, learns = 0.2, 0.1, 1 - WEIGHTS
    loss = Distillation(tau, teacher_tau, reduction="none")
    student, teacher = (SCORES / tau).tolist(), (TEACHER / teacher_tau).tolist()
    columns = 0.0
    for image in range(4):
        least = min(float(learns[t]) for t in range(5) if IMAGE_OF[t] == image)
        target = softmax([row[image] for row in teacher])
        columns += least * cross_entropy(target, [row[image] for row in student]) / 4
    expected = [
        (float(learns[t]) * cross_entropy(softmax(teacher[t]), student[t]) + columns) / 2 for t in range(5)
    ]
    assert loss(SCORES, TEACHER, IMAGE_OF, learns).tolist() == pytest.approx(expected)
    assert loss(SCORES, [TEACHER, TEACHER], IMAGE_OF, learns).tolist() == pytest.approx(expected)


def test_modules_are_their_functions_times_the_weights() -> None:
    keys = {"image_keys": IMAGE_KEYS, "caption_keys": CAPTION_KEYS}
    weighted = positive_targets(IMAGE_OF, IMAGE_KEYS, CAPTION_KEYS, WEIGHTS)
    positives = positive_targets(IMAGE_OF, IMAGE_KEYS, CAPTION_KEYS) > 0
    expected: list[tuple[PairLoss, Tensor]] = [
        (InfoNCE(0.1, "joint", "none"), infonce_terms(SCORES / 0.1, weighted, IMAGE_OF, "joint")),
        (
            AwarenessHinge(0.2, "mean", reduction="none"),
            hinge_terms(SCORES, IMAGE_OF, positives, 0.2, "mean"),
        ),
        (
            Complementary(0.1, "linear", "none"),
            complementary_terms(SCORES / 0.1, positives, IMAGE_OF, "linear"),
        ),
    ]
    for loss, terms in expected:
        torch.testing.assert_close(loss(SCORES, IMAGE_OF, WEIGHTS, **keys), WEIGHTS * terms)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_reductions(loss: PairLoss) -> None:
    values = {}
    for reduction in ("none", "mean", "sum"):
        loss.reduction = reduction  # type: ignore[assignment]
        values[reduction] = loss(SCORES, IMAGE_OF, WEIGHTS)
    loss.reduction = "mean"
    assert values["none"].shape == (5,) and values["none"][1] == 0
    torch.testing.assert_close(values["mean"], values["none"].sum() / 5)  # over all pairs, not their weights
    torch.testing.assert_close(values["sum"], values["none"].sum())


def test_a_pair_of_weight_0_is_not_pulled_together() -> None:
    scores = SCORES.clone().requires_grad_()
    InfoNCE()(scores, IMAGE_OF, WEIGHTS).backward()
    assert scores.grad is not None
    assert float(scores.grad[1, 1]) >= 0 and float(scores.grad[0, 0]) < 0


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_equal_sentences_and_images_are_positives_of_each_other(loss: PairLoss) -> None:
    """Caption 2 is not pushed from image 0, which has the same sentence, nor 1 from its twin image."""
    together = SCORES.clone().requires_grad_()
    loss(together, IMAGE_OF, image_keys=IMAGE_KEYS, caption_keys=CAPTION_KEYS).backward()
    apart = SCORES.clone().requires_grad_()
    loss(apart, IMAGE_OF).backward()
    assert together.grad is not None and apart.grad is not None
    for place in ((2, 0), (1, 3)):
        assert float(together.grad[place]) <= 0
    assert not torch.equal(together.grad, apart.grad)


def test_a_learned_temperature_gets_a_gradient_and_weights_get_none() -> None:
    loss, weights = InfoNCE(nn.Parameter(torch.tensor(0.1))), WEIGHTS.clone().requires_grad_()
    scores = SCORES.clone().requires_grad_()
    loss(scores, IMAGE_OF, weights).backward()
    (temperature,) = loss.parameters()
    assert temperature.grad is not None and float(temperature.grad) != 0
    assert weights.grad is None


def test_what_does_not_fit_is_refused_with_the_shapes() -> None:
    loss = InfoNCE()
    with pytest.raises(ConfigError, match="5 x 4: which image"):
        loss(SCORES)
    with pytest.raises(ConfigError, match=r"weights have shape \(4,\)"):
        loss(SCORES, IMAGE_OF, torch.ones(4))
    with pytest.raises(ConfigError, match=r"image_keys has shape \(5,\)"):
        loss(SCORES, IMAGE_OF, image_keys=torch.arange(5))
    with pytest.raises(ConfigError, match="'median'"):
        InfoNCE(reduction="median")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the same captions"):
        Distillation()(SCORES, TEACHER[:4], IMAGE_OF)
