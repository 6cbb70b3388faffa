"""Cross-gated attention's cosines of all pairs on a GPU in one kernel, with gradients.

The products that belong to one fragment (W_a u, and the own and seen parts of the gates) are made here with
torch, in float32. All that belongs to a pair, from the attention to the cosine, stays on the chip: the kernel
writes three numbers per pair. Its products take float16, whose 11 bits hold a bfloat16 exactly and cost a
float32 the accuracy TF32 has; sums are float32.

What the kernel cannot do goes to `CrossGatedAttention`, which is also the reference: other devices, no
Triton, double precision, captions of more than 64 words or images of more than 64 regions.

Captions are padded to 16, 32 or 64 words. Without gradients those of similar length go together, for which
the host waits. With gradients, and while a CUDA graph is captured, nothing waits: captions are sorted on the
device where `longer_than` says how many of them are short, else all are as wide as the longest.

On the way back, some images at a time, one kernel makes attention and its gradient for every pair, one goes
through the images for each caption, and one through the captions for each image. Each gradient is summed in
a fixed order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from pmpguard.kernels.awareness.fused import fits_kernel
from pmpguard.kernels.caption_blocks import LongerThan, caption_ends
from pmpguard.kernels.dispatch import wide_product
from pmpguard.models.attention.cross_gated import CrossGatedAttention, seen_part

MAX_FRAGMENTS = 64
MAX_CAPTIONS_AT_ONCE = 16384  # without gradients
VECTOR_BLOCK = 64  # numbers of a vector that a program holds at a time
CAPTIONS_PER_PROGRAM = {16: 4, 32: 2, 64: 1}  # by the width captions are padded to
GROUP = 16  # groups of captions that programs running together share
MAX_GRADIENT_BYTES = 1 << 29
GRADIENT_PEAK = 64.0  # incoming gradients are scaled to it, so that float16 holds what is made of them
FORWARD_LAUNCH = {"num_warps": 4, "num_stages": 2}
BACKWARD_LAUNCH = {"num_warps": 4, "num_stages": 2}


# Captions from one number to another, and the words they are cut to.
Parts = tuple[tuple[int, int, int], ...]


class Captions(NamedTuple):
    """Vectors across, (T, D, L) float16: one column per word, zeros where padded."""

    rotated: Tensor
    words: Tensor
    own: Tensor  # without the bias
    seen: Tensor  # by the gates of regions


class Images(NamedTuple):
    """Vectors across, (I, D, N) float16: one column per region, zeros where padded."""

    regions: Tensor
    seen: Tensor  # by the gates of words
    own: Tensor  # without the bias


def gated_cosines_fused(
    attention: CrossGatedAttention,
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    region_mask: Tensor | None = None,
    longer_than: LongerThan | None = None,
) -> Tensor:
    """`attention(words, word_mask, regions, region_mask)`: (T, m, d), (T, m), (I, n, d), (I, n) -> (T, I).

    `longer_than` holds (words, captions): at most so many captions end after so many words. It makes training
    faster; should it be wrong, the cosines are not numbers.
    """
    if not fits_gated_kernel(words, word_mask, regions, region_mask):
        return attention.forward(words, word_mask, regions, region_mask)
    if region_mask is None:
        region_mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
    word_gate, region_gate, dim = attention.word_gate, attention.region_gate, words.shape[2]
    regions = regions.float().masked_fill(~region_mask[..., None], 0.0)
    by_image = regions, seen_part(word_gate, regions), linear(regions, region_gate.weight[:, :dim])

    def cosines(words: Tensor, word_mask: Tensor, parts: Parts) -> Tensor:
        words = words.float().masked_fill(~word_mask[..., None], 0.0)
        by_word = (
            attention.rotate(words),
            words,
            linear(words, word_gate.weight[:, :dim]),
            seen_part(region_gate, words),
        )
        biases = word_gate.bias, region_gate.bias
        scores: Tensor = _GatedCosines.apply(parts, word_mask, region_mask, *biases, *by_word, *by_image)  # type: ignore[no-untyped-call]
        return scores

    capturing = words.is_cuda and torch.cuda.is_current_stream_capturing()
    if not torch.is_grad_enabled() and not capturing:
        return _by_width(cosines, words, word_mask, len(regions))
    captions, longest = word_mask.shape
    parts = parts_by_width(captions, longest, longer_than or ())
    if parts == ((0, captions, longest),):
        return cosines(words, word_mask, parts)
    ends, order = caption_ends(word_mask).sort(descending=True, stable=True)  # (T,), (T,)
    scores = cosines(words.index_select(0, order), word_mask[order], parts)
    too_long = torch.stack([ends[first] > width for first, _, width in parts]).any()
    return scores.index_select(0, order.argsort()).masked_fill(too_long, torch.nan)


def parts_by_width(captions: int, longest: int, longer_than: LongerThan) -> Parts:
    """Captions, longest first, cut to as few words as `longer_than` allows.

    >>> parts_by_width(256, 40, ((16, 30), (32, 2)))
    ((0, 2, 40), (2, 30, 32), (30, 256, 16))
    """
    counts = dict(longer_than)
    parts, first, words = [], 0, longest
    for width in sorted(CAPTIONS_PER_PROGRAM, reverse=True):
        if width < longest and width in counts:
            last = min(counts[width], captions)
            parts.append((first, last, words))
            first, words = last, width
    parts.append((first, captions, words))
    return tuple(part for part in parts if part[0] < part[1])


def fits_gated_kernel(words: Tensor, word_mask: Tensor, regions: Tensor, region_mask: Tensor | None) -> bool:
    """Whether the kernel holds these and the device is one it runs on."""
    longest = max(words.shape[1], regions.shape[1])
    return longest <= MAX_FRAGMENTS and fits_kernel(words, word_mask, regions, region_mask)


def _by_width(cosines: Any, words: Tensor, word_mask: Tensor, images: int) -> Tensor:
    """Captions of similar length together, cut after their last word. The host waits for the lengths."""
    ends = caption_ends(word_mask)  # (T,)
    scores = torch.zeros(len(words), images, device=words.device)
    shortest = 1  # captions without words keep 0
    for width in CAPTIONS_PER_PROGRAM:
        alike = torch.nonzero((ends >= shortest) & (ends <= width))[:, 0]
        for rows in torch.split(alike, MAX_CAPTIONS_AT_ONCE):
            if len(rows):
                own = word_mask[rows, :width]
                scores[rows] = cosines(words[rows, :width], own, ((0, *own.shape),))
        shortest = width + 1
    return scores


def padded_width(fragments: int) -> int:
    """16, 32 or 64."""
    return max(16, 1 << (fragments - 1).bit_length())


def across(vectors: Tensor, width: int, count: int) -> Tensor:
    """(B, k, d) -> (count, D, width) float16, padded with zeros; D is a whole number of chunks."""
    items, fragments, dim = vectors.shape
    columns = vectors.transpose(1, 2).half()  # (B, d, k)
    return pad(columns, (0, width - fragments, 0, -dim % VECTOR_BLOCK, 0, count - items)).contiguous()


def along(columns: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(count, D, width) -> (B, k, d), the padding cut off."""
    items, fragments, dim = shape
    return columns[:items, :dim, :fragments].transpose(1, 2)


