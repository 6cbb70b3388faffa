"""Better captions for images whose caption was judged wrong, and how probably they fit.

A proposal is the extreme of many captions, so its evidence says less than that of a label. Where the scene
classes of images are known, believed pairs tell how much: their own captions are hidden, others are proposed,
and the share of those that come from an image of the same class is the probability at their evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.similarity import pooled_statistics
from pmpguard.detection.isotonic import Calibration, fit_isotonic
from pmpguard.detection.judge import Verdicts
from pmpguard.detection.measures import PairEvidence
from pmpguard.detection.null_pairs import Array
from pmpguard.detection.rematch import (
    BlockScores,
    propose_captions,
    standardised_cosines,
    without_labelled,
)
from pmpguard.stable_random import StableRandom

SHORTLIST = 16  # best by score; all evidence is then weighed on these
PLAIN = 0.75  # quantile of the evidence of labelled pairs that speaks as plainly for a match as any can
SUREST = 0.99
BELIEVED = 0.9  # p(match) of pairs that proposals are calibrated on
MIN_BELIEVED, MAX_BELIEVED = 50, 2000  # so many of them with a known class
PICKED = 0.5  # what the log-odds of a pick count: it is the extreme of kinds of evidence that err together


@dataclass(frozen=True)
class ProposedCaptions:
    """For each asked row its best captions, best first; -1 where there are not so many."""

    captions: npt.NDArray[np.int64]  # (F, k) caption numbers
    p_match: Array  # (F, k)
    calibrated: bool = False  # by scene classes; otherwise p_match is a ranking


@torch.no_grad()
def propose_for_rows(
    captions: Tensor,
    images: Tensor,
    text_of: Tensor,
    image_of: Tensor,
    evidence: PairEvidence,
    verdicts: Verdicts,
    rows: npt.NDArray[np.int64],
    count: int,
    *,
    p_match: Array | None = None,
    image_labels: npt.NDArray[np.int64] | None = None,
) -> ProposedCaptions:
    """The `count` captions that would most probably match the images of `rows` (F,).

    captions (C, d) and images (I, d) are unit vectors, text_of and image_of (N,) the labelled pairs. A
    caption takes the row's place and is judged as if it were the label, siblings and all; captions the
    image carries already are not proposed. Probabilities are calibrated where `p_match` (N,) of the labelled
    pairs and the scene classes of enough images (I,), -1 for unknown, are given; see `picked_probability`
    otherwise.
    """
    if not len(rows):
        return ProposedCaptions(np.empty((0, count), np.int64), np.empty((0, count)))
    score = standardised_cosines(captions, images, pooled_statistics(captions, images))
    allowed = without_labelled(score, (text_of.cpu().numpy(), image_of.cpu().numpy()), images.device)
    asked = partial(_shortlisted, allowed, len(captions), image_of, evidence, verdicts, count=count)
    chosen, scores = asked(rows)  # (F, s) both
    calibration = None
    if p_match is not None and image_labels is not None:
        calibration = _calibrated(asked, text_of.cpu().numpy(), image_of.cpu().numpy(), p_match, image_labels)
    if calibration is not None:
        probability = calibration(scores)
    else:
        as_labels = verdicts.mixture.posterior(scores.ravel())
        probability = picked_probability(as_labels, verdicts.p_measured, 1 - verdicts.noise_rate)
        probability = probability.reshape(chosen.shape)
    probability[chosen < 0], scores[chosen < 0] = -1.0, -np.inf
    order = np.lexsort([-scores, -probability])[:, :count]  # equal ones by their evidence
    return ProposedCaptions(
        np.take_along_axis(chosen, order, axis=1),
        np.take_along_axis(probability, order, axis=1).clip(0, 1),
        calibration is not None,
    )


def _shortlisted(
    score: BlockScores,
    captions: int,
    image_of: Tensor,
    evidence: PairEvidence,
    verdicts: Verdicts,
    rows: npt.NDArray[np.int64],
    *,
    count: int,
) -> tuple[npt.NDArray[np.int64], Array]:
    """Captions (F, s) that score best with the images of `rows` (F,), -1 where too few; evidence (F, s)."""
    device = image_of.device
    wanted, place = np.unique(image_of.cpu().numpy()[rows], return_inverse=True)  # (Q,), (F,)
    pool = torch.arange(captions, device=device)
    best = propose_captions(score, torch.from_numpy(wanted).to(device), pool, max(SHORTLIST, count))
    candidates = best.partners[torch.from_numpy(place.ravel()).to(device)]  # (F, s)
    numbers = torch.from_numpy(rows).to(device).repeat_interleave(candidates.shape[1])  # (F * s,)
    parts = evidence.measure(candidates.clamp(min=0).flatten(), image_of[numbers], numbers)  # (F * s, K)
    scores = verdicts.combine(parts, tuple(evidence.measures))
    return candidates.cpu().numpy(), scores.reshape(candidates.shape)


def _calibrated(
    asked: Callable[[npt.NDArray[np.int64]], tuple[npt.NDArray[np.int64], Array]],
    text_of: npt.NDArray[np.int64],
    image_of: npt.NDArray[np.int64],
    p_match: Array,
    image_labels: npt.NDArray[np.int64],
) -> Calibration | None:
    """The probability at each evidence, by what believed pairs are proposed; None where too few are known."""
    believed = np.flatnonzero((p_match >= BELIEVED) & (image_labels[image_of] >= 0))
    if len(believed) < MIN_BELIEVED or len(np.unique(image_labels[image_of[believed]])) < 2:
        return None
    rows = np.sort(believed[StableRandom("proposals").order(len(believed))[:MAX_BELIEVED]])
    class_of = np.full(int(text_of.max()) + 1, -1, np.int64)  # of each caption that is believed somewhere
    class_of[text_of[believed]] = image_labels[image_of[believed]]
    chosen, scores = asked(rows)  # (B, s)
    scores[chosen < 0] = -np.inf
    first = scores.argmax(1)
    place = np.arange(len(rows))
    picked, evidence = chosen[place, first], scores[place, first]
    judged = (picked >= 0) & (class_of[picked] >= 0)
    if judged.sum() < MIN_BELIEVED:
        return None
    same_class = class_of[picked] == image_labels[image_of[rows]]
    return fit_isotonic(evidence[judged], same_class[judged], prior=1.0)


def picked_probability(p_match: Array, labelled: Array, match_rate: float) -> Array:
    """Of pairs picked from the whole collection, given what they would have as labels.

    A label matches with probability `match_rate` before any evidence, a caption of the collection with a far
    smaller one, a. Mismatched pairs for comparison are drawn at random, so a share a of them matches too, and
    no evidence is more than 1 / a times as frequent among matches as among them. Plain matches come close to
    that: a is read off the labelled pairs (N,). Of many captions the one with most evidence was picked, so
    what the kinds of evidence get wrong together speaks for it: its log-odds count by `PICKED`.

    >>> labels = np.array([0.99] * 8 + [0.02] * 2)
    >>> picked_probability(np.array([0.99, 0.9, 0.5]), labels, 0.8).round(3).tolist()
    [0.909, 0.24, 0.092]
    """
    ratios = likelihood_ratio(labelled, match_rate)
    plain = ratios[ratios > 1]
    if not len(plain):
        return np.zeros_like(p_match)
    p = np.minimum(SUREST, likelihood_ratio(p_match, match_rate) / np.quantile(plain, PLAIN))
    counted = p**PICKED
    return np.asarray(counted / (counted + (1 - p) ** PICKED))


def likelihood_ratio(p_match: Array, match_rate: float) -> Array:
    """How much more frequent the evidence is among matches than among random pairs."""
    rate = float(np.clip(match_rate, 1e-6, 1 - 1e-6))
    p = np.clip(p_match, 1e-9, 1 - 1e-9)
    return np.asarray(p / (1 - p) * (1 - rate) / rate)
