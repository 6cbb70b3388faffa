"""Detection metrics against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, roc_auc_score

from pmpguard.detection.rematch import Proposals
from pmpguard.errors import DataError
from pmpguard.evaluation.detection import measure_detection, precision_at, rematch_precision

pairs = st.lists(st.tuples(st.integers(0, 10), st.booleans()), min_size=2, max_size=40)


@settings(max_examples=80, deadline=None)
@given(pairs.filter(lambda rows: 0 < sum(wrong for _, wrong in rows) < len(rows)))
def test_equals_scikit_learn_with_ties(rows):
    p_match = np.array([tenth for tenth, _ in rows]) / 10
    wrong = np.array([wrong for _, wrong in rows])
    found = measure_detection(p_match, wrong)
    assert found.auroc == pytest.approx(roc_auc_score(wrong, -p_match))
    assert found.average_precision == pytest.approx(average_precision_score(wrong, -p_match))
    assert found.f1 == pytest.approx(f1_score(wrong, p_match < 0.5, zero_division=0))
    precision, recall, _ = precision_recall_curve(wrong, -p_match)
    total = precision + recall
    f1 = np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)
    assert found.best_f1 == pytest.approx(f1.max())
    assert found.true_rate == wrong.mean()
    assert found.rate_error == pytest.approx(abs((1 - p_match.mean()) - wrong.mean()))
    kept = [bad for tenth, bad in rows if tenth >= 5]
    assert found.residual_rate == (pytest.approx(sum(kept) / len(kept)) if kept else None)


def test_precision_at_the_estimated_rate():
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    wrong = np.array([True, True, False, True, False, False])
    assert precision_at(scores, wrong, 1 / 3) == 1
    assert precision_at(scores, wrong, 0.5) == pytest.approx(2 / 3)
    assert precision_at(np.zeros(6), wrong, 1 / 3) == pytest.approx(0.5)  # all tied: the base rate
    assert precision_at(scores, wrong, 0.0) is None


def test_given_rate_and_evidence_are_used():
    p_match, wrong = np.array([1.0, 1.0, 1.0, 0.0]), np.array([False, False, True, True])
    plain = measure_detection(p_match, wrong, estimated_rate=0.4)
    assert plain.estimated_rate == 0.4 and plain.rate_error == pytest.approx(0.1)
    assert plain.auroc == 0.75
    assert measure_detection(p_match, wrong, evidence=[3.0, 2.0, 1.0, 0.0]).auroc == 1


def test_of_a_mere_ranking_only_what_its_order_decides_is_told():
    wrong = np.array([False, False, True, True])
    ranks, halved = (
        measure_detection(np.array([4.0, 3, 2, 1]) / by, wrong).as_dict(ranks_only=True) for by in (4, 40)
    )
    assert ranks == halved == {"true_rate": 0.5, "auroc": 1.0, "average_precision": 1.0, "best_f1": 1.0}


def test_one_kind_only_leaves_the_ranking_metrics_out():
    found = measure_detection([0.9, 0.4, 0.8, 0.9], np.zeros(4, bool))
    assert found.auroc is None and found.f1 is None and found.average_precision is None
    assert found.as_dict() == {
        "true_rate": 0.0,
        "estimated_rate": pytest.approx(0.25),
        "rate_error": pytest.approx(0.25),
        "flagged_rate": 0.25,
        "residual_rate": 0.0,
    }


@pytest.mark.parametrize(
    ("p_match", "wrong", "message"),
    [
        ([0.5], [True, False], "shape"),
        ([], [], "shape"),
        ([0.5, np.nan], [True, False], "1 of 2 values are NaN"),
    ],
)
def test_bad_input_is_named(p_match, wrong, message):
    with pytest.raises(DataError, match=message):
        measure_detection(p_match, wrong)


def test_rematch_precision():
    proposals = Proposals(np.array([0, 1, 2, 2]), np.array([10, 11, 12, 13]), np.zeros(4), np.ones(4))
    truth = [(10, 0), (11, 5), (11, 1), (12, 3), (13, 4)]  # caption 11 describes images 5 and 1
    image_class, caption_class = np.array([0, 0, 1]), np.zeros(14, int)
    caption_class[12] = 1
    found = rematch_precision(proposals, truth, image_class=image_class, caption_class=caption_class)
    assert (found.proposals, found.same_image, found.same_class) == (4, 0.5, 0.75)
    nothing = Proposals(*(np.empty(0, kind) for kind in (np.int64, np.int64, float, float)))
    assert rematch_precision(nothing, truth).same_image is None
