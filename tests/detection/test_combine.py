"""The discriminant against scikit-learn, its signs, and evidence that says nothing."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from pmpguard.detection.combine import RIDGE, fit_discriminant, refined_discriminant
from pmpguard.errors import DataError


def samples(seed=0, shift=(1.5, 0.7), rate=0.5, count=3000):
    generator = np.random.default_rng(seed)
    wrong = generator.normal(size=(count, len(shift)))
    labelled = generator.normal(size=(count, len(shift)))
    right = generator.random(count) >= rate
    labelled[right] += shift
    return labelled, wrong, right


def test_the_slopes_are_those_of_scikit_learn():
    labelled, wrong, _ = samples()
    fitted = fit_discriminant(labelled, wrong)
    np.testing.assert_allclose(fitted.centre, wrong.mean(0))
    inputs = (np.concatenate([labelled, wrong]) - fitted.centre) / fitted.scale
    # sums the losses where ours averages them
    reference = LogisticRegression(C=1 / (RIDGE * len(inputs)), tol=1e-10, max_iter=1000)
    reference.fit(inputs, np.repeat([1, 0], len(labelled)))
    np.testing.assert_allclose(fitted.weights, reference.coef_[0], rtol=1e-3)


@pytest.mark.parametrize("rate", [0.2, 0.8])
def test_two_kinds_of_evidence_judge_better_than_one(rate):
    labelled, wrong, right = samples(rate=rate)
    combined = fit_discriminant(labelled, wrong)(labelled)
    alone = max(roc_auc_score(right, labelled[:, part]) for part in range(2))
    assert roc_auc_score(right, combined) > alone + 0.01


def test_evidence_that_points_the_wrong_way_is_left_out():
    labelled, wrong, _ = samples(shift=(1.5, -1.0, 0.5))
    fitted = fit_discriminant(labelled, wrong)
    assert fitted.weights[1] == 0 and fitted.weights[0] > 0 and fitted.weights[2] > 0
    assert (fitted.weights >= 0).all()


def test_evidence_that_says_nothing_hardly_counts():
    labelled, wrong, _ = samples(shift=(2.0, 0.0))
    weights = fit_discriminant(labelled, wrong).weights
    assert weights[1] < 0.1 * weights[0]


def test_nothing_to_tell_gives_finite_numbers():
    constant = np.ones((50, 2))
    fitted = fit_discriminant(constant, constant)
    assert np.isfinite(fitted(constant)).all()
    single = fit_discriminant(np.arange(5.0)[:, None], np.arange(4.0)[:, None])
    assert (np.diff(single(np.arange(5.0)[:, None])) > 0).all()


def test_separable_samples_do_not_explode():
    fitted = fit_discriminant(
        np.full((100, 2), 50.0) + np.eye(2)[0], np.random.default_rng(0).normal(size=(100, 2))
    )
    assert np.isfinite(fitted.weights).all() and fitted.weights.sum() > 0


def test_shapes_must_agree():
    with pytest.raises(DataError, match="cannot be combined"):
        fit_discriminant(np.ones((3, 2)), np.ones((3, 1)))


def test_refining_gives_the_weights_of_a_fit_to_the_true_matches() -> None:
    generator = np.random.default_rng(0)
    wrong = generator.normal(size=(20_000, 2))
    right = generator.normal([1.0, 3.0], [1.0, 1.0], size=(1_000, 2))
    labelled = np.concatenate([right, generator.normal(size=(9_000, 2))])
    ideal = fit_discriminant(right, wrong).weights
    plain, refined = fit_discriminant(labelled, wrong).weights, refined_discriminant(labelled, wrong).weights

    def direction(weights: np.ndarray) -> float:
        return float(weights[0] / weights.sum())

    assert abs(direction(refined) - direction(ideal)) < 0.06
    assert abs(direction(refined) - direction(ideal)) <= abs(direction(plain) - direction(ideal)) + 0.01


def test_refining_keeps_the_first_fit_where_nothing_matches() -> None:
    generator = np.random.default_rng(1)
    labelled, wrong = generator.normal(size=(15, 2)), generator.normal(size=(500, 2))
    np.testing.assert_array_equal(
        refined_discriminant(labelled, wrong).weights, fit_discriminant(labelled, wrong).weights
    )


def rarely_agreeing(count: int = 8000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evidence (N, 2), null evidence and which rows match: content is of all, agreement of some."""
    draw = np.random.default_rng(0)
    matches = draw.random(count) < 0.2
    agrees = matches & (draw.random(count) < 0.6)
    content = draw.normal(size=count) + 1.5 * matches
    agreement = draw.normal(size=count) + 10.0 * agrees
    return np.stack([content, agreement], 1), draw.normal(size=(count, 2)), matches


def test_a_part_that_tells_of_some_matches_does_not_decide_what_matches_are() -> None:
    evidence, null, matches = rarely_agreeing()
    own = refined_discriminant(evidence, null)
    judged = refined_discriminant(evidence, null, judged_by=[0])
    best = LogisticRegression(C=1e6).fit(evidence, matches).decision_function(evidence)
    scores = [roc_auc_score(matches, score) for score in (own(evidence), judged(evidence), best)]
    assert scores[0] + 0.01 < scores[1] and scores[1] > scores[2] - 0.005
    everything = refined_discriminant(evidence, null, judged_by=[0, 1])
    assert everything.weights.tolist() == own.weights.tolist()
