"""A judge from outside: vectors of another model, as one more kind of evidence, "judge".

What such a model learned is not known. It may have learned these very labels, mismatched ones included: then
it calls every labelled pair a match. So it is checked against what the dataset's own evidence says, pair by
pair. A judge of some worth rises with the probability that a pair matches, and calls mismatched pairs what it
calls null pairs: 0. One that does neither is not counted, and the verdicts say so.
"""

from __future__ import annotations

import numpy as np

from pmpguard.detection.combine import refined_discriminant
from pmpguard.detection.mixture import fit_match_mixture
from pmpguard.detection.null_pairs import Array

JUDGE = "judge"
LEAST_DEVIATION = 0.02  # of p(match): where own evidence says less, no judge can be held against it
LEAST_SLOPE = 3.0  # standard errors
NOT_COUNTED = (
    "the judge from outside was not counted: what it says of the pairs does not agree with the dataset's own "
    "evidence"
)


def agrees(judge: Array, own: Array, own_null: Array) -> bool:
    """Whether a judge's evidence (N,) bears out the dataset's own (N, K), known of null pairs as (M, K).

    The judge's evidence has mean 0 on null pairs. It is regressed on p(match) by the own evidence alone: the
    constant is what it says of mismatched pairs, and the slope what a match adds to that.
    """
    if not own.shape[1]:
        return True
    discriminant = refined_discriminant(own, own_null)
    p_match = fit_match_mixture(discriminant(own), discriminant(own_null), bootstrap=0).p_match
    deviation = p_match - p_match.mean()  # (N,)
    squares = float(deviation @ deviation)
    if squares <= len(judge) * LEAST_DEVIATION**2:
        return True
    slope = float(deviation @ judge) / squares
    constant = float(judge.mean()) - slope * float(p_match.mean())
    rest = judge - constant - slope * p_match
    error = np.sqrt(float(rest @ rest) / max(len(judge) - 2, 1) / squares)
    return bool(slope > LEAST_SLOPE * error and constant < slope)
