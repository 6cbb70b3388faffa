"""What a flagged pair should have been: mutual-best proposals among the images and captions of flagged pairs.

Scores come from a function that scores a block of captions against a block of images, so the full matrix
never exists and any score can be used. For p(match) of a proposal to mean the same as p(match) of a labelled
pair, blocks must be standardised like the evidence; `standardised_cosines` does that for pooled embeddings.
Nothing here carries a gradient, and nothing knows which pairs were made wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.similarity import ScoreStatistics
from pmpguard.detection.mixture import MatchMixture
from pmpguard.detection.null_pairs import Numbers, pair_numbers

# (caption numbers (T,), image numbers (I,)) -> (T, I) scores
BlockScores = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Candidates:
    """The best partners of each query, best first; -1 (score -inf) where no partner was allowed."""

    scores: Tensor  # (Q, k)
    partners: Tensor  # (Q, k)


@dataclass(frozen=True)
class Proposals:
    """Captions proposed for images they are not labelled with; each caption is proposed at most once."""

    images: Numbers  # (P,)
    captions: Numbers  # (P,)
    scores: npt.NDArray[np.float64]  # (P,)
    probabilities: npt.NDArray[np.float64]  # (P,) p(match)

    def __len__(self) -> int:
        return len(self.images)


def standardised_cosines(captions: Tensor, images: Tensor, statistics: ScoreStatistics) -> BlockScores:
    """A block scorer over pooled embeddings, on the scale of the evidence with these statistics."""

    def score(caption_numbers: Tensor, image_numbers: Tensor) -> Tensor:
        cosines = captions[caption_numbers].float() @ images[image_numbers].float().T  # (T, I)
        return statistics.standardise(cosines, caption_numbers[:, None], image_numbers[None, :])

    return score


@torch.no_grad()
def find_proposals(
    score_block: BlockScores,
    caption_of: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor,
    p_match: npt.ArrayLike,
    mixture: MatchMixture,
    *,
    captions_per_image: int = 1,
    flagged_below: float = 0.5,
    min_probability: float = 0.5,
    device: torch.device | str = "cpu",
    chunk: int | None = None,
) -> Proposals:
    """Propose captions of flagged pairs for images of flagged pairs.

    Row r pairs caption `caption_of[r]` with image `image_of[r]`; it is flagged when `p_match[r]` is below
    `flagged_below`. A caption is proposed for its best image when it is among that image's
    `captions_per_image` best and has at least `min_probability` under the mixture. A labelled pair is never
    proposed again.
    """
    pairs = pair_numbers(caption_of, image_of)
    flagged = np.asarray(p_match) < flagged_below  # (N,)
    if not flagged.any():
        return Proposals(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))
    captions, images = (torch.from_numpy(np.unique(numbers[flagged])).to(device) for numbers in pairs)
    allowed = without_labelled(score_block, pairs, device)
    for_images = propose_captions(allowed, images, captions, captions_per_image, chunk)
    for_captions = propose_images(allowed, captions, images, 1, chunk)
    found_images, found_captions, scores = mutual_best(images, captions, for_images, for_captions)
    values = scores.double().cpu().numpy()
    probabilities = mixture.posterior(values)
    keep = probabilities >= min_probability
    return Proposals(
        found_images.cpu().numpy()[keep],
        found_captions.cpu().numpy()[keep],
        values[keep],
        probabilities[keep],
    )


def without_labelled(
    score_block: BlockScores, pairs: tuple[Numbers, Numbers], device: torch.device | str = "cpu"
) -> BlockScores:
    """The same scores with -inf wherever a caption is already labelled with the image."""
    caption_of, image_of = (torch.from_numpy(numbers).to(device) for numbers in pairs)  # (N,)
    caption_places = torch.full((int(caption_of.max()) + 1,), -1, device=device)
    image_places = torch.full((int(image_of.max()) + 1,), -1, device=device)

    def score(captions: Tensor, images: Tensor) -> Tensor:
        scores = score_block(captions, images).float()  # (T, I)
        row_of, column_of = caption_places.clone(), image_places.clone()
        row_of[captions] = torch.arange(len(captions), device=device)
        column_of[images] = torch.arange(len(images), device=device)
        rows, columns = row_of[caption_of], column_of[image_of]  # (N,) place in the block or -1
        inside = (rows >= 0) & (columns >= 0)
        return scores.index_put((rows[inside], columns[inside]), scores.new_tensor(-torch.inf))

    return score


@torch.no_grad()
def propose_captions(
    score_block: BlockScores, images: Tensor, captions: Tensor, k: int = 5, chunk: int | None = None
) -> Candidates:
    """For each of `images` (Q,) the k best of `captions` (P,)."""
    return _best_partners(lambda rows, others: score_block(others, rows).T, images, captions, k, chunk)


@torch.no_grad()
def propose_images(
    score_block: BlockScores, captions: Tensor, images: Tensor, k: int = 5, chunk: int | None = None
) -> Candidates:
    """For each of `captions` (Q,) the k best of `images` (P,)."""
    return _best_partners(score_block, captions, images, k, chunk)


def mutual_best(
    images: Tensor, captions: Tensor, for_images: Candidates, for_captions: Candidates
) -> tuple[Tensor, Tensor, Tensor]:
    """(images, captions, scores) where the caption's best image has that caption among its best."""
    if not len(images) or not len(captions):
        return images[:0], captions[:0], for_images.scores.flatten()[:0]
    size = int(max(captions.max(), for_images.partners.max())) + 1
    best_image = torch.full((size,), -1, dtype=torch.int64, device=captions.device)
    best_image[captions] = for_captions.partners[:, 0]
    wished = best_image[for_images.partners.clamp(min=0)]  # (Q, k)
    agreed = (wished == images[:, None]) & (for_images.partners >= 0)
    query = agreed.nonzero()[:, 0]
    return images[query], for_images.partners[agreed], for_images.scores[agreed]


