"""All pairs on a CPU without gradients: what `awareness_scores` and `CrossGatedAttention` give, faster.

Words are packed without padding. Captions of equal length m form blocks of C captions laid out position by
position, (m, C), so that every sum runs over an outer axis and the inner loop stays contiguous. Blocks are
small enough for the cache of one core, and each core works on its own block: threads never wait for each
other between operations.

Only for images without masked regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.kernels.thread_pool import on_every_core
from pmpguard.models.attention.awareness import NEGATIVE_SLOPE, SHARPNESS, SMALLEST_CONTEXT
from pmpguard.models.attention.cross_gated import CrossGatedAttention, own_part, seen_part

MAX_IMAGES_HELD = 512  # whose Gram matrices or gate products are held
MAX_SHARPNESS = 40.0  # exp(sharpness * cosine) is squared unshifted in float32
MAX_BLOCK_WORDS = 704  # of awareness attention
MAX_BLOCK_COLUMNS = 5632  # whose cosines with all regions stay in the cache of a core
MAX_GATED_BLOCK_WORDS = 176  # of cross-gated attention
MAX_GATED_BLOCK_PAIRS = 128
BLOCKS_PER_TASK = 8

ScoreBlocks = Callable[[Sequence[Tensor], Sequence[Tensor], int], Tensor]


@dataclass(frozen=True)
class CaptionBlock:
    """C captions of m words each: which captions, and where their words lie among the packed ones."""

    captions: Tensor  # (C,)
    words: slice  # of length m * C, position by position
    length: int  # m
    images: int  # how many images to score at once


@torch.no_grad()
def packed_awareness_scores(
    words: Tensor, word_mask: Tensor, regions: Tensor, boundary: float, sharpness: float = SHARPNESS
) -> Tensor:
    """`awareness_scores` in float32: words (T, m, d), word_mask (T, m), regions (I, n, d) -> (T, I).

    Words are multiplied by the sharpness beforehand, which saves multiplying the cosines.
    """
    packed, blocks = pack_captions(words, word_mask, MAX_BLOCK_WORDS, awareness_images)
    return awareness_of_blocks(packed, blocks, regions, len(words), boundary, sharpness)


def awareness_of_blocks(
    packed: Tensor,
    blocks: Sequence[CaptionBlock],
    regions: Tensor,
    captions: int,
    boundary: float,
    sharpness: float,
) -> Tensor:
    """Scores (T, I) of packed words (W, d) with regions (I, n, d)."""
    scaled = packed * sharpness  # (W, d)
    columns = []
    for start in range(0, len(regions), MAX_IMAGES_HELD):
        some = regions[start : start + MAX_IMAGES_HELD].float().contiguous()  # (I', n, d)
        gram = torch.bmm(some, some.transpose(1, 2))  # (I', n, n)
        score = partial(_awareness_block, boundary=boundary, sharpness=sharpness)
        columns.append(score_blocks(score, blocks, [scaled], [some, gram], captions))
    return torch.cat(columns, dim=1) if columns else torch.zeros(captions, 0)


def _awareness_block(
    by_word: Sequence[Tensor], by_image: Sequence[Tensor], length: int, *, boundary: float, sharpness: float
) -> Tensor:
    """[(m * C, d) times the sharpness], [(I, n, d), (I, n, n)] -> (I, C). Three buffers are used over."""
    (words,) = by_word
    regions, gram = by_image
    images, n, dim = regions.shape
    s = (regions.view(images * n, dim) @ words.T).view(images, n, -1)  # (I, n, mC) sharpness * cosine
    best = s.amax(1)  # (I, mC)

    raw = s.exp()
    # Passing is decided on the exponential, which is monotone; -inf before exp would be slow.
    torch.threshold_(raw, math.exp(sharpness * max(-2.0, min(boundary, 2.0))), 0.0)
    spare = torch.bmm(gram, raw)  # (I, n, mC)
    length_squared = spare.mul_(raw).sum(1)  # (I, mC) |c|^2
    along = torch.mul(raw, s, out=spare).sum(1)  # (I, mC) sharpness * u . c
    has_direction = length_squared > SMALLEST_CONTEXT * torch.exp(2 * best)
    feature = torch.where(has_direction, along / length_squared.clamp(min=1e-37).sqrt(), 0.0)

    leaky: Tensor = torch.ops.aten.leaky_relu.out(s, NEGATIVE_SLOPE, out=raw)
    by_position = (images, n, length, -1)
    energy = torch.mul(leaky, leaky, out=spare).view(by_position).sum(2, keepdim=True)  # (I, n, 1, C)
    leaky.view(by_position).mul_(sharpness * energy.clamp(min=1e-37).rsqrt())
    weight = leaky.exp_()
    total = weight.sum(1)  # (I, mC)
    relevance = weight.mul_(s).sum(1) / total  # (I, mC) times the sharpness

    negative = (best - sharpness * boundary).clamp_(max=0)
    return (feature + relevance + negative).view(images, length, -1).sum(1) / (length * sharpness)


@torch.no_grad()
def packed_gated_cosines(
    attention: CrossGatedAttention, words: Tensor, word_mask: Tensor, regions: Tensor
) -> Tensor:
    """`attention(words, word_mask, regions)` in float32: (T, m, d), (T, m), (I, n, d) -> (T, I).

    The gates are (1 + tanh(x / 2)) / 2, with x halved beforehand: tanh is faster than the sigmoid, and what
    is left of the factor 2 does not change a cosine.
    """
    packed, blocks = pack_captions(words, word_mask, MAX_GATED_BLOCK_WORDS, gated_images)  # (W, d)
    word_gate, region_gate = attention.word_gate, attention.region_gate
    by_word = [
        attention.rotate(packed),
        packed,
        own_part(word_gate, packed) / 2,
        seen_part(region_gate, packed) / 2,
    ]
    columns = []
    for start in range(0, len(regions), MAX_IMAGES_HELD):
        some = regions[start : start + MAX_IMAGES_HELD].float().contiguous()  # (I', n, d)
        seen_and_some = torch.cat([seen_part(word_gate, some) / 2, some], dim=-1)  # (I', n, 2d)
        by_image = [some, seen_and_some, own_part(region_gate, some) / 2, some.sum(1)]
        columns.append(score_blocks(_gated_block, blocks, by_word, by_image, len(words)))
    return torch.cat(columns, dim=1) if columns else torch.zeros(len(words), 0)


def _gated_block(by_word: Sequence[Tensor], by_image: Sequence[Tensor], length: int) -> Tensor:
    """Four (m * C, d), then (I, n, d), (I, n, 2d), (I, n, d), (I, d) -> (I, C).

    With T = tanh(x / 2), twice a gated word is u + vt + T * (u - vt), and twice a gated region is
    (1 + T) * v + (1 - T) * ut. The sum over regions of the second half is the sum over words of
    u_i * sum_j beta_ji (1 - T_j): m vectors instead of n contexts. What has d numbers for every region is
    made image by image in one buffer.
    """
    rotated, words, own_word, seen_region = by_word
    regions, seen_and_regions, own_region, region_sum = by_image
    images, n, dim = regions.shape
    logits = (regions.view(images * n, dim) @ rotated.T).view(images, n, -1)  # (I, n, mC)
    over_regions = logits.softmax(1).transpose(1, 2)  # (I, mC, n) alpha
    over_words = logits.view(images, n, length, -1).softmax(2)  # (I, n, m, C) beta
    over_words = over_words.permute(0, 3, 1, 2).contiguous()  # (I, C, n, m)
    captions = over_words.shape[1]
    words_of = words.view(length, captions, dim).transpose(0, 1).contiguous()  # (C, m, d)
    seen_of = seen_region.view(length, captions, dim).transpose(0, 1).contiguous()  # (C, m, d)

    both = torch.empty(length * captions, 2 * dim)
    word_tilt, context = both.chunk(2, dim=1)  # (mC, d) each
    mixed = torch.empty(length * captions, dim)
    by_position = mixed.view(length, captions, dim)
    tilt = torch.empty(captions, n, dim)
    gated_words = torch.empty(images, captions, dim)
    from_regions = torch.empty(images, captions, dim)
    attended = torch.empty(images, captions, length, dim)
    inputs = (over_regions, seen_and_regions, over_words, over_words.transpose(2, 3), own_region, regions)
    outputs = (gated_words, attended, from_regions)
    per_image = zip(*(tensor.unbind() for tensor in (*inputs, *outputs)), strict=True)
    for alpha, seen_and_region, beta, beta_t, own, region, gated, sums, from_region in per_image:
        torch.mm(alpha, seen_and_region, out=both)
        word_tilt.add_(own_word).tanh_()
        torch.sub(words, context, out=mixed).mul_(word_tilt).add_(context)
        torch.sum(by_position, 0, out=gated)
        torch.bmm(beta, seen_of, out=tilt).add_(own).tanh_()
        torch.bmm(beta_t, tilt, out=sums)  # sum_j beta_ji T_j
        torch.sum(tilt.mul_(region), 1, out=from_region)
    gated_words += words_of.sum(1)
    share = over_words.sum(2)[..., None]  # (I, C, m, 1) sum_j beta_ji
    from_words = torch.sub(share, attended, out=attended).mul_(words_of).sum(2)  # (I, C, d)
    gated_regions = from_regions.add_(from_words).add_(region_sum[:, None])  # (I, C, d)
    return (normalize(gated_words, dim=-1) * normalize(gated_regions, dim=-1)).sum(-1)


def awareness_images(captions: int, length: int) -> int:
    """Images per block of awareness attention."""
    return max(1, MAX_BLOCK_COLUMNS // (captions * length))


def gated_images(captions: int, length: int) -> int:
    """Images per block of cross-gated attention."""
    return max(1, MAX_GATED_BLOCK_PAIRS // captions)


def pack_captions(
    words: Tensor, word_mask: Tensor, words_per_block: int, images_per_block: Callable[[int, int], int]
) -> tuple[Tensor, list[CaptionBlock]]:
    """The unmasked words (W, d) in the order of the blocks, and the blocks; empty captions are in none."""
    places, blocks = blocks_by_length(word_mask, words_per_block, images_per_block)
    return words.flatten(0, 1)[places].float(), blocks


def blocks_by_length(
    word_mask: Tensor, words_per_block: int, images_per_block: Callable[[int, int], int]
) -> tuple[Tensor, list[CaptionBlock]]:
    """Where each packed word comes from, (W,) places among the T * m of word_mask (T, m), and the blocks."""
    lengths = word_mask.sum(1)  # (T,)
    first = lengths.cumsum(0) - lengths  # (T,) where a caption's words begin among all unmasked words
    blocks: list[CaptionBlock] = []
    orders = [torch.zeros(0, dtype=torch.long)]
    end = 0
    for length in sorted(set(lengths.tolist()) - {0}):
        alike = torch.nonzero(lengths == length)[:, 0]  # captions of this length
        size = max(1, words_per_block // length)
        for start in range(0, len(alike), size):
            captions = alike[start : start + size]  # (C,)
            order = (first[captions] + torch.arange(length)[:, None]).flatten()  # (m * C,)
            images = images_per_block(len(captions), length)
            blocks.append(CaptionBlock(captions, slice(end, end + len(order)), length, images))
            orders.append(order)
            end += len(order)
    unmasked = torch.nonzero(word_mask.flatten())[:, 0]  # (W,)
    return unmasked[torch.cat(orders)], blocks


def score_blocks(
    score: ScoreBlocks,
    blocks: Sequence[CaptionBlock],
    by_word: Sequence[Tensor],
    by_image: Sequence[Tensor],
    captions: int,
) -> Tensor:
    """Scores (T, I) from score(tensors of a block's words, tensors of some images, m) -> (I', C)."""
    images = len(by_image[0])
    scores = torch.zeros(captions, images)  # (T, I)

    def fill(task: tuple[CaptionBlock, int]) -> None:
        block, first = task
        words = [tensor[block.words] for tensor in by_word]
        for start in range(first, min(first + BLOCKS_PER_TASK * block.images, images), block.images):
            some = slice(start, start + block.images)
            part = score(words, [tensor[some] for tensor in by_image], block.length)  # (I', C)
            scores[block.captions, some] = part.T

    tasks = [(block, first) for block in blocks for first in range(0, images, BLOCKS_PER_TASK * block.images)]
    on_every_core(fill, tasks)
    return scores
