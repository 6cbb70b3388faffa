"""NCR: predictions and labels against loops, the contract, and what it learns from mismatched pairs."""

from __future__ import annotations

import pytest
import torch
from helpers.feature_world import build_method, learn, learn_infonce
from helpers.look_alikes import mean_cosine_after
from helpers.robust_examples import example_batch, keeps_the_contract

from pmpguard.losses.hinge import HardNegatives, hinge_terms
from pmpguard.methods.baselines.bicro import soft_margins
from pmpguard.methods.baselines.ncr import Ncr, predicted_match


def test_predictions_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(12, 12, generator=generator, dtype=torch.float64) * 0.3
    scores += 0.4 * torch.diag(torch.rand(12, generator=generator, dtype=torch.float64))
    gaps = []
    for t in range(12):
        own = float(scores[t, t])
        others = [k for k in range(12) if k != t]
        row = sum(max(0.0, 0.2 - own + float(scores[t, k])) for k in others) / 11
        column = sum(max(0.0, 0.2 - own + float(scores[k, t])) for k in others) / 11
        gaps.append(min(max(0.2 - (row + column) / 2, 0.0), 0.2))
    surest = sum(sorted(gaps)[-2:]) / 2  # a tenth of 12, rounded down, and one more
    expected = [min(gap / surest, 1.0) for gap in gaps]
    found = predicted_match(scores, torch.arange(12), torch.eye(12, dtype=torch.bool), 0.2, 0.1)
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("negatives", ["semi-hard", "hardest"])
def test_labels_mix_the_mixture_with_the_prediction(negatives: HardNegatives) -> None:
    method, batch = build_method("ncr", negatives=negatives), example_batch(epoch=10)
    assert isinstance(method, Ncr)
    method.p_match[batch.rows] = torch.tensor([1.0, 0.3, 0.9, 0.8, 0.1, 0.7, 0.6])
    scores, positives = batch.texts.pooled @ batch.images.pooled.T, batch.targets > 0
    predicted = predicted_match(scores, batch.image_of, positives, 0.2, 0.1).tolist()
    labels = [
        w + (1 - w) * p if w > 0.5 else p
        for w, p in zip(method.p_match[batch.rows].tolist(), predicted, strict=True)
    ]
    margins = soft_margins(torch.tensor(labels), 0.2, 10.0)
    expected = hinge_terms(scores, batch.image_of, positives, margins, negatives)
    torch.testing.assert_close(method.losses(example_batch(epoch=30))["triplet"], expected)
    expected[[1, 4]] = 0  # judged wrong: they join later
    torch.testing.assert_close(method.losses(batch)["triplet"], expected)
    assert [method.phase(epoch) for epoch in (0, 4, 5, 24, 25)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("epoch", [0, 15, 50])
def test_contract(epoch: int) -> None:
    keeps_the_contract(build_method("ncr"), epoch)


def test_look_alikes_do_not_collapse_it() -> None:
    assert abs(mean_cosine_after("ncr", epochs=10, warmup_epochs=2)) < 0.1


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    robust, plain = learn("ncr", 0.6, 0, epochs=15), learn_infonce(0.6)
    assert robust.mr > plain.mr + 10
    assert robust.auroc is not None and robust.auroc > 0.65  # a loss that is learned by heart tells little
