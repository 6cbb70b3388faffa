"""The match mixture: the rate it finds, its posterior, and input that says little or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture

from pmpguard.detection.mixture import (
    chance_levels,
    fit_match_mixture,
    fit_with_known_rate,
    labels_worth,
)
from pmpguard.errors import DataError

RATES = (0.0, 0.2, 0.4, 0.6, 0.8)


def gaussian(mean, std):
    return lambda count, generator: generator.normal(mean, std, count)


def mostly(mean, std, other_mean, other_std, share):
    def draw(count, generator):
        other = generator.random(count) < share
        return np.where(
            other, generator.normal(other_mean, other_std, count), generator.normal(mean, std, count)
        )

    return draw


# matched and mismatched densities whose AUROC lies between 0.97 and 0.995
FAMILIES = {
    "equal widths": (gaussian(2.7, 1.0), gaussian(0.0, 1.0)),
    "wide matched": (gaussian(4.0, 1.6), gaussian(0.0, 1.0)),
    "narrow matched": (gaussian(2.3, 0.6), gaussian(0.0, 1.0)),
    "skewed towards each other": (
        lambda count, generator: 4.5 - generator.gamma(2, 0.6, count),
        lambda count, generator: generator.gamma(3, 0.6, count) - 1.8,
    ),
    "heavy tails": (
        lambda count, generator: 4.2 + 0.8 * generator.standard_t(3, count),
        lambda count, generator: 0.8 * generator.standard_t(3, count),
    ),
    "same scene class": (gaussian(3.6, 0.9), mostly(0.0, 0.9, 2.2, 0.8, 0.05)),
    "two kinds of matches": (mostly(4.2, 0.8, 2.0, 0.7, 0.25), gaussian(0.0, 1.0)),
}


def mixed(family, rate, count, seed):
    """Labelled scores with exactly `rate` mismatched ones, their truth, and a sample of mismatched pairs."""
    matched, mismatched = FAMILIES[family]
    generator = np.random.default_rng(seed)
    wrong = round(rate * count)
    scores = np.concatenate([matched(count - wrong, generator), mismatched(wrong, generator)])
    truth = np.arange(count) < count - wrong
    return scores, truth, mismatched(20_000, generator)


@pytest.mark.parametrize("family", FAMILIES)
def test_mismatch_rate_is_found_without_labels(family):
    for rate in RATES:
        scores, truth, wrong = mixed(family, rate, 4000, seed=round(10 * rate))
        mixture = fit_match_mixture(scores, wrong, bootstrap=0)
        assert mixture.converged
        assert abs(mixture.mismatch_rate - rate) <= 0.03, f"{family} at {rate}"
        assert mixture.match_rate == pytest.approx(mixture.p_match.mean(), abs=0.01)
        if rate:
            assert roc_auc_score(truth, mixture.p_match) > 0.965
            surplus = mixture.p_match - truth  # on either side of the verdict, in shares of all pairs
            for kept in (mixture.p_match >= 0.5, mixture.p_match < 0.5):
                assert abs(surplus[kept].sum()) / len(scores) <= 0.02


def test_small_samples_are_right_on_average():
    errors = {
        rate: [
            fit_match_mixture(scores, wrong, bootstrap=0).mismatch_rate - rate
            for seed in range(10)
            for scores, _, wrong in [mixed("equal widths", rate, 200, seed)]
        ]
        for rate in RATES
    }
    for rate, values in errors.items():
        assert abs(np.mean(values)) < 0.04, rate
    assert max(errors[0.0]) < 0.03


def test_interval_covers_the_truth_and_shrinks():
    covered, widths = 0, {}
    for count in (400, 4000):
        for seed in range(6):
            scores, _, wrong = mixed("equal widths", 0.4, count, seed)
            low, high = fit_match_mixture(scores, wrong, bootstrap=60).mismatch_interval
            covered += low <= 0.4 <= high
            widths.setdefault(count, []).append(high - low)
    assert covered >= 10
    assert np.mean(widths[4000]) < 0.5 * np.mean(widths[400])


def test_posterior_never_falls_and_equals_p_match():
    scores, _, wrong = mixed("heavy tails", 0.4, 1000, seed=3)
    mixture = fit_match_mixture(scores, wrong, bootstrap=0)
    grid = np.linspace(-30, 30, 5001)
    posterior = mixture.posterior(grid)
    assert (np.diff(posterior) >= 0).all()
    assert posterior[0] < 0.01 and posterior[-1] > 0.99
    np.testing.assert_array_equal(mixture.posterior(scores), mixture.p_match)
    assert mixture.posterior(grid[:6].reshape(2, 3)).shape == (2, 3)


def test_posterior_approaches_bayes():
    """With known Gaussians the posterior can be written down."""
    scores, _, wrong = mixed("equal widths", 0.4, 20_000, seed=1)
    mixture = fit_match_mixture(scores, wrong, bootstrap=0)
    grid = np.linspace(-1, 4, 101)
    ratio = np.exp(-((grid - 2.7) ** 2) / 2 + grid**2 / 2)
    exact = 0.6 * ratio / (0.6 * ratio + 0.4)
    assert np.abs(mixture.posterior(grid) - exact).max() < 0.08


def test_agrees_with_scikit_learn_on_clear_cases():
    generator = np.random.default_rng(0)
    scores = np.concatenate([generator.normal(8, 1, 700), generator.normal(0, 1, 300)])
    mixture = fit_match_mixture(scores, generator.normal(0, 1, 5000), bootstrap=0)
    reference = GaussianMixture(2, random_state=0).fit(scores[:, None])
    matched = int(np.argmax(reference.means_))
    verdicts = reference.predict_proba(scores[:, None])[:, matched] > 0.5
    np.testing.assert_array_equal(mixture.p_match > 0.5, verdicts)
    assert mixture.match_rate == pytest.approx(reference.weights_[matched], abs=0.03)


def test_depends_on_order_of_scores_only():
    """Any increasing change of scale leaves every probability as it is."""
    scores, _, wrong = mixed("equal widths", 0.2, 500, seed=5)
    plain = fit_match_mixture(scores, wrong)
    warped = fit_match_mixture(np.exp(scores), np.exp(wrong))
    np.testing.assert_array_equal(plain.p_match, warped.p_match)
    assert plain.mismatch_interval == warped.mismatch_interval


def test_chance_levels_against_counting():
    generator = np.random.default_rng(2)
    wrong = np.sort(generator.integers(0, 6, 40).astype(float))
    scores = generator.integers(-1, 8, 30).astype(float)
    low, high = chance_levels(scores, wrong)
    for score, below, above in zip(scores, low, high, strict=True):
        assert below == sum(value > score for value in wrong) / 41
        assert above == (sum(value >= score for value in wrong) + 1) / 41


def test_untrained_scores_say_all_are_mismatched():
    generator = np.random.default_rng(4)
    mixture = fit_match_mixture(generator.normal(size=3000), generator.normal(size=20_000), bootstrap=0)
    assert mixture.mismatch_rate > 0.9


def test_tied_scores():
    generator = np.random.default_rng(5)
    scores = np.concatenate([np.full(60, 5.0), generator.integers(0, 3, 40).astype(float)])
    mixture = fit_match_mixture(scores, generator.integers(0, 3, 2000).astype(float), bootstrap=0)
    assert mixture.match_rate == pytest.approx(0.6, abs=0.05)


def test_all_equal_holds_nothing_against_any_pair():
    mixture = fit_match_mixture(np.full(7, 0.3), np.full(50, 0.3))
    np.testing.assert_array_equal(mixture.p_match, np.ones(7))
    assert mixture.match_rate == 1 and not mixture.converged
    np.testing.assert_array_equal(mixture.posterior([-1.0, 0.3, 2.0]), np.ones(3))


@pytest.mark.parametrize("scores", [[1.0, 2.0], [0.5]])
def test_hardly_any_pairs(scores):
    mixture = fit_match_mixture(scores, [0.0, 0.7])
    assert mixture.p_match.shape == (len(scores),)
    assert np.isfinite(mixture.p_match).all() and 0 <= mixture.match_rate <= 1


@pytest.mark.parametrize(
    ("scores", "wrong", "message"),
    [
        ([1.0, np.nan, np.nan], [0.0], "scores: 2 of 3 values are NaN"),
        ([1.0], [0.0, np.inf], "mismatched_scores: 1 of 2"),
        ([], [0.0], "scores: expected a non-empty"),
        ([1.0], [], "mismatched_scores: expected a non-empty"),
        ([[1.0]], [0.0], r"got shape \(1, 1\)"),
    ],
)
def test_bad_input_is_named(scores, wrong, message):
    with pytest.raises(DataError, match=message):
        fit_match_mixture(scores, wrong)


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.8])
def test_a_known_rate_undoes_what_the_model_remembers_of_wrong_pairs(rate: float) -> None:
    """Mismatched pairs that were trained on score 1 higher than fresh ones; the plain fit believes many."""
    draw = np.random.default_rng(3)
    fresh = draw.normal(0, 1, 20_000)
    wrong = int(rate * 10_000)
    scores = np.concatenate([draw.normal(1, 1, wrong), draw.normal(4.5, 1, 10_000 - wrong)])
    assert fit_match_mixture(scores, fresh, bootstrap=0).mismatch_rate < 0.75 * rate
    mixture, shift = fit_with_known_rate(scores, fresh, rate)
    assert mixture.mismatch_rate == pytest.approx(rate, abs=0.02)
    assert shift == pytest.approx(1, abs=0.35)
    assert mixture.p_match[:wrong].mean() < 0.12 < 0.88 < mixture.p_match[wrong:].mean()


def test_a_known_rate_below_the_plain_estimate_moves_nothing() -> None:
    draw = np.random.default_rng(4)
    scores, fresh = draw.normal(4, 1, 2_000), draw.normal(0, 1, 20_000)
    mixture, shift = fit_with_known_rate(scores, fresh, 0.0)
    assert shift == 0 and mixture.mismatch_rate < 0.02


def test_labels_worth_is_the_curvature_of_the_log_likelihood() -> None:
    draw = np.random.default_rng(0)
    right, wrong = draw.uniform(0.1, 3, 400), draw.uniform(0.1, 3, 400)  # densities of each score under both
    share = 0.3
    for _ in range(200):  # the share that is likeliest
        p_match = share * right / (share * right + (1 - share) * wrong)
        share = p_match.mean()

    def log_likelihood(of: float) -> float:
        return float(np.log(of * right + (1 - of) * wrong).sum())

    step = 1e-4
    curvature = (
        log_likelihood(share + step) - 2 * log_likelihood(share) + log_likelihood(share - step)
    ) / step**2
    assert labels_worth(p_match) == pytest.approx(-curvature * share * (1 - share), rel=1e-3)