def padded_mask(mask: Tensor, width: int, count: int) -> Tensor:
    """(B, k) bool -> (count, width) uint8."""
    return pad(mask.to(torch.uint8), (0, width - mask.shape[1], 0, count - len(mask))).contiguous()


class Operands(NamedTuple):
    """What all kernels read."""

    captions: Captions
    word_mask: Tensor  # (T, L) uint8
    images: Images
    region_mask: Tensor  # (I, N) uint8
    word_bias: Tensor  # (D,) float32
    region_bias: Tensor  # (D,) float32

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the kernels' parameters."""
        return (
            *self.captions, self.word_mask, *self.images, self.region_mask, self.word_bias, self.region_bias
        )  # fmt: skip


def pair_sums(operands: Operands) -> Tensor:
    """|P|^2, |Q|^2 and P.Q of the pooled gated fragments of every pair: (T, I, 3)."""
    from pmpguard.kernels.cross_gated.triton_kernels import forward_kernel

    captions, images = operands.captions, operands.images
    count, dim, width = captions.words.shape
    per_program = CAPTIONS_PER_PROGRAM[width]
    groups, pixels = count // per_program, len(images.regions)
    sums = torch.empty(count, pixels, 3, device=captions.words.device)
    forward_kernel[(groups * pixels,)](
        *operands.tensors(), sums, groups, pixels,
        D=dim, L=width, N=images.regions.shape[2], BLOCK_D=VECTOR_BLOCK,
        CAPTIONS=per_program, GROUP=GROUP, **FORWARD_LAUNCH,
    )  # fmt: skip
    return sums


