"""The probability of a picked caption: ordered, less sure than plain matches, zero where nothing matches."""

from __future__ import annotations

import numpy as np
import pytest

from pmpguard.audit.proposals import likelihood_ratio, picked_probability

LABELS = np.array([0.99] * 8 + [0.02] * 2)


def test_grows_with_the_evidence_and_stays_below_plain_matches() -> None:
    found = picked_probability(np.linspace(0, 1, 101), LABELS, 0.8)
    assert (np.diff(found) >= 0).all() and found[0] < 0.01
    assert 0.85 < found[-1] < 0.95


def test_log_odds_count_by_half() -> None:
    """Random pairs match with the ratio of plain labels turned round; the odds' root is left of it."""
    plain = likelihood_ratio(np.array([0.99]), 0.8)[0]
    before = likelihood_ratio(np.array([0.9]), 0.8)[0] / plain
    found = picked_probability(np.array([0.9]), LABELS, 0.8)[0]
    assert found / (1 - found) == pytest.approx((before / (1 - before)) ** 0.5)


def test_without_plain_matches_nothing_is_proposed_with_confidence() -> None:
    assert (picked_probability(np.array([0.2, 0.9]), np.full(5, 0.1), 0.5) == 0).all()
