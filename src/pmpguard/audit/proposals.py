"""Better captions for images whose caption was judged wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.similarity import pooled_statistics
from pmpguard.detection.judge import Verdicts
from pmpguard.detection.measures import PairEvidence
from pmpguard.detection.null_pairs import Array
from pmpguard.detection.rematch import propose_captions, standardised_cosines, without_labelled

SHORTLIST = 16  # best by score; all evidence is then weighed on these
PLAIN = 0.75  # quantile of the evidence of labelled pairs that speaks as plainly for a match as any can
SUREST = 0.99
PICKED = 0.5  # what the log-odds of a pick count: it is the extreme of kinds of evidence that err together


@dataclass(frozen=True)
class ProposedCaptions:
    """For each asked row its best captions, best first; -1 where there are not so many."""

    captions: npt.NDArray[np.int64]  # (F, k) caption numbers
    p_match: Array  # (F, k)


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
) -> ProposedCaptions:
    """The `count` captions that would most probably match the images of `rows` (F,).

    captions (C, d) and images (I, d) are unit vectors, text_of and image_of (N,) the labelled pairs. A
    caption takes the row's place and is judged as if it were the label, siblings and all; captions the
    image carries already are not proposed. See `picked_probability`.
    """
    if not len(rows):
        return ProposedCaptions(np.empty((0, count), np.int64), np.empty((0, count)))
    device = images.device
    pairs = text_of.cpu().numpy(), image_of.cpu().numpy()
    score = standardised_cosines(captions, images, pooled_statistics(captions, images))
    wanted, place = np.unique(pairs[1][rows], return_inverse=True)  # (Q,), (F,)
    pool = torch.arange(len(captions), device=device)
    asked = torch.from_numpy(wanted).to(device)
    best = propose_captions(without_labelled(score, pairs, device), asked, pool, max(SHORTLIST, count))
    candidates = best.partners[torch.from_numpy(place.ravel()).to(device)]  # (F, s)
    shortlist = candidates.shape[1]
    parts = evidence.measure(
        candidates.clamp(min=0).flatten(),
        image_of[torch.from_numpy(rows).to(device)].repeat_interleave(shortlist),
        torch.from_numpy(rows).to(device).repeat_interleave(shortlist),
    )  # (F * s, K)
    chosen = candidates.cpu().numpy()
    p_match = picked_probability(
        verdicts.judge(parts, tuple(evidence.measures)), verdicts.p_measured, 1 - verdicts.noise_rate
    ).reshape(chosen.shape)
    p_match[chosen < 0] = -1.0
    order = np.argsort(-p_match, axis=1, kind="stable")[:, :count]  # equal ones stay in order of their scores
    return ProposedCaptions(
        np.take_along_axis(chosen, order, axis=1), np.take_along_axis(p_match, order, axis=1).clip(0, 1)
    )


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
