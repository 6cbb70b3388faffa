"""Cross-gated attention's cosines of all pairs on a GPU in one kernel, with gradients.

The products that belong to one fragment (W_a u, and the own and seen parts of the gates) are made here with
torch, in float32. All that belongs to a pair, from the attention to the cosine, stays on the chip: the kernel
writes three numbers per pair. Its products take float16, whose 11 bits hold a bfloat16 exactly and cost a
float32 the accuracy TF32 has; sums are float32.

What the kernel cannot do goes to `CrossGatedAttention`, which is also the reference: other devices, no
Triton, double precision, captions of more than 64 words or images of more than 64 regions.

On the way back, some images at a time, one kernel makes attention and its gradient for every pair, one goes
through the images for each caption, and one through the captions for each image. Each gradient is summed in
a fixed order.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from pmpguard.model.awareness_fused import fits_kernel, wide_product
from pmpguard.model.cross_gated_attention import CrossGatedAttention, seen_part

MOST_FRAGMENTS = 64
CAPTIONS_AT_ONCE = 16384  # without gradients
CHUNK = 64  # numbers of a vector that a program holds at a time
CAPTIONS_PER_PROGRAM = {16: 4, 32: 2, 64: 1}  # by the width captions are padded to
GROUP = 16  # groups of captions that programs running together share
GRADIENT_BYTES = 1 << 29
GRADIENT_PEAK = 64.0  # incoming gradients are scaled to it, so that float16 holds what is made of them
FORWARD_LAUNCH = {"num_warps": 4, "num_stages": 2}
BACKWARD_LAUNCH = {"num_warps": 4, "num_stages": 2}


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
) -> Tensor:
    """`attention(words, word_mask, regions, region_mask)`: (T, m, d), (T, m), (I, n, d), (I, n) -> (T, I)."""
    if not fits_gated_kernel(words, word_mask, regions, region_mask):
        return attention.forward(words, word_mask, regions, region_mask)
    if region_mask is None:
        region_mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
    word_gate, region_gate, dim = attention.word_gate, attention.region_gate, words.shape[2]
    regions = regions.float().masked_fill(~region_mask[..., None], 0.0)
    by_image = regions, seen_part(word_gate, regions), linear(regions, region_gate.weight[:, :dim])

    def cosines(words: Tensor, word_mask: Tensor) -> Tensor:
        words = words.float().masked_fill(~word_mask[..., None], 0.0)
        by_word = (
            attention.rotate(words),
            words,
            linear(words, word_gate.weight[:, :dim]),
            seen_part(region_gate, words),
        )
        biases = word_gate.bias, region_gate.bias
        scores: Tensor = _GatedCosines.apply(word_mask, region_mask, *biases, *by_word, *by_image)  # type: ignore[no-untyped-call]
        return scores

    capturing = words.is_cuda and torch.cuda.is_current_stream_capturing()
    if torch.is_grad_enabled() or capturing:
        return cosines(words, word_mask)
    return _by_width(cosines, words, word_mask, len(regions))


def fits_gated_kernel(words: Tensor, word_mask: Tensor, regions: Tensor, region_mask: Tensor | None) -> bool:
    """Whether the kernel holds these, the device is one it runs on, and the kernel was asked for.

    It agrees with the reference when interpreted, but has not passed its tests on hardware yet. Until it has,
    PMPGUARD_KERNELS=all switches it on.
    """
    asked = os.environ.get("PMPGUARD_KERNELS") == "all" or os.environ.get("TRITON_INTERPRET") == "1"
    longest = max(words.shape[1], regions.shape[1])
    return asked and longest <= MOST_FRAGMENTS and fits_kernel(words, word_mask, regions, region_mask)


def _by_width(cosines: Any, words: Tensor, word_mask: Tensor, images: int) -> Tensor:
    """Captions of similar length together, cut after their last word. The host waits for the lengths."""
    places = torch.arange(1, words.shape[1] + 1, device=words.device)
    ends = (word_mask * places).amax(1)  # (T,)
    scores = torch.zeros(len(words), images, device=words.device)
    shortest = 1  # captions without words keep 0
    for width in CAPTIONS_PER_PROGRAM:
        alike = torch.nonzero((ends >= shortest) & (ends <= width))[:, 0]
        for rows in torch.split(alike, CAPTIONS_AT_ONCE):
            if len(rows):
                scores[rows] = cosines(words[rows, :width], word_mask[rows, :width])
        shortest = width + 1
    return scores


def padded_width(fragments: int) -> int:
    """16, 32 or 64."""
    return max(16, 1 << (fragments - 1).bit_length())


def across(vectors: Tensor, width: int, count: int) -> Tensor:
    """(B, k, d) -> (count, D, width) float16, padded with zeros; D is a whole number of chunks."""
    items, fragments, dim = vectors.shape
    columns = vectors.transpose(1, 2).half()  # (B, d, k)
    return pad(columns, (0, width - fragments, 0, -dim % CHUNK, 0, count - items)).contiguous()


def along(columns: Tensor, shape: torch.Size) -> Tensor:
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
    from pmpguard.model.cross_gated_triton import forward_kernel

    captions, images = operands.captions, operands.images
    count, dim, width = captions.words.shape
    per_program = CAPTIONS_PER_PROGRAM[width]
    groups, pictures = count // per_program, len(images.regions)
    sums = torch.empty(count, pictures, 3, device=captions.words.device)
    forward_kernel[(groups * pictures,)](
        *operands.tensors(), sums, groups, pictures,
        D=dim, L=width, N=images.regions.shape[2], BLOCK_D=CHUNK,
        CAPTIONS=per_program, GROUP=GROUP, **FORWARD_LAUNCH,
    )  # fmt: skip
    return sums


def gradients(operands: Operands, sums: Tensor, incoming: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """By the tensors of `captions`, (T, D, L), and of `images`, (I, D, N), in float32.

    incoming (T, I) of about GRADIENT_PEAK: gradients by the logits are kept in float16.
    """
    from pmpguard.model.cross_gated_triton import pair_kernel, region_kernel, word_kernel

    captions, images = operands.captions, operands.images
    count, dim, width = captions.words.shape
    pictures, _, columns = images.regions.shape
    device = captions.words.device
    sizes = {"D": dim, "L": width, "N": columns, "BLOCK_D": CHUNK, **BACKWARD_LAUNCH}
    by_caption = [torch.zeros(count, dim, width, device=device) for _ in captions]
    by_image = [torch.empty(pictures, dim, columns, device=device) for _ in images]
    rotated = rows_of(captions.rotated)  # (T * L, D)
    at_once = max(1, min(pictures, GRADIENT_BYTES // (6 * count * width * columns)))
    chunks = dim // CHUNK
    for first in range(0, pictures, at_once):
        some = min(at_once, pictures - first)
        alphas = torch.empty(count, some, columns, width, dtype=torch.float16, device=device)
        betas = torch.empty_like(alphas)
        by_logits = torch.empty(count * width, some * columns, dtype=torch.float16, device=device)
        pair_kernel[(count, some)](
            *operands.tensors(), sums, incoming, alphas, betas, by_logits, first, pictures, some, **sizes
        )  # fmt: skip
        biases = operands.word_bias, operands.region_bias
        shared = (*captions[1:], *images, *biases, sums, incoming, alphas, betas)
        word_kernel[(count, chunks)](*shared, *by_caption[1:], first, pictures, some, **sizes)
        region_kernel[(some, chunks)](*shared, *by_image, first, pictures, some, count, **sizes)
        chosen = slice(first, first + some)
        by_rotated = wide_product(by_logits, rows_of(images.regions[chosen])).view(count, width, dim)
        by_caption[0] += by_rotated.transpose(1, 2)
        by_regions = wide_product(by_logits.T, rotated).view(some, columns, dim)
        by_image[0][chosen] += by_regions.transpose(1, 2)
    return by_caption, by_image


def rows_of(columns: Tensor) -> Tensor:
    """(B, D, k) -> (B * k, D), to be multiplied with gradients by the logits."""
    return columns.transpose(1, 2).reshape(-1, columns.shape[1])


class _GatedCosines(torch.autograd.Function):
    """Keeps the float16 vectors and three numbers per pair; attention and gates are made again."""

    @staticmethod
    def forward(
        ctx: Any,
        word_mask: Tensor,
        region_mask: Tensor,
        word_bias: Tensor,
        region_bias: Tensor,
        *vectors: Tensor,
    ) -> Tensor:
        by_word, by_image = vectors[:4], vectors[4:]
        width, columns = (padded_width(mask.shape[1]) for mask in (word_mask, region_mask))
        given, images = len(word_mask), len(region_mask)
        count = -(-given // CAPTIONS_PER_PROGRAM[width]) * CAPTIONS_PER_PROGRAM[width]
        operands = Operands(
            Captions(*(across(part, width, count) for part in by_word)),
            padded_mask(word_mask, width, count),
            Images(*(across(part, columns, images) for part in by_image)),
            padded_mask(region_mask, columns, images),
            *(pad(bias.float(), (0, -len(bias) % CHUNK)) for bias in (word_bias, region_bias)),
        )
        sums = pair_sums(operands)  # (T, I, 3)
        if any(ctx.needs_input_grad):
            ctx.operands, ctx.sums = operands, sums
            ctx.shapes = by_word[0].shape, by_image[0].shape
        word_square, region_square, product = sums[:given].unbind(2)  # (T, I) each
        there = (word_square > 0) & (region_square > 0)
        lengths = torch.where(there, word_square, 1.0).sqrt() * torch.where(there, region_square, 1.0).sqrt()
        return torch.where(there, product / lengths, 0.0)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        operands, sums = ctx.operands, ctx.sums
        word_shape, region_shape = ctx.shapes
        more = len(operands.word_mask) - word_shape[0]
        gradient = pad(incoming[0].float(), (0, 0, 0, more)).contiguous()  # (T, I)
        largest = gradient.abs().amax()
        scale = torch.where(largest > 0, GRADIENT_PEAK / largest, 1.0)
        by_caption, by_image = gradients(operands, sums, gradient * scale)
        for part in (*by_caption, *by_image):
            part /= scale
        dim = word_shape[2]
        return (
            None,
            None,
            by_caption[2].sum((0, 2))[:dim],
            by_image[2].sum((0, 2))[:dim],
            *(along(part, word_shape) for part in by_caption),
            *(along(part, region_shape) for part in by_image),
        )
