"""The fused awareness score for images of more regions than one block holds, as 196 or 256 patches.

The cosines of all words with some images are one matrix product. A kernel then goes through the regions of an
image block by block, twice: the best cosine first, then everything that depends on it. What is kept per image
is bounded by `MAX_COSINE_BYTES`; the images are taken in as many parts as that needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pmpguard.kernels.awareness.fused import REGION_BLOCK, Launch, Operands
from pmpguard.kernels.dispatch import wide_product
from pmpguard.models.attention.awareness import NEGATIVE_SLOPE, SMALLEST_CONTEXT

MAX_COSINE_BYTES = 1 << 29  # of the cosines that are held at once


def image_parts(operands: Operands) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Some images at a time: which, their cosines (R, I', N) and Gram matrices in two halves (I', N, N)."""
    images, columns, _ = operands.regions.shape
    rows = len(operands.words)
    at_once = max(1, MAX_COSINE_BYTES // max(1, 4 * rows * columns))
    for first in range(0, images if rows else 0, at_once):
        some = slice(first, min(first + at_once, images))
        regions = operands.regions[some]  # (I', N, d)
        cosines = wide_product(operands.words, regions.flatten(0, 1).T).view(rows, -1, columns)
        gram = wide_product(regions, regions.transpose(1, 2))
        high = gram.half()
        yield some, cosines, high, (gram - high.float()).half()


def arguments(operands: Operands, cosines: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, ...]:
    """What both kernels read, in the order of their parameters."""
    mask = operands.boundary if operands.region_mask is None else operands.region_mask  # never read if None
    return cosines, operands.rows.caption, operands.share, high, low, mask, operands.boundary


def options(operands: Operands, launch: Launch) -> dict[str, Any]:
    """What the kernels are compiled for."""
    return {
        "N": operands.regions.shape[1], "BLOCK_M": launch.rows, "BLOCK_N": REGION_BLOCK,
        "MASKED": operands.region_mask is not None, "num_warps": launch.warps, "num_stages": 2,
    }  # fmt: skip


def forward_scores(operands: Operands, captions: int, n: int, sharpness: float, launch: Launch) -> Tensor:
    """(T, I)."""
    from pmpguard.kernels.awareness.many_regions_triton import forward_kernel

    images, blocks = len(operands.regions), len(operands.words) // launch.rows
    scores = torch.zeros(captions, images, device=operands.words.device)  # (T, I)
    for some, *held in image_parts(operands):
        count = some.stop - some.start
        forward_kernel[(blocks, count)](
            *arguments(operands, *held), scores, some.start, images, count, n,
            sharpness, NEGATIVE_SLOPE, SMALLEST_CONTEXT, **options(operands, launch),
        )  # fmt: skip
    return scores


def gradients(
    operands: Operands, incoming: Tensor, n: int, sharpness: float, launch: Launch, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """By rows of words (R, d) and by padded regions (I, N, d), both float32; incoming (T, I) float32.

    Gradients by cosines are kept as `kind`.
    """
    from pmpguard.kernels.awareness.many_regions_triton import backward_kernel

    images, _, dim = operands.regions.shape
    blocks = len(operands.words) // launch.rows
    words, regions = operands.words.to(kind), operands.regions.to(kind)
    by_words = torch.zeros(len(words), dim, device=words.device)
    by_regions = torch.zeros(operands.regions.shape, device=words.device)
    for some, cosines, *grams in image_parts(operands):
        count = some.stop - some.start
        by_cosines, raws, weighted = (torch.empty_like(cosines, dtype=kind) for _ in range(3))  # (R, I', N)
        backward_kernel[(blocks, count)](
            *arguments(operands, cosines, *grams), incoming, by_cosines, raws, weighted,
            some.start, images, count, n, sharpness, NEGATIVE_SLOPE, SMALLEST_CONTEXT,
            **options(operands, launch),
        )  # fmt: skip
        by_gram = wide_product(weighted.permute(1, 2, 0), raws.transpose(0, 1))  # (I', N, N)
        flat, chosen = by_cosines.flatten(1), regions[some]  # (R, I' * N), (I', N, d)
        by_words += wide_product(flat, chosen.flatten(0, 1))
        through_cosines = wide_product(flat.T, words).view(chosen.shape)
        torch.baddbmm(through_cosines, by_gram, chosen.float(), out=by_regions[some])
    return by_words, by_regions
