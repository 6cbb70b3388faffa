"""Hinges with a margin for each pair, against loops."""

from __future__ import annotations

import pytest
import torch

from pmpguard.losses.triplet import hinge_terms, rivals

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
    own, rows, columns = rivals(SCORES, IMAGE_OF, POSITIVES)
    assert own.tolist() == [float(SCORES[t, v]) for t, v in enumerate(IMAGE_OF.tolist())]
    assert (rows[POSITIVES] < -1e30).all() and (columns.diagonal() < -1e30).all()
    assert float(columns[0, 4]) < -1e30 and columns[0, 1] == SCORES[1, 0]


def test_gradient() -> None:
    scores = SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: hinge_terms(given, IMAGE_OF, POSITIVES, 0.3, 2), (scores,))
