"""What a flagged pair should have been: mutual-best proposals among the images and captions of flagged pairs.

Scores come from a function that scores a block of captions against a block of images, so the full matrix
never exists and any score can be used. Where a pool is large and the scores come from vectors, only partners
in the cells nearest to a query are scored (`evidence/nearest.py`): then no work grows with the square. For
p(match) of a proposal to mean the same as p(match) of a labelled pair, blocks must be standardised like the
evidence; `standardised_cosines` does that for pooled embeddings. Nothing here carries a gradient, and nothing
knows which pairs were made wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence.nearest import MAX_EXACT_NEIGHBOURS, sort_into_cells
from pmpguard.detection.evidence.similarity import ScoreStatistics
from pmpguard.detection.mixture import MatchMixture
from pmpguard.detection.null_pairs import Numbers, pair_numbers

# (caption numbers (T,), image numbers (I,)) -> (T, I) scores
BlockScores = Callable[[Tensor, Tensor], Tensor]
QUERIES_AT_ONCE = 1024  # and as many partners, on a CPU
REMATCHED_BELOW = 0.5  # p(match); a report flags fewer pairs than training looks for partners of
PROBED_CELLS = 32  # of a large pool, for each query


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


@dataclass(frozen=True)
class VectorScores:
    """Block scores that grow with the cosines of vectors, which so tell where good partners may be."""

    score: BlockScores
    captions: Tensor  # (C, d) unit
    images: Tensor  # (I, d) unit

    def __call__(self, captions: Tensor, images: Tensor) -> Tensor:
        return self.score(captions, images)


def standardised_cosines(captions: Tensor, images: Tensor, statistics: ScoreStatistics) -> VectorScores:
    """A block scorer over pooled embeddings, on the scale of the evidence with these statistics."""

    def score(caption_numbers: Tensor, image_numbers: Tensor) -> Tensor:
        cosines = captions[caption_numbers].float() @ images[image_numbers].float().T  # (T, I)
        return statistics.standardise(cosines, caption_numbers[:, None], image_numbers[None, :])

    return VectorScores(score, captions, images)


@torch.no_grad()
def find_proposals(
    score_block: BlockScores,
    caption_of: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor,
    p_match: npt.ArrayLike,
    mixture: MatchMixture,
    *,
    captions_per_image: int = 1,
    min_probability: float = 0.5,
    device: torch.device | str = "cpu",
) -> Proposals:
    """Propose captions of pairs that rather mismatch for images of such pairs.

    Row r pairs caption `caption_of[r]` with image `image_of[r]`; it takes part when `p_match[r]` is below
    0.5. A caption is proposed for its best image when it is among that image's `captions_per_image` best and
    has at least `min_probability` under the mixture. A labelled pair is never proposed again.
    """
    pairs = pair_numbers(caption_of, image_of)
    taking_part = np.asarray(p_match) < REMATCHED_BELOW  # (N,)
    if not taking_part.any():
        return Proposals(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))
    captions, images = (torch.from_numpy(np.unique(numbers[taking_part])).to(device) for numbers in pairs)
    allowed = without_labelled(score_block, pairs, device)
    for_images = propose_captions(allowed, images, captions, captions_per_image)
    for_captions = propose_images(allowed, captions, images, 1)
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
    by_caption = torch.argsort(caption_of, stable=True)  # (N,) rows, caption by caption
    counts = torch.bincount(caption_of)  # (C,)
    ends = counts.cumsum(0)
    image_places = torch.full((int(image_of.max()) + 1,), -1, device=device)

    def score(captions: Tensor, images: Tensor) -> Tensor:
        scores = score_block(captions, images).float()  # (T, I)
        known = captions < len(counts)
        number = torch.where(known, captions, 0)
        labels = torch.where(known, counts[number], 0)  # (T,) labelled rows of each caption
        row = torch.repeat_interleave(torch.arange(len(captions), device=device), labels)  # (R,)
        offset = torch.arange(len(row), device=device) - (labels.cumsum(0) - labels)[row]
        labelled = image_of[by_caption[(ends - counts)[number][row] + offset]]  # (R,)
        inside = images < len(image_places)
        image_places[images[inside]] = inside.nonzero()[:, 0]
        column = image_places[labelled]
        image_places[images[inside]] = -1
        forbidden = column >= 0
        return scores.index_put((row[forbidden], column[forbidden]), scores.new_tensor(-torch.inf))

    if isinstance(score_block, VectorScores):
        return VectorScores(score, score_block.captions, score_block.images)
    return score


@torch.no_grad()
def propose_captions(
    score_block: BlockScores, images: Tensor, captions: Tensor, k: int = 5, chunk: int | None = None
) -> Candidates:
    """For each of `images` (Q,) the k best of `captions` (P,)."""
    if isinstance(score_block, VectorScores) and len(captions) > MAX_EXACT_NEIGHBOURS:
        vectors = score_block.images, score_block.captions
        return _near_partners(lambda rows, others: score_block(others, rows).T, images, captions, k, *vectors)
    return _best_partners(lambda rows, others: score_block(others, rows).T, images, captions, k, chunk)


@torch.no_grad()
def propose_images(
    score_block: BlockScores, captions: Tensor, images: Tensor, k: int = 5, chunk: int | None = None
) -> Candidates:
    """For each of `captions` (Q,) the k best of `images` (P,)."""
    if isinstance(score_block, VectorScores) and len(images) > MAX_EXACT_NEIGHBOURS:
        vectors = score_block.captions, score_block.images
        return _near_partners(score_block, captions, images, k, *vectors)
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


def _best_partners(
    score: BlockScores, queries: Tensor, pool: Tensor, k: int, chunk: int | None
) -> Candidates:
    """The k best of the pool for every query, keeping only one block of scores in memory.

    A block has `chunk` rows and columns: by default what a CPU's cache and what a GPU's many cores like.
    """
    k = min(k, len(pool))
    chunk = chunk or (8192 if queries.is_cuda else QUERIES_AT_ONCE)
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


def _near_partners(
    score: BlockScores, queries: Tensor, pool: Tensor, k: int, query_vectors: Tensor, pool_vectors: Tensor
) -> Candidates:
    """The k best of those in the cells of the pool that are nearest to each query, cell by cell.

    Cells are those of what is left of vectors (n, d) when their mean is taken away: two encoders may put
    texts and images at different places of their common space.
    """
    mean = pool_vectors.mean(0, dtype=torch.float32)
    cells = sort_into_cells(normalize(pool_vectors[pool].float() - mean, dim=1))
    scores = torch.full((len(queries), k), -torch.inf, device=queries.device)
    partners = torch.full((len(queries), k), -1, dtype=torch.int64, device=queries.device)
    probed = torch.cat([
        (query_vectors[part].float() @ cells.centres.T).topk(min(PROBED_CELLS, len(cells)), dim=1).indices
        for part in torch.split(queries, QUERIES_AT_ONCE)
    ]).flatten()  # fmt: skip
    asking = torch.argsort(probed, stable=True)  # (Q * p,) cell by cell
    ends = torch.bincount(probed, minlength=len(cells)).cumsum(0).tolist()
    asked_by = asking // max(len(probed) // max(len(queries), 1), 1)  # (Q * p,) places of queries
    for cell in range(len(cells)):
        others = pool[cells.of(cell)]
        asking_here = asked_by[ends[cell - 1] if cell else 0 : ends[cell]]
        for places in torch.split(asking_here, QUERIES_AT_ONCE):
            if not len(places):
                continue
            block = score(queries[places], others).float()  # (R, P)
            best = block.topk(min(k, len(others)), dim=1)
            merged = torch.cat([scores[places], best.values], dim=1).topk(k, dim=1)
            both = torch.cat([partners[places], others[best.indices]], dim=1)
            scores[places], partners[places] = merged.values, both.gather(1, merged.indices)
    return Candidates(scores, partners.masked_fill(scores == -torch.inf, -1))