def soft_targets(
    proposals: Proposals, captions: Tensor, images: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(T, I) p(match) of the proposals that fall into a batch, 0 elsewhere.

    `captions` (T,) and `images` (I,) are the numbers of those the batch holds; an image that is in the batch
    twice gets the target twice.
    """
    device = captions.device
    if not len(proposals):
        return torch.zeros(len(captions), len(images), dtype=dtype, device=device)
    order = np.argsort(proposals.captions)
    known = torch.from_numpy(proposals.captions[order]).to(device)  # (P,) sorted, unique
    place = torch.searchsorted(known, captions).clamp(max=len(known) - 1)  # (T,)
    proposed = torch.from_numpy(proposals.images[order]).to(device)[place]
    probability = torch.from_numpy(proposals.probabilities[order]).to(device, dtype)[place]
    hit = (known[place] == captions)[:, None] & (proposed[:, None] == images[None, :])  # (T, I)
    return hit * probability[:, None]


def _best_partners(
    score: BlockScores, queries: Tensor, pool: Tensor, k: int, chunk: int | None
) -> Candidates:
    """The k best of the pool for every query, keeping only one block of scores in memory.

    A block has `chunk` rows and columns: by default what a CPU's cache and what a GPU's many cores like.
    """
    k = min(k, len(pool))
    chunk = chunk or (8192 if queries.is_cuda else 1024)
    best_scores, best_rows = [], []
    for rows in torch.split(queries, chunk):
        scores = torch.empty(len(rows), 0, device=queries.device)
        partners = torch.empty(len(rows), 0, dtype=torch.int64, device=queries.device)
        for others in torch.split(pool, chunk):
            scores = torch.cat([scores, score(rows, others).float()], dim=1)
            partners = torch.cat([partners, others.expand(len(rows), -1)], dim=1)
            scores, order = scores.topk(min(k, scores.shape[1]), dim=1)
            partners = partners.gather(1, order)
        best_scores.append(scores)
        best_rows.append(partners.masked_fill(scores == -torch.inf, -1))
    return Candidates(torch.cat(best_scores), torch.cat(best_rows))
