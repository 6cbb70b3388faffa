"""Verdicts from scores alone."""

from __future__ import annotations

import numpy as np
import pytest
from pmpguard.detection.scores import audit_scores
from sklearn.metrics import roc_auc_score

from pmpguard.errors import DataError


def scores(rate, count=2000, seed=0):
    generator = np.random.default_rng(seed)
    wrong = generator.random(count) < rate
    return np.where(wrong, generator.normal(size=count), generator.normal(3, 1, count)), wrong


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.8])
def test_rate_flags_and_ranks(rate):
    values, wrong = scores(rate)
    found = audit_scores(values, np.random.default_rng(9).normal(size=5000))
    assert found.mismatch_rate == pytest.approx(rate, abs=0.04)
    low, high = found.mismatch_interval
    assert low - 0.02 <= wrong.mean() <= high + 0.02
    assert found.flag.tolist() == (found.p_match < 0.5).tolist()
    assert sorted(found.rank.tolist()) == list(range(1, 2001))
    in_order = np.argsort(found.rank)
    assert (np.diff(found.p_match[in_order]) >= 0).all()
    if 0 < rate < 1:
        assert roc_auc_score(wrong, -found.rank) > 0.97
    assert bool(found.warnings) == (rate == 0.8)


def test_equal_probabilities_are_ranked_by_score():
    found = audit_scores([-5.0, -9.0, 8.0, 9.0], np.linspace(-1, 1, 100), bootstrap=0)
    assert found.rank.tolist() == [2, 1, 3, 4]
    assert found.mismatch_interval is None
    assert "only 4 pairs" in found.warnings[0]


def test_scores_that_say_nothing_hold_nothing_against_anyone():
    found = audit_scores(np.ones(200), np.ones(300))
    assert not found.flag.any() and "say nothing" in found.warnings[0]


def test_everything_wrong_is_said():
    generator = np.random.default_rng(0)
    found = audit_scores(generator.normal(size=3000), generator.normal(size=20_000))
    assert found.mismatch_rate > 0.9
    assert "most captions are wrong, or the model is too weak" in found.warnings[0]


def test_not_a_number_is_an_error():
    with pytest.raises(DataError, match="NaN"):
        audit_scores([1.0, np.nan], [0.0, 1.0])
