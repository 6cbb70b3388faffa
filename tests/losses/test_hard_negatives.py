"""Hinges against hardest and semi-hard negatives, against loops, and what each costs a collapsed model."""

from __future__ import annotations

import pytest
import torch

from pmpguard.errors import ConfigError
from pmpguard.losses.hard_negatives import HardNegatives, hard_negative_terms

GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.rand(6, 4, generator=GENERATOR, dtype=torch.float64)
IMAGE_OF = torch.tensor([0, 1, 2, 3, 0, 2])
POSITIVES = torch.nn.functional.one_hot(IMAGE_OF, 4).bool()
POSITIVES[1, 3] = True  # an equal string


def naive(margins: list[float], semi_hard: bool) -> list[float]:
    terms = []
    for t, v in enumerate(IMAGE_OF.tolist()):
        own, total = float(SCORES[t, v]), 0.0
        for rivals in (
            [float(SCORES[t, k]) for k in range(4) if not POSITIVES[t, k]],
            [float(SCORES[k, v]) for k in range(6) if not POSITIVES[k, v]],
        ):
            used = [rival for rival in rivals if rival < own or not semi_hard]
            total += max([0.0, *(margins[t] - own + rival for rival in used)])
        terms.append(total)
    return terms


@pytest.mark.parametrize("negatives", ["semi-hard", "hardest"])
def test_against_a_loop(negatives: HardNegatives) -> None:
    margins = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    for margin, each in ((margins, margins.tolist()), (0.2, [0.2] * 6)):
        found = hard_negative_terms(SCORES, IMAGE_OF, POSITIVES, margin, negatives)
        assert found.tolist() == pytest.approx(naive(each, negatives == "semi-hard"))
    assert naive([0.2] * 6, True) != naive([0.2] * 6, False)


def test_only_hardest_negatives_cost_more_than_a_collapsed_model_pays() -> None:
    alike = hard_negative_terms(torch.ones(6, 4).double(), IMAGE_OF, POSITIVES, 0.2, "hardest")
    assert alike.tolist() == pytest.approx([0.4] * 6)  # the margin each way
    assert (hard_negative_terms(SCORES, IMAGE_OF, POSITIVES, 0.2, "semi-hard") <= alike).all()
    assert float(hard_negative_terms(SCORES, IMAGE_OF, POSITIVES, 0.2, "hardest").mean()) > 0.4


def test_a_pair_below_all_others_or_alone_costs_nothing() -> None:
    scores = torch.tensor([[-0.5, 0.3], [0.2, 0.9]])
    own_images = torch.tensor([0, 1])
    terms = hard_negative_terms(scores, own_images, torch.eye(2).bool(), 0.2, "semi-hard")
    assert terms.tolist() == [0, 0]
    for negatives in ("semi-hard", "hardest"):
        alone = hard_negative_terms(scores[:1, :1], own_images[:1], torch.eye(1).bool(), 0.2, negatives)
        assert alone.tolist() == [0]


@pytest.mark.parametrize("negatives", ["semi-hard", "hardest"])
def test_gradient(negatives: HardNegatives) -> None:
    scores = SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda given: hard_negative_terms(given, IMAGE_OF, POSITIVES, 0.3, negatives), (scores,)
    )


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="easy"):
        hard_negative_terms(SCORES, IMAGE_OF, POSITIVES, 0.2, "easy")  # type: ignore[arg-type]
