"""Two Gaussians of losses against scikit-learn's, and the cases that say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture as SklearnMixture

from pmpguard.detection.gaussian_mixture import fit_gaussian_mixture
from pmpguard.errors import DataError


@pytest.mark.parametrize("wrong", [0.2, 0.5, 0.8])
def test_two_clear_groups_as_scikit_learn_finds_them(wrong: float) -> None:
    draw = np.random.default_rng(0)
    count = round(2000 * wrong)
    losses = np.concatenate([draw.normal(1, 0.3, 2000 - count), draw.normal(3, 0.5, count)])
    found = fit_gaussian_mixture(losses, tolerance=1e-9, iterations=1000)
    squeezed = (losses - losses.min()) / np.ptp(losses)
    theirs = SklearnMixture(2, reg_covar=5e-4, tol=1e-9, max_iter=1000, random_state=0).fit(squeezed[:, None])
    order = np.argsort(theirs.means_[:, 0])
    np.testing.assert_allclose(found.means, theirs.means_[order, 0], atol=2e-3)
    np.testing.assert_allclose(found.weights, theirs.weights_[order], atol=5e-3)
    np.testing.assert_allclose(found.variances, theirs.covariances_[order, 0, 0], atol=5e-4)
    np.testing.assert_allclose(found.p_low, theirs.predict_proba(squeezed[:, None])[:, order[0]], atol=0.02)


def test_shift_and_scale_of_the_losses_do_not_matter() -> None:
    losses = np.concatenate([np.linspace(0, 1, 50), np.linspace(4, 6, 50)])
    np.testing.assert_allclose(fit_gaussian_mixture(losses).p_low, fit_gaussian_mixture(7 * losses - 3).p_low)


def test_equal_losses_say_nothing() -> None:
    assert fit_gaussian_mixture([2.0] * 5).p_low.tolist() == [1.0] * 5


@pytest.mark.parametrize("losses", [[], [1.0, np.nan], [[1.0, 2.0]]])
def test_what_is_no_list_of_numbers_is_refused(losses: list[float]) -> None:
    with pytest.raises(DataError, match="finite numbers"):
        fit_gaussian_mixture(losses)
