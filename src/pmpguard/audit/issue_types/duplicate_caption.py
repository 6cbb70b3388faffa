"""`duplicate_caption`: a caption that its image has more than once, or that many images share."""

from __future__ import annotations

import numpy as np

from pmpguard.audit.issue_types.found import Found, Numbers

MANY_IMAGES = 5  # that more share is said of them all


def duplicate_captions(caption_of: Numbers, image_of: Numbers) -> Found:
    """By the numbers of captions and images of the pairs (N,). All copies are flagged, the first one too.

    >>> duplicate_captions(np.array([0, 0, 1]), np.array([0, 0, 0])).flag.tolist()
    [True, True, False]
    """
    keys = np.stack([caption_of, image_of], axis=1)  # (N, 2)
    carried, key_of, times = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    images_of = np.bincount(carried[:, 0], minlength=int(caption_of.max(initial=-1)) + 1)  # per caption
    repeated, images = times[key_of.ravel()], images_of[caption_of]  # (N,) each
    half = MANY_IMAGES - 0.5
    shared = half / (half + images - 1)  # 1 for one image, under a half for more than many
    notes = {}
    for row in np.flatnonzero((repeated > 1) | (shared < 0.5)).tolist():
        said = [f"{repeated[row]} times on this image"] if repeated[row] > 1 else []
        said += [f"on {images[row]:,} images"] if shared[row] < 0.5 else []
        notes[row] = ", ".join(said)
    return Found.of(np.minimum(1 / repeated**2, shared), notes)
