"""Better captions for pictures whose caption was judged wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.audit.embeddings import PairEvidence
from pmpguard.audit.scores import Array
from pmpguard.catching.evidence import pooled_statistics
from pmpguard.catching.rematch import propose_captions, standardised_cosines, without_labelled

SHORTLIST = 16  # best by score; all evidence is then weighed on these


@dataclass(frozen=True)
class ProposedCaptions:
    """For each asked row its best captions, best first; -1 where there are not so many."""

    captions: npt.NDArray[np.int64]  # (F, k) caption numbers
    p_match: Array  # (F, k)


@torch.no_grad()
def propose_for_rows(
    images: Tensor,
    captions: Tensor,
    image_of: Tensor,
    caption_of: Tensor,
    evidence: PairEvidence,
    judge: Callable[[Array], Array],
    rows: npt.NDArray[np.int64],
    count: int,
    match_rate: float,
) -> ProposedCaptions:
    """The `count` captions that would most probably match the pictures of `rows` (F,).

    images (I, d) and captions (C, d) are unit vectors, image_of and caption_of (N,) the labelled pairs. A
    caption takes the row's place and is judged as if it were the label, siblings and all; captions the
    picture carries already are not proposed. A label is right more often than not, a caption picked from the
    whole collection hardly ever: of `match_rate`, the share of labels that match, is made the chance of one
    that a picture's captions have among all.
    """
    if not len(rows):
        return ProposedCaptions(np.empty((0, count), np.int64), np.empty((0, count)))
    device = images.device
    pairs = caption_of.cpu().numpy(), image_of.cpu().numpy()
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
    by_chance = min(0.5, len(caption_of) / len(images) / len(captions))
    p_match = with_prior(judge(parts), match_rate, by_chance).reshape(chosen.shape)
    p_match[chosen < 0] = -1.0
    order = np.argsort(-p_match, axis=1, kind="stable")[:, :count]  # equal ones stay in order of their scores
    return ProposedCaptions(
        np.take_along_axis(chosen, order, axis=1), np.take_along_axis(p_match, order, axis=1).clip(0, 1)
    )


def with_prior(p_match: Array, before: float, after: float) -> Array:
    """Posterior probabilities under another prior than they were computed with.

    >>> with_prior(np.array([0.9, 1.0]), before=0.5, after=0.1).round(3).tolist()
    [0.5, 1.0]
    """
    before = float(np.clip(before, 1e-3, 1 - 1e-3))
    factor = (after / (1 - after)) * ((1 - before) / before)
    return factor * p_match / (factor * p_match + 1 - p_match)
