"""The beta mixture: against plain EM, on planted groups, and on input that says little or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from pmpguard.detection.beta_mixture import BetaComponent, fit_beta_mixture, low_posterior
from pmpguard.errors import DataError

beta_density = pytest.importorskip("scipy.stats").beta.pdf


def planted(low_share: float, count: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    is_low = np.arange(count) < round(low_share * count)
    losses = np.where(is_low, generator.beta(2, 12, count), generator.beta(10, 4, count))
    return losses * 7 + 2, is_low  # the scale of a loss must not matter


def naive_em(losses: np.ndarray, iterations: int) -> list[tuple[float, float, float]]:
    values = np.clip((losses - losses.min()) / (losses.max() - losses.min()), 1e-4, 1 - 1e-4)
    parts = [(1.0, 2.0, 0.5), (2.0, 1.0, 0.5)]
    for _ in range(iterations):
        densities = [[w * beta_density(x, a, b) for x in values] for a, b, w in parts]
        fitted = []
        for number in range(2):
            shares = [densities[number][n] / (densities[0][n] + densities[1][n]) for n in range(len(values))]
            total = sum(shares)
            mean = sum(share * x for share, x in zip(shares, values, strict=True)) / total
            variance = sum(share * (x - mean) ** 2 for share, x in zip(shares, values, strict=True)) / total
            a = mean * (mean * (1 - mean) / variance - 1)
            fitted.append((a, a * (1 - mean) / mean, total / len(values)))
        parts = fitted
    return parts


def test_it_equals_plain_em() -> None:
    losses, _ = planted(0.6, count=300)
    mixture = fit_beta_mixture(losses)
    for found, expected in zip((mixture.low, mixture.high), naive_em(losses, 10), strict=True):
        assert (found.alpha, found.beta, found.weight) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("low_share", [0.2, 0.5, 0.8])
def test_it_finds_planted_groups(low_share: float) -> None:
    losses, is_low = planted(low_share)
    mixture = fit_beta_mixture(losses, iterations=50)
    assert ((mixture.p_low > 0.5) == is_low).mean() > 0.97
    assert mixture.low.weight == pytest.approx(low_share, abs=0.15)  # moments are no likelihood
    assert mixture.low.mean < mixture.high.mean


def test_p_low_never_rises_with_the_loss() -> None:
    for seed in range(20):
        generator = np.random.default_rng(seed)
        losses = np.sort(generator.gamma(generator.uniform(0.5, 5), 1, 200))
        assert (np.diff(fit_beta_mixture(losses).p_low) <= 1e-12).all(), seed


def test_a_wide_group_does_not_claim_the_others_best() -> None:
    narrow_low, wide_high = BetaComponent(8, 24, 0.5), BetaComponent(1, 1, 0.5)
    values = np.array([0.001, 0.1, 0.25])
    raw = narrow_low.log_density(values) - wide_high.log_density(values)
    assert raw[0] < 0 < raw[2]  # without the turning point the lowest loss would count as high
    assert (low_posterior(narrow_low, wide_high, values) > 0.7).all()
    wide_low, narrow_high = BetaComponent(1, 1, 0.5), BetaComponent(24, 8, 0.5)
    assert (low_posterior(wide_low, narrow_high, 1 - values) < 0.3).all()


def test_a_component_is_a_beta_density() -> None:
    component = BetaComponent(2.5, 4.0, 0.3)
    values = np.array([0.1, 0.5, 0.9])
    assert np.exp(component.log_density(values)) == pytest.approx(0.3 * beta_density(values, 2.5, 4.0))


def test_equal_losses_hold_nothing_against_anyone() -> None:
    assert fit_beta_mixture([2.0, 2.0, 2.0]).p_low.tolist() == [1.0, 1.0, 1.0]
    two = fit_beta_mixture([0.0, 5.0]).p_low
    assert np.isfinite(two).all() and two[0] >= two[1]


@pytest.mark.parametrize("losses", [[], [[1.0]], [1.0, float("nan")]])
def test_bad_input_is_refused(losses: list[object]) -> None:
    with pytest.raises(DataError, match="losses"):
        fit_beta_mixture(losses)  # type: ignore[arg-type]
