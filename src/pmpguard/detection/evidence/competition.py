"""More evidence that a caption belongs to its image: no other image has a better claim to what it says.

A wrong caption was written for another image, which often still carries it, or one that reads like it.
Where such a competitor pair is supported much better, this one is probably the wrong one. How well pairs are
supported is what all other evidence says together.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pmpguard.detection.evidence.neighbours import NeighbourGraph
from pmpguard.detection.null_pairs import Part

LOOK_ALIKES = 10  # sentences most like a caption, whose images are competitors, too
UNLIKE = 15.0  # log-odds a competitor loses per 1 - cosine of what it says
LEFT_OUT = 2  # images at most that do not count in an answer
FEWEST = 0.05  # share of pairs that must have a competitor
CHUNK = 65_536
NOTHING = -torch.inf


@torch.no_grad()
def competition_evidence(
    support: Tensor,
    clean_probability: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    wrong: tuple[Tensor, Tensor],
    alike: NeighbourGraph | None,
    seed: int,
) -> Part | None:
    """Minus the support of the strongest competitor, of the labelled pairs (N,) and of the wrong ones.

    support (N,): roughly the log-odds of the labelled pairs; trust (N,): how probably each matches. `wrong`:
    captions (M,), all of labelled pairs, and images (M,). `alike`: the captions and for each others that
    read alike; without it only equal strings are competitors. Pairs without competitors get the mean of those
    that have some; None where hardly any has one.

    A labelled pair is no competitor of itself. So that the wrong ones have no more competitors than it, each
    counts as moved from a row with its caption, one that probably is wrong.
    """
    claims = _Claims(support.float(), caption_of, image_of, alike)
    labelled = claims(caption_of, image_of, torch.full_like(image_of, -1))
    simulated = claims(*wrong, _left(clean_probability, caption_of, image_of, wrong[0], seed))
    for claimed in (labelled, simulated):
        if (claimed > NOTHING).float().mean() < FEWEST:
            return None
    known = torch.cat([labelled, simulated])
    level = known[known > NOTHING].mean()
    return Part(*(-torch.where(each > NOTHING, each, level) for each in (labelled, simulated)))


def _left(
    clean_probability: Tensor, caption_of: Tensor, image_of: Tensor, moved: Tensor, seed: int
) -> Tensor:
    """(M,): the image that no longer has a moved caption (M,); -1 where it has it once more."""
    draws = np.random.default_rng([seed, 3])
    keys = torch.from_numpy(draws.exponential(size=len(clean_probability))).to(clean_probability.device)
    keys = (
        keys / (1.001 - clean_probability.double())
    ).float()  # the smallest is drawn in proportion to 1 - trust
    left = _Claims(-keys, caption_of, image_of, None, kept=1).images[moved, 0]  # (M,)
    images = image_of.max() + 1
    pairs, copies = torch.unique(caption_of * images + image_of, return_counts=True)
    place = torch.searchsorted(pairs, moved * images + left)
    return torch.where(copies[place] == 1, left, -1)


class _Claims:
    """The best-supported images of every caption, enough to answer when some are not to count."""

    def __init__(
        self,
        support: Tensor,
        caption_of: Tensor,
        image_of: Tensor,
        alike: NeighbourGraph | None,
        kept: int = LEFT_OUT + 1,
    ) -> None:
        self.alike = alike
        captions = int(caption_of.max()) + 1 if alike is None else len(alike.vectors)
        rows = torch.arange(len(support), device=support.device)
        images, values = [], []
        for _ in range(kept):
            best = support.new_full((captions,), NOTHING).scatter_reduce(0, caption_of, support, "amax")
            winning = (support == best[caption_of]) & (support > NOTHING)
            winner = torch.full_like(best, -1, dtype=torch.int64)
            winner.scatter_reduce_(0, caption_of, torch.where(winning, rows, -1), "amax")
            images.append(torch.where(winner >= 0, image_of[winner], -1))
            values.append(best)
            support = torch.where(image_of == images[-1][caption_of], NOTHING, support)
        self.images, self.values = torch.stack(images, 1), torch.stack(values, 1)  # (C, kept)

    def __call__(self, captions: Tensor, images: Tensor, left: Tensor) -> Tensor:
        """(Q,): the strongest claim to each caption of any image but two; minus infinity: there is none."""
        asked = zip(*(torch.split(each, CHUNK) for each in (captions, images, left)), strict=True)
        return torch.cat([self._strongest(*part) for part in asked])

    def _strongest(self, captions: Tensor, images: Tensor, left: Tensor) -> Tensor:
        found = self._of(captions, images, left)
        if self.alike is None:
            return found
        numbers = self.alike.numbers[captions, :LOOK_ALIKES]  # (Q, k)
        lost = UNLIKE * (1 - self.alike.cosines[captions, :LOOK_ALIKES])
        near = self._of(numbers, images[:, None], images[:, None]) - lost  # (Q, k)
        return torch.maximum(found, near.amax(1))

    def _of(self, captions: Tensor, images: Tensor, left: Tensor) -> Tensor:
        holders = self.images[captions]  # (..., kept)
        counts = (holders != images[..., None]) & (holders != left[..., None])
        return torch.where(counts, self.values[captions], NOTHING).amax(-1)
