"""Isotonic regression against scikit-learn's, and what a prior does."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from pmpguard.detection.isotonic import fit_isotonic


@pytest.mark.parametrize("seed", range(5))
def test_as_scikit_learn_fits_it(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, 40, 200) / 4 if seed % 2 else draw.normal(size=200)
    truth = draw.random(200) < 1 / (1 + np.exp(-scores))
    theirs = IsotonicRegression(out_of_bounds="clip").fit(scores, truth)
    asked = np.linspace(scores.min() - 1, scores.max() + 1, 301)
    np.testing.assert_allclose(fit_isotonic(scores, truth)(asked), theirs.predict(asked), atol=1e-12)


def test_a_prior_keeps_few_scores_from_being_sure() -> None:
    found = fit_isotonic([1.0, 2.0], [0, 1], prior=1.0)
    assert found([0.0, 3.0]).tolist() == pytest.approx([1 / 3, 2 / 3])
    many = fit_isotonic(np.arange(100), np.ones(100), prior=1.0)
    assert many([50.0]).tolist() == pytest.approx([101 / 102])


def test_it_never_falls() -> None:
    draw = np.random.default_rng(9)
    found = fit_isotonic(draw.normal(size=50), draw.random(50) < 0.5, prior=1.0)
    assert bool((np.diff(found(np.linspace(-3, 3, 99))) >= 0).all())
