"""Paired differences against a naive computation, and how often their intervals hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pmpguard.evaluation.significance import T_95, paired_difference


@pytest.mark.parametrize("freedom", range(1, len(T_95) + 1))
def test_quantiles_leave_a_fortieth_on_each_side(freedom: int) -> None:
    """By summing the density of t up to the quantile."""
    edges = np.linspace(0, T_95[freedom - 1], 200_001)
    middles = (edges[1:] + edges[:-1]) / 2
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    half = (scale * (1 + middles**2 / freedom) ** (-(freedom + 1) / 2)).sum() * edges[1]
    assert half == pytest.approx(0.475, abs=1e-4)


def test_the_difference_against_a_loop() -> None:
    draw = np.random.default_rng(0)
    first, second = ({seed: float(draw.normal()) for seed in range(5)} for _ in range(2))
    del second[3]
    gains = [first[seed] - second[seed] for seed in (0, 1, 2, 4)]
    mean = sum(gains) / 4
    deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / 3)
    found = paired_difference(first, second)
    assert found is not None and found.seeds == 4 and found.mean == pytest.approx(mean)
    assert found.interval == pytest.approx((mean - 3.182 * deviation / 2, mean + 3.182 * deviation / 2))


def test_the_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        luck = draw.normal(size=3) * 5  # of the seed, which both share
        ours = {seed: 1.5 + luck[seed] + draw.normal() for seed in range(3)}
        theirs = {seed: luck[seed] + draw.normal() for seed in range(3)}
        found = paired_difference(ours, theirs)
        assert found is not None and found.interval is not None
        held += found.interval[0] <= 1.5 <= found.interval[1]
    assert 0.935 < held / 2000 < 0.965


def test_what_may_be_said() -> None:
    theirs = {0: 1.0, 1: 1.1, 2: 0.9}
    for gain, reading in ((2.0, "ahead"), (-2.0, "behind")):
        found = paired_difference({seed: value + gain + 0.1 * seed for seed, value in theirs.items()}, theirs)
        assert found is not None and found.reading == reading
    one = paired_difference({0: 9.0, 5: 9.0}, theirs)
    assert one is not None and (one.mean, one.interval, one.reading) == (8.0, None, "one seed")
    assert paired_difference({4: 1.0}, theirs) is None
