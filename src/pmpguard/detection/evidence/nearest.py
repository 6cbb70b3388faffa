"""Nearest vectors by cosine: exact in blocks up to a stated number, by inverted lists beyond it.

Exact search costs the square of the number of vectors. Beyond `MAX_EXACT_NEIGHBOURS` vectors are sorted into
cells around spherical k-means centres, and every vector is compared with those of the cells nearest to its
own (an inverted file; Sivic and Zisserman, ICCV 2003). Many centres are sorted into cells themselves, so that
finding a vector's cell does not cost the square either. The same numbers come out on every machine: nothing
is drawn but by StableRandom.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.stable_random import StableRandom

MAX_EXACT_NEIGHBOURS = 50_000
BLOCK_ROWS = 1024  # vectors compared at once with all others
MEMBERS_PER_CELL = 250  # about so many vectors share a cell
MOST_MEMBERS = 1000  # larger cells are split, so that equal vectors cost no square
PROBED_CELLS = 16
KMEANS_STEPS = 6
KMEANS_SAMPLE_PER_CELL = 40
MAX_COMPARED_CENTRES = 1024  # more are sorted into cells themselves
PROBED_GROUPS = 6  # of centres, for each vector
CONVERTED_ROWS = 16_384


@dataclass(frozen=True)
class Cells:
    """Vectors sorted into L cells."""

    centres: Tensor  # (L, d) unit, float32
    members: Tensor  # (n,) numbers of vectors, cell by cell
    starts: tuple[int, ...]  # (L + 1,)

    def __len__(self) -> int:
        return len(self.centres)

    def of(self, cell: int) -> Tensor:
        """The numbers of its members."""
        return self.members[self.starts[cell] : self.starts[cell + 1]]


def full(vectors: Tensor) -> Tensor:
    """As they are, but what is kept in float16 in float32: sums of it would lose too much."""
    return vectors.float() if vectors.dtype == torch.float16 else vectors


def centred(vectors: Tensor) -> Tensor:
    """Unit vectors (n, d) without what all have in common, which says nothing about any."""
    if vectors.dtype != torch.float16:
        return normalize(vectors - vectors.mean(0), dim=1)
    units, mean = torch.empty_like(vectors), vectors.mean(0, dtype=torch.float32)
    for start in range(0, len(vectors), CONVERTED_ROWS):
        part = slice(start, start + CONVERTED_ROWS)
        units[part] = normalize(vectors[part].float() - mean, dim=1)
    return units


@torch.no_grad()
def nearest_others(
    vectors: Tensor, nearest: int, exact_up_to: int = MAX_EXACT_NEIGHBOURS
) -> tuple[Tensor, Tensor]:
    """Cosines (n, k) and numbers (n, k) of the k unit vectors most like each of (n, d), itself left out.

    k is `nearest`, or less where there are fewer others. Inverted lists may find fewer: what is missing has
    cosine -1 and repeats the vector itself. Of float16 vectors cosines are float16 and numbers int32.
    """
    nearest = min(nearest, len(vectors) - 1)
    if len(vectors) > exact_up_to:
        return _by_cells(vectors, nearest)
    cosines, numbers = [], []
    vectors = full(vectors)
    for start in range(0, len(vectors), BLOCK_ROWS):
        block = vectors[start : start + BLOCK_ROWS] @ vectors.T  # (Q, n)
        block.diagonal(start).fill_(-torch.inf)
        best = block.topk(nearest, dim=1)
        cosines.append(best.values)
        numbers.append(best.indices)
    return torch.cat(cosines), torch.cat(numbers)


def _by_cells(vectors: Tensor, nearest: int) -> tuple[Tensor, Tensor]:
    cells = sort_into_cells(vectors)
    cosines = vectors.new_full((len(vectors), nearest), -1.0)
    kind = torch.int32 if vectors.dtype == torch.float16 else torch.int64
    numbers = torch.arange(len(vectors), dtype=kind, device=vectors.device)[:, None].repeat(1, nearest)
    for cell, others in enumerate(nearest_cells(cells).tolist()):
        asked = cells.of(cell)  # (Q,)
        compared = torch.cat([cells.of(one) for one in others])  # (P,), asked first
        if not len(asked) or len(compared) < 2:
            continue
        pool = full(vectors[compared])  # (P, d)
        block = pool[: len(asked)] @ pool.T  # (Q, P)
        block.diagonal().fill_(-1.0)
        k = min(nearest, len(compared) - 1)
        best = block.topk(k, dim=1)
        cosines[asked, :k] = best.values.to(cosines)
        numbers[asked, :k] = compared[best.indices].to(kind)
    return cosines, numbers


@torch.no_grad()
def sort_into_cells(vectors: Tensor) -> Cells:
    """Cells of about `MEMBERS_PER_CELL` of the unit vectors (n, d), none of more than `MOST_MEMBERS`."""
    centres = _centres(vectors, max(1, len(vectors) // MEMBERS_PER_CELL))  # (L, d)
    groups = _grouped(centres)
    parts = torch.split(vectors, CONVERTED_ROWS)
    cell_of = torch.cat([nearest_centre(full(part), centres, groups) for part in parts])  # (n,)
    members = torch.argsort(cell_of, stable=True)  # (n,)
    parent, starts = [], [0]
    for cell, count in enumerate(torch.bincount(cell_of, minlength=len(centres)).tolist()):
        first, end = starts[-1], starts[-1] + count
        bounds = [*range(first + MOST_MEMBERS, end, MOST_MEMBERS), end] if count else []
        starts += bounds
        parent += [cell] * len(bounds)
    return Cells(centres[torch.tensor(parent, device=centres.device)], members, tuple(starts))


def nearest_cells(cells: Cells, probed: int = PROBED_CELLS) -> Tensor:
    """(L, p): for each cell those nearest to it, its own first."""
    nearest = []
    for start in range(0, len(cells), BLOCK_ROWS):
        block = cells.centres[start : start + BLOCK_ROWS] @ cells.centres.T
        block.diagonal(start).fill_(torch.inf)
        nearest.append(block.topk(min(probed, len(cells)), dim=1).indices)
    return torch.cat(nearest)


def nearest_centre(points: Tensor, centres: Tensor, groups: Cells | None) -> Tensor:
    """(n,): the centre nearest to each of the points (n, d); of many, among the `groups` nearest to it."""
    if groups is None:
        return (points @ centres.T).argmax(1)
    best = points.new_full((len(points),), -torch.inf)
    centre_of = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    probed = (points @ groups.centres.T).topk(min(PROBED_GROUPS, len(groups)), dim=1).indices  # (n, p)
    for group in range(len(groups)):
        near = (probed == group).any(1).nonzero()[:, 0]
        candidates = groups.of(group)
        if not len(near):
            continue
        cosines, places = (points[near] @ centres[candidates].T).max(1)
        closer = cosines > best[near]
        best[near[closer]] = cosines[closer]
        centre_of[near[closer]] = candidates[places[closer]]
    return centre_of


def _grouped(centres: Tensor) -> Cells | None:
    """Centres sorted into about as many groups as each then has members; None where they are few."""
    if len(centres) <= MAX_COMPARED_CENTRES:
        return None
    heads = _centres(centres, int(len(centres) ** 0.5))
    group_of = (centres @ heads.T).argmax(1)
    counts = torch.bincount(group_of, minlength=len(heads))
    starts = counts[counts > 0].cumsum(0).tolist()
    return Cells(heads[counts > 0], torch.argsort(group_of, stable=True), (0, *starts))


def _centres(vectors: Tensor, cells: int) -> Tensor:
    """(cells, d) unit centres of spherical k-means on a sample."""
    draws = StableRandom("cells", len(vectors))
    sample = torch.from_numpy(draws.choice(len(vectors), KMEANS_SAMPLE_PER_CELL * cells)).to(vectors.device)
    points = full(vectors[sample])
    centres = points[:cells].clone()
    for _ in range(KMEANS_STEPS):
        groups = _grouped(centres)
        parts = torch.split(points, CONVERTED_ROWS)
        nearest = torch.cat([nearest_centre(part, centres, groups) for part in parts])
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        empty = sums.norm(dim=1) == 0
        centres = torch.where(empty[:, None], centres, normalize(sums, dim=1))
    return centres
