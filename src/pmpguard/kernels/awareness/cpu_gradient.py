"""Awareness scores with gradients on a CPU, block by block as in `packed_scoring.py`.

Nothing of the forward pass is kept but the packed words: on the way back each block computes its cosines
again and turns gradients by scores into gradients by cosines while they lie in the cache of a core. Two
matrix products then lead to words and regions. Blocks write to places of their own, or are summed up in
their order, so that the result does not depend on which thread was first.

Only for images without masked regions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pmpguard.kernels.packed_scoring import (
    MAX_BLOCK_WORDS,
    CaptionBlock,
    awareness_images,
    awareness_of_blocks,
    blocks_by_length,
)
from pmpguard.kernels.thread_pool import on_every_core
from pmpguard.models.attention.awareness import NEGATIVE_SLOPE, SHARPNESS, SMALLEST_CONTEXT

# exp(-2 * sharpness), divided by the square of a number of regions, is a float32 up to here
MAX_GRADIENT_SHARPNESS = 20.0
MAX_GRADIENT_BYTES = 1 << 28  # of gradients by cosines that are held at once


def packed_awareness_with_gradient(
    words: Tensor, word_mask: Tensor, regions: Tensor, boundary: float, sharpness: float = SHARPNESS
) -> Tensor:
    """`awareness_scores` in float32: words (T, m, d), word_mask (T, m), regions (I, n, d) -> (T, I)."""
    scores: Tensor = _PackedAwareness.apply(words, word_mask, regions, boundary, sharpness)  # type: ignore[no-untyped-call]
    return scores


class _PackedAwareness(torch.autograd.Function):
    """Keeps packed words and regions; cosines are computed again on the way back."""

    @staticmethod
    def forward(
        ctx: Any, words: Tensor, word_mask: Tensor, regions: Tensor, boundary: float, sharpness: float
    ) -> Tensor:
        places, ctx.blocks = blocks_by_length(word_mask, MAX_BLOCK_WORDS, awareness_images)
        packed = words.flatten(0, 1)[places]  # (W, d)
        ctx.save_for_backward(places, packed, regions)
        ctx.shape, ctx.options = words.shape, (boundary, sharpness)
        return awareness_of_blocks(packed, ctx.blocks, regions, len(words), boundary, sharpness)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        places, packed, regions = ctx.saved_tensors
        by_packed, by_regions = packed_gradients(packed, ctx.blocks, regions, incoming[0], *ctx.options)
        by_words = packed.new_zeros(ctx.shape)  # (T, m, d)
        by_words.view(-1, ctx.shape[-1])[places] = by_packed
        return by_words, None, by_regions, None, None


@torch.no_grad()
def packed_gradients(
    packed: Tensor,
    blocks: Sequence[CaptionBlock],
    regions: Tensor,
    incoming: Tensor,
    boundary: float,
    sharpness: float,
) -> tuple[Tensor, Tensor]:
    """By packed words (W, d) and by regions (I, n, d), from gradients by scores (T, I)."""
    by_packed, by_regions = torch.zeros_like(packed), torch.zeros_like(regions)
    per_image = 4 * regions.shape[1] * max(1, len(packed))
    at_once = max(1, MAX_GRADIENT_BYTES // per_image)
    for first in range(0, len(regions), at_once):
        chunk = slice(first, first + at_once)
        by_words, by_regions[chunk] = _images_gradients(
            packed, blocks, regions[chunk].contiguous(), incoming[:, chunk], boundary, sharpness
        )
        by_packed += by_words
    return by_packed, by_regions


def _images_gradients(
    packed: Tensor,
    blocks: Sequence[CaptionBlock],
    regions: Tensor,
    incoming: Tensor,
    boundary: float,
    sharpness: float,
) -> tuple[Tensor, Tensor]:
    """As `packed_gradients`, holding the gradients by all cosines."""
    images, n, dim = regions.shape
    gram = torch.bmm(regions, regions.transpose(1, 2))  # (I, n, n)
    by_gram = torch.zeros_like(gram)
    by_cosines = torch.empty(images, n, len(packed))  # (I, n, W)

    def fill(task: tuple[CaptionBlock, int]) -> tuple[slice, Tensor]:
        block, start = task
        some = slice(start, start + block.images)
        gradient = (incoming[block.captions, some] / block.length).T.repeat(1, block.length)  # (I', mC)
        cosines = (regions[some].flatten(0, 1) @ packed[block.words].T).view(-1, n, gradient.shape[1])
        by_cosine, by_some_gram = block_gradients(
            cosines, gram[some], gradient, block.length, boundary, sharpness
        )
        by_cosines[some, :, block.words] = by_cosine
        return some, by_some_gram

    tasks = [(block, start) for block in blocks for start in range(0, images, block.images)]
    for some, part in on_every_core(fill, tasks):
        by_gram[some] += part
    flat = by_cosines.view(images * n, -1)  # (I * n, W)
    by_words = flat.T @ regions.view(images * n, dim)
    return by_words, torch.baddbmm((flat @ packed).view_as(regions), by_gram, regions)


def block_gradients(
    s: Tensor, gram: Tensor, gradient: Tensor, length: int, boundary: float, sharpness: float
) -> tuple[Tensor, Tensor]:
    """By cosines (I, n, mC), and twice that by Gram matrices (I, n, n).

    s (I, n, mC) of captions position by position, gram (I, n, n), gradient (I, mC) by the evidence of words.
    """
    best = s.amax(1)  # (I, mC)
    raw = (s * sharpness).exp_()
    torch.threshold_(raw, math.exp(sharpness * max(-2.0, min(boundary, 2.0))), 0.0)
    product = torch.bmm(gram, raw)  # (I, n, mC)
    spare = raw * product
    length_squared = spare.sum(1)  # (I, mC) |c|^2
    along = torch.mul(raw, s, out=spare).sum(1)  # (I, mC) u . c
    has_direction = length_squared > SMALLEST_CONTEXT * torch.exp(2 * sharpness * best)
    inverse = torch.where(has_direction, length_squared.clamp(min=1e-37).rsqrt(), 0.0)  # (I, mC)
    bend = along * inverse * inverse * inverse  # minus twice the gradient of the feature evidence by |c|^2
    torch.mul(raw, (-bend * gradient)[:, None], out=spare)
    by_gram = torch.bmm(spare, raw.transpose(1, 2))  # (I, n, n)
    # raw * (inverse + sharpness * (s * inverse - product * bend))
    found = torch.mul(s, (sharpness * inverse)[:, None], out=spare)
    found.addcmul_(product, bend[:, None], value=-sharpness).add_(inverse[:, None]).mul_(raw)

    missing = best <= boundary  # (I, mC) words with negative evidence
    if missing.any():
        highest = torch.eq(s, best[:, None], out=product)  # (I, n, mC)
        found.addcmul_(highest, (missing / highest.sum(1))[:, None])

    by_position = (len(s), s.shape[1], length, -1)
    logits: Tensor = torch.ops.aten.leaky_relu.out(s, NEGATIVE_SLOPE, out=raw)
    energy = torch.mul(logits, logits, out=product).view(by_position).sum(2, keepdim=True)  # (I, n, 1, C)
    scale = energy.clamp(min=1e-37).rsqrt()
    logits.view(by_position).mul_(scale)
    weight = torch.mul(logits, sharpness, out=product).exp_()
    weight /= weight.sum(1, keepdim=True)
    found += weight
    relevance = (weight * s).sum(1, keepdim=True)  # (I, 1, mC)
    change = weight.mul_((s - relevance).mul_(sharpness))  # by logits
    through_norm = (change * logits).view(by_position).sum(2, keepdim=True)  # (I, n, 1, C)
    change.view(by_position).addcmul_(logits.view(by_position), through_norm, value=-1).mul_(scale)
    found += torch.ops.aten.leaky_relu_backward(change, s, NEGATIVE_SLOPE, False)
    return found.mul_(gradient[:, None]), by_gram