def gradients(operands: Operands, sums: Tensor, incoming: Tensor, by_image: list[Tensor]) -> list[Tensor]:
    """By the tensors of `captions`, (T, D, L) float32; those of `images`, (I, D, N), are added to `by_image`.

    incoming (T, I) of about GRADIENT_PEAK: gradients by the logits are kept in float16.
    """
    from pmpguard.kernels.cross_gated.triton_kernels import pair_kernel, region_kernel, word_kernel

    captions, images = operands.captions, operands.images
    count, dim, width = captions.words.shape
    pixels, _, columns = images.regions.shape
    device = captions.words.device
    sizes = {"D": dim, "L": width, "N": columns, "BLOCK_D": VECTOR_BLOCK, **BACKWARD_LAUNCH}
    by_caption = [torch.zeros(count, dim, width, device=device) for _ in captions]
    rotated = rows_of(captions.rotated)  # (T * L, D)
    at_once = max(1, min(pixels, MAX_GRADIENT_BYTES // (6 * count * width * columns)))
    chunks = dim // VECTOR_BLOCK
    for first in range(0, pixels, at_once):
        some = min(at_once, pixels - first)
        alphas = torch.empty(count, some, columns, width, dtype=torch.float16, device=device)
        betas = torch.empty_like(alphas)
        by_logits = torch.empty(count * width, some * columns, dtype=torch.float16, device=device)
        pair_kernel[(count, some)](
            *operands.tensors(), sums, incoming, alphas, betas, by_logits, first, pixels, some, **sizes
        )  # fmt: skip
        biases = operands.word_bias, operands.region_bias
        shared = (*captions[1:], *images, *biases, sums, incoming, alphas, betas)
        word_kernel[(count, chunks)](*shared, *by_caption[1:], first, pixels, some, **sizes)
        region_kernel[(some, chunks)](*shared, *by_image, first, pixels, some, count, **sizes)
        chosen = slice(first, first + some)
        by_rotated = wide_product(by_logits, rows_of(images.regions[chosen])).view(count, width, dim)
        by_caption[0] += by_rotated.transpose(1, 2)
        by_regions = wide_product(by_logits.T, rotated).view(some, columns, dim)
        by_image[0][chosen] += by_regions.transpose(1, 2)
    return by_caption


def rows_of(columns: Tensor) -> Tensor:
    """(B, D, k) -> (B * k, D), to be multiplied with gradients by the logits."""
    return columns.transpose(1, 2).reshape(-1, columns.shape[1])


class _GatedCosines(torch.autograd.Function):
    """Keeps the float16 vectors and three numbers per pair; attention and gates are made again."""

    @staticmethod
    def forward(
        ctx: Any,
        parts: Parts,
        word_mask: Tensor,
        region_mask: Tensor,
        word_bias: Tensor,
        region_bias: Tensor,
        *vectors: Tensor,
    ) -> Tensor:
        by_word, by_image = vectors[:4], vectors[4:]
        columns, count = padded_width(region_mask.shape[1]), len(region_mask)
        images = Images(*(across(vector, columns, count) for vector in by_image))
        for_images = images, padded_mask(region_mask, columns, count)
        biases = [pad(bias.float(), (0, -len(bias) % VECTOR_BLOCK)) for bias in (word_bias, region_bias)]
        kept, cosines = [], []
        for first, last, words in parts:
            width = padded_width(words)
            count = -(-(last - first) // CAPTIONS_PER_PROGRAM[width]) * CAPTIONS_PER_PROGRAM[width]
            captions = Captions(*(across(vector[first:last, :words], width, count) for vector in by_word))
            mask = padded_mask(word_mask[first:last, :words], width, count)
            operands = Operands(captions, mask, *for_images, *biases)
            sums = pair_sums(operands)  # (T, I, 3)
            kept.append((operands, sums))
            cosines.append(cosine(sums[: last - first]))
        if any(ctx.needs_input_grad):
            ctx.parts, ctx.kept = parts, kept
            ctx.shapes = by_word[0].shape, by_image[0].shape
        return torch.cat(cosines)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        word_shape, region_shape = ctx.shapes
        dim = word_shape[2]
        gradient = incoming[0].float()  # (T, I)
        largest = gradient.abs().amax()
        scale = torch.where(largest > 0, GRADIENT_PEAK / largest, 1.0)
        by_word = [gradient.new_zeros(word_shape) for _ in Captions._fields]
        by_image = [torch.zeros_like(part, dtype=torch.float32) for part in ctx.kept[0][0].images]
        word_bias = gradient.new_zeros(dim)
        for (first, last, words), (operands, sums) in zip(ctx.parts, ctx.kept, strict=True):
            more = len(operands.word_mask) - (last - first)
            own = pad(gradient[first:last] * scale, (0, 0, 0, more)).contiguous()  # (T, I)
            by_caption = gradients(operands, sums, own, by_image)
            for whole, part in zip(by_word, by_caption, strict=True):
                cut = last - first, words, dim
                torch.div(along(part, cut), scale, out=whole[first:last, :words])
            word_bias += by_caption[2].sum((0, 2))[:dim] / scale
            del by_caption
        for part in by_image:
            part /= scale
        return (
            None,
            None,
            None,
            word_bias,
            by_image[2].sum((0, 2))[:dim],
            *by_word,
            *(along(part, region_shape) for part in by_image),
        )


def cosine(sums: Tensor) -> Tensor:
    """|P|^2, |Q|^2 and P.Q of every pair (T, I, 3) -> (T, I), 0 where one of them has no length."""
    word_square, region_square, product = sums.unbind(2)  # (T, I) each
    there = (word_square > 0) & (region_square > 0)
    lengths = torch.where(there, word_square, 1.0).sqrt() * torch.where(there, region_square, 1.0).sqrt()
    return torch.where(there, product / lengths, 0.0)
