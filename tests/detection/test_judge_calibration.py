"""Verdicts from several kinds of evidence: rate, interval, calibrated probabilities; evidence without any."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmpguard.detection.judge import Verdicts, judge_pairs
from pmpguard.detection.null_pairs import Evidence, sample_null_pairs
from pmpguard.errors import DataError

PAIRS = 2_000


def judged(rate: float, strength: float, seed: int = 0) -> tuple[Verdicts, np.ndarray]:
    """Two kinds of evidence; a fifth of the matched pairs reaches into the null."""
    draw = np.random.default_rng(seed)
    matched = np.arange(PAIRS) >= round(rate * PAIRS)
    level = np.where(draw.random(PAIRS) < 0.2, 0.5, 1.0) * strength * matched  # (N,)
    numbers = torch.arange(PAIRS)
    null = sample_null_pairs(numbers, numbers, seed)
    evidence = {
        name: Evidence(
            torch.from_numpy(level + draw.normal(size=PAIRS)),
            torch.from_numpy(draw.normal(size=len(null))),
        )
        for name in ("regression", "neighbour_text")
    }
    return judge_pairs(evidence, numbers, numbers, null, bootstrap=40, seed=seed), matched


@pytest.mark.parametrize("rate", [0.0, 0.15, 0.4, 0.8])
def test_rate_interval_and_probabilities(rate: float) -> None:
    verdicts, matched = judged(rate, 2.2)
    assert abs(verdicts.noise_rate - rate) <= 0.03
    assert verdicts.noise_rate_interval is not None
    low, high = verdicts.noise_rate_interval
    assert low <= rate <= high
    place = np.minimum((verdicts.p_match * 10).astype(int), 9)
    gaps = np.bincount(place, verdicts.p_match - matched, minlength=10)
    assert np.abs(gaps).sum() / PAIRS <= 0.04


def test_pure_noise_is_not_informative() -> None:
    verdicts, _ = judged(1.0, 0.0)
    assert verdicts.noise_rate > 0.9
    assert not verdicts.informative
    assert any("hardly differ from random ones" in each for each in verdicts.warnings)


def test_no_evidence_is_an_error() -> None:
    numbers = torch.arange(10)
    with pytest.raises(DataError, match="no evidence"):
        judge_pairs({}, numbers, numbers, sample_null_pairs(numbers, numbers, count=20))
