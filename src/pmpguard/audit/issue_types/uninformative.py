"""`uninformative`: a caption that fits as many images as not ("a picture from above").

A regression from captions to images expects nothing special of such a caption: an image close to the mean of
all. How far from it the expected image is, beside what is usual in the dataset, is the score.
"""

from __future__ import annotations

import numpy as np

from pmpguard.audit.issue_types.found import Array, Found, Numbers

LITTLE = 0.5  # of what the median caption tells


def uninformative_captions(meaning: Array, caption_of: Numbers) -> Found:
    """By how far each caption's (C,) expected image is from the mean one; `caption_of` (N,) the pairs'.

    >>> uninformative_captions(np.array([1.0, 0.9, 0.2]), np.array([0, 1, 2])).flag.tolist()
    [False, False, True]
    """
    usual = float(np.median(meaning[caption_of])) if len(caption_of) else 0.0
    if usual <= 0:
        return Found.of(np.ones(len(caption_of)))
    score = np.clip(meaning / usual * (0.5 / LITTLE), 0, 1)[caption_of]  # (N,)
    flagged = np.flatnonzero(score < 0.5).tolist()
    return Found.of(score, dict.fromkeys(flagged, "fits many images"))
