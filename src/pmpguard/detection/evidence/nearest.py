"""Nearest vectors by cosine: exact in blocks up to a stated number, by inverted lists beyond it.

Exact search costs the square of the number of vectors. Beyond `MAX_EXACT_NEIGHBOURS` vectors are sorted into
cells around spherical k-means centres and every vector is compared with those of the cells nearest to its own
(an inverted file; Sivic and Zisserman, ICCV 2003). The same numbers come out on every machine: nothing is
drawn but by StableRandom.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.stable_random import StableRandom

MAX_EXACT_NEIGHBOURS = 50_000
BLOCK_ROWS = 1024  # vectors compared at once with all others
MEMBERS_PER_CELL = 250  # about so many vectors share a cell
PROBED_CELLS = 16
KMEANS_STEPS = 6
KMEANS_SAMPLE_PER_CELL = 40


def centred(vectors: Tensor) -> Tensor:
    """Unit vectors (n, d) without what all have in common, which says nothing about any."""
    return normalize(vectors - vectors.mean(0), dim=1)


@torch.no_grad()
def nearest_others(
    vectors: Tensor, nearest: int, exact_up_to: int = MAX_EXACT_NEIGHBOURS
) -> tuple[Tensor, Tensor]:
    """Cosines (n, k) and numbers (n, k) of the k unit vectors most like each of (n, d), itself left out.

    k is `nearest`, or less where there are fewer others. Inverted lists may find fewer: what is missing has
    cosine -1 and repeats the vector itself.
    """
    nearest = min(nearest, len(vectors) - 1)
    if len(vectors) > exact_up_to:
        return _by_cells(vectors, nearest)
    cosines, numbers = [], []
    for start in range(0, len(vectors), BLOCK_ROWS):
        block = vectors[start : start + BLOCK_ROWS] @ vectors.T  # (Q, n)
        block.diagonal(start).fill_(-torch.inf)
        found = block.topk(nearest, dim=1)
        cosines.append(found.values)
        numbers.append(found.indices)
    return torch.cat(cosines), torch.cat(numbers)


def _by_cells(vectors: Tensor, nearest: int) -> tuple[Tensor, Tensor]:
    centres = _centres(vectors, max(1, len(vectors) // MEMBERS_PER_CELL))  # (L, d)
    cell_of = torch.cat([(part @ centres.T).argmax(1) for part in torch.split(vectors, 16_384)])  # (n,)
    members = torch.argsort(cell_of, stable=True)  # (n,) vectors, cell by cell
    counts = torch.bincount(cell_of, minlength=len(centres))  # (L,)
    starts = counts.cumsum(0) - counts
    probed = (
        (centres @ centres.T).topk(min(PROBED_CELLS, len(centres)), dim=1).indices
    )  # (L, p), its own first
    cosines = vectors.new_full((len(vectors), nearest), -1.0)
    numbers = torch.arange(len(vectors), device=vectors.device)[:, None].repeat(1, nearest)
    ranges = list(zip(starts.tolist(), counts.tolist(), strict=True))
    for cell, others in enumerate(probed.tolist()):
        start, count = ranges[cell]
        if not count:
            continue
        asked = members[start : start + count]  # (Q,)
        compared = torch.cat(
            [members[ranges[one][0] : sum(ranges[one])] for one in others]
        )  # (P,), asked first
        block = vectors[asked] @ vectors[compared].T  # (Q, P)
        block.masked_fill_(asked[:, None] == compared[None], -1.0)
        k = min(nearest, len(compared) - 1)
        if k:
            found = block.topk(k, dim=1)
            cosines[asked, :k] = found.values
            numbers[asked, :k] = compared[found.indices]
    return cosines, numbers


def _centres(vectors: Tensor, cells: int) -> Tensor:
    """(cells, d) unit centres of spherical k-means on a sample."""
    draws = StableRandom("cells", len(vectors))
    sample = torch.from_numpy(draws.choice(len(vectors), KMEANS_SAMPLE_PER_CELL * cells)).to(vectors.device)
    points = vectors[sample]
    centres = points[:cells].clone()
    for _ in range(KMEANS_STEPS):
        nearest = torch.cat([(part @ centres.T).argmax(1) for part in torch.split(points, 16_384)])
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        empty = sums.norm(dim=1) == 0
        centres = torch.where(empty[:, None], centres, normalize(sums, dim=1))
    return centres
