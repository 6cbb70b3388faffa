from __future__ import annotations

import itertools

import pytest

from pmpguard.training.schedule import rate_factor, step_seed


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_rises_then_falls_and_never_leaves_its_range(schedule: str) -> None:
    factors = [rate_factor(step, 100, 0.1, schedule) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[10:]))
    assert 0 < factors[-1] < 0.02


def test_without_warm_up_it_starts_at_the_top() -> None:
    assert rate_factor(0, 10, 0.0, "linear") == 1


def test_step_seeds_differ_by_seed_step_and_purpose() -> None:
    seeds = {
        step_seed(seed, step, purpose) for seed in range(5) for step in range(200) for purpose in range(2)
    }
    assert len(seeds) == 5 * 200 * 2
    assert all(0 <= seed < 2**63 for seed in seeds)
