"""Hinges with a margin for each pair and of hard negatives, against loops; what a collapsed model pays."""

from __future__ import annotations

import pytest
import torch

from pmpguard.errors import ConfigError
from pmpguard.losses.triplet import HardNegatives, hinge_terms, own_and_negatives

GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.rand(6, 4, generator=GENERATOR, dtype=torch.float64)
IMAGE_OF = torch.tensor([0, 1, 2, 3, 0, 2])
POSITIVES = torch.nn.functional.one_hot(IMAGE_OF, 4).bool()
POSITIVES[1, 3] = True  # an equal string


def naive(margins: list[float], hardest: int) -> list[float]:
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
    found = hinge_terms(SCORES, IMAGE_OF, POSITIVES, margins, hardest)
    assert found.tolist() == pytest.approx(naive(margins.tolist(), hardest))
    same = hinge_terms(SCORES, IMAGE_OF, POSITIVES, 0.2, hardest)
    assert same.tolist() == pytest.approx(naive([0.2] * 6, hardest))


def test_a_positive_is_never_a_rival() -> None:
    own, rows, columns = own_and_negatives(SCORES, IMAGE_OF, POSITIVES)
    assert own.tolist() == [float(SCORES[t, v]) for t, v in enumerate(IMAGE_OF.tolist())]
    assert (rows[POSITIVES] < -1e30).all() and (columns.diagonal() < -1e30).all()
    assert float(columns[0, 4]) < -1e30 and columns[0, 1] == SCORES[1, 0]


def test_gradient() -> None:
    scores = SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: hinge_terms(given, IMAGE_OF, POSITIVES, 0.3, 2), (scores,))


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


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="easy"):
        hinge_terms(SCORES, IMAGE_OF, POSITIVES, 0.2, negatives="easy")  # type: ignore[arg-type]
