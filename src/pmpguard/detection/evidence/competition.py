"""Evidence that a caption belongs to its image: no other image has a better claim to what it says.

A mismatched caption was written for another image, which often still carries it, or one that reads like it.
Where such a competing pair is supported much better, this one is probably the mismatched one. How well pairs
are supported is what all other evidence says together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pmpguard.detection.evidence.neighbours import NeighbourGraph
from pmpguard.detection.null_pairs import Evidence, NullPairs
from pmpguard.stable_random import StableRandom

SIMILAR_TEXTS = 10  # nearest to a caption, whose images compete, too
DISTANCE_COST = 15.0  # log-odds a competitor loses per 1 - cosine of what it says
MAX_LEFT_OUT = 2  # images that do not count in an answer
MIN_SHARE = 0.05  # of pairs that must have a competitor
QUERIES_AT_ONCE = 65_536
NOTHING = -torch.inf


@torch.no_grad()
def competition_evidence(
    support: Tensor,
    clean_probability: Tensor,
    text_of: Tensor,
    image_of: Tensor,
    null: NullPairs,
    similar: NeighbourGraph | None,
    seed: int,
) -> Evidence | None:
    """Minus the support of the strongest competitor, of the labelled pairs (N,) and of the null pairs.

    support (N,): roughly the log-odds of the labelled pairs; clean_probability (N,): of each to match.
    `similar`: the texts and for each others that read similar; without it only equal strings compete. Pairs
    without competitors get the mean of those that have some; None where hardly any has one.

    A labelled pair does not compete with itself. So that null pairs have no more competitors than it, each
    counts as moved from a row with its text, one that probably is mismatched.
    """
    claims = _Claims(support.float(), text_of, image_of, similar)
    observed = claims(text_of, image_of, torch.full_like(image_of, -1))
    simulated = claims(null.texts, null.images, _left(clean_probability, text_of, image_of, null.texts, seed))
    for claimed in (observed, simulated):
        if (claimed > NOTHING).float().mean() < MIN_SHARE:
            return None
    known = torch.cat([observed, simulated])
    level = known[known > NOTHING].mean()
    return Evidence(*(-torch.where(each > NOTHING, each, level) for each in (observed, simulated)))


def _left(clean_probability: Tensor, text_of: Tensor, image_of: Tensor, moved: Tensor, seed: int) -> Tensor:
    """(M,): the image that no longer has a moved text (M,); -1 where it has it once more."""
    draws = torch.from_numpy(StableRandom("moved texts", seed).uniform(len(text_of)))
    keys = -torch.log1p(-draws).to(clean_probability.device)  # exponential
    keys = (
        keys / (1.001 - clean_probability.double())
    ).float()  # drawn in proportion to 1 - clean probability
    left = _Claims(-keys, text_of, image_of, None, kept=1).images[moved, 0]  # (M,)
    images = image_of.max() + 1
    pairs, duplicates = torch.unique(text_of * images + image_of, return_counts=True)
    place = torch.searchsorted(pairs, moved * images + left)
    return torch.where(duplicates[place] == 1, left, -1)


class _Claims:
    """The best-supported images of every text, enough to answer when some are not to count."""

    def __init__(
        self,
        support: Tensor,
        text_of: Tensor,
        image_of: Tensor,
        similar: NeighbourGraph | None,
        kept: int = MAX_LEFT_OUT + 1,
    ) -> None:
        self.similar = similar
        texts = int(text_of.max()) + 1 if similar is None else len(similar.vectors)
        rows = torch.arange(len(support), device=support.device)
        images, values = [], []
        for _ in range(kept):
            best = support.new_full((texts,), NOTHING).scatter_reduce(0, text_of, support, "amax")
            winning = (support == best[text_of]) & (support > NOTHING)
            winner = torch.full_like(best, -1, dtype=torch.int64)
            winner.scatter_reduce_(0, text_of, torch.where(winning, rows, -1), "amax")
            images.append(torch.where(winner >= 0, image_of[winner], -1))
            values.append(best)
            support = torch.where(image_of == images[-1][text_of], NOTHING, support)
        self.images, self.values = torch.stack(images, 1), torch.stack(values, 1)  # (C, kept)

    def __call__(self, captions: Tensor, images: Tensor, left: Tensor) -> Tensor:
        """(Q,): the strongest claim to each caption of any image but two; minus infinity: there is none."""
        asked = zip(*(torch.split(each, QUERIES_AT_ONCE) for each in (captions, images, left)), strict=True)
        return torch.cat([self._strongest(*part) for part in asked])

    def _strongest(self, captions: Tensor, images: Tensor, left: Tensor) -> Tensor:
        strongest = self._of(captions, images, left)
        if self.similar is None:
            return strongest
        numbers = self.similar.numbers[captions, :SIMILAR_TEXTS].long()  # (Q, k)
        lost = DISTANCE_COST * (1 - self.similar.cosines[captions, :SIMILAR_TEXTS].float())
        near = self._of(numbers, images[:, None], images[:, None]) - lost  # (Q, k)
        return torch.maximum(strongest, near.amax(1))

    def _of(self, captions: Tensor, images: Tensor, left: Tensor) -> Tensor:
        holders = self.images[captions]  # (..., kept)
        counts = (holders != images[..., None]) & (holders != left[..., None])
        return torch.where(counts, self.values[captions], NOTHING).amax(-1)
