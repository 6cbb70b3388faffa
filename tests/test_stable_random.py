"""Draws that are the same for ever: literal values, and that they are random at all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.errors import ConfigError
from pmpguard.stable_random import StableRandom, _log


def stream() -> StableRandom:
    return StableRandom("a test", 7, 1)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda draws: draws.order(8), [5, 6, 7, 3, 2, 4, 1, 0]),
        (lambda draws: draws.choice(1000, 5), [777, 412, 421, 303, 626]),
        (lambda draws: draws.below(100, 6), [88, 6, 1, 11, 53, 3]),
        (lambda draws: draws.uniform(3), [0.9763487139905076, 0.7856220497835346, 0.5910158919135412]),
        (
            lambda draws: draws.normal(5),
            [
                2.4231848092457167,
                -0.8445144010267567,
                0.2515665138001212,
                -0.48720380795681817,
                -0.8333061023688523,
            ],
        ),
        (lambda draws: draws.counts(1000, np.array([0.5, 0.2, 0.3]), 2), [[508, 208, 284], [478, 199, 323]]),
    ],
    ids=["order", "choice", "below", "uniform", "normal", "counts"],
)
def test_values_never_change(draw, expected):
    assert draw(stream()).tolist() == expected


def test_streams_are_kept_apart_by_purpose_and_key_and_go_on():
    first = stream().uniform(4).tolist()
    assert stream().uniform(4).tolist() == first
    assert StableRandom("another", 7, 1).uniform(4).tolist() != first
    assert StableRandom("a test", 7, 2).uniform(4).tolist() != first
    assert StableRandom("a test", 71).uniform(4).tolist() != StableRandom("a test", 7, 1).uniform(4).tolist()
    going_on = stream()
    assert [*going_on.uniform(1), *going_on.uniform(3)] == first


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 99))
def test_orders_and_choices_hold_every_number_once(limit, count, seed):
    order = StableRandom("order", seed).order(limit)
    chosen = StableRandom("order", seed).choice(limit, count)
    assert sorted(order) == list(range(limit)) and order.dtype == np.int64
    assert chosen.tolist() == order[:count].tolist() and len(chosen) == min(limit, count)


def test_draws_below_a_limit_and_uniform_ones_fill_their_range_evenly():
    counts = np.bincount(stream().below(7, 70_000), minlength=7)
    assert len(counts) == 7 and abs(counts - 10_000).max() < 5 * np.sqrt(10_000)
    uniform = stream().uniform(70_000)
    assert 0 <= uniform.min() < 1e-3 and 0.999 < uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=5 * np.sqrt(1 / 12 / 70_000))


def test_normal_draws_have_the_moments_and_tails_of_the_normal():
    draws = stream().normal(200_001)
    assert draws.shape == (200_001,)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert np.mean(draws**power) == pytest.approx(moment, abs=5 * np.sqrt(variance / len(draws)))
    assert np.mean(np.abs(draws) > 1.959964) == pytest.approx(0.05, abs=0.003)
    assert abs(np.corrcoef(draws[:-1:2], draws[1::2])[0, 1]) < 0.02  # of the two of one pair


@pytest.mark.parametrize("total", [0, 1, 30, 200, 10**9])
def test_counts_are_multinomial(total):
    shares, replicates = np.array([0.3, 0.0, 0.25, 0.25, 0.199, 0.001, 0.0]), 20_000
    counts = stream().counts(total, 7 * shares, replicates)  # shares need not sum to one
    assert counts.shape == (replicates, 7) and (counts >= 0).all() and (counts.sum(1) == total).all()
    assert not counts[:, [1, 6]].any()
    centred = counts - total * shares
    covariance = total * (np.diag(shares) - np.outer(shares, shares))
    error = 5 / np.sqrt(replicates) * max(total, 1) ** 0.5
    assert np.abs(centred.mean(0)).max() <= error * 0.5
    np.testing.assert_allclose(
        centred.T @ centred / replicates, covariance, atol=error * max(total, 1) ** 0.5
    )


@pytest.mark.parametrize(("count", "share"), [(3, 0.3), (10, 0.999), (64, 0.5), (90, 0.01), (100, 0.5)])
def test_a_division_is_binomial(count, share):
    drawn = stream()._divided(np.full((40_000, 1), count), np.array([share]))[:, 0]
    expected = [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]
    shown = np.bincount(drawn, minlength=count + 1) / len(drawn)
    assert np.abs(np.cumsum(shown) - np.cumsum(expected)).max() < 1.95 / np.sqrt(
        len(drawn)
    )  # Kolmogorov, 0.1 %


@given(st.floats(1e-300, 1e300))
def test_the_logarithm_is_one(value):
    assert _log(np.array([value]))[0] == pytest.approx(np.log(value), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_few_and_no_draws(count):
    for draws in (stream().order(count), stream().below(3, count), stream().uniform(count)):
        assert draws.shape == (count,)
    assert stream().normal(count).shape == (count,) and stream().below(0, 0).shape == (0,)


def test_a_negative_seed_and_nothing_to_draw_from_are_errors():
    with pytest.raises(ConfigError, match="cannot be negative, got -1"):
        StableRandom("a test", 0, -1)
    with pytest.raises(ConfigError, match="cannot draw from 0 numbers"):
        stream().below(0, 1)
