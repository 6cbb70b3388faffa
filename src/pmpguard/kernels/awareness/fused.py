"""`awareness_scores` on a GPU in one kernel for all pairs, with gradients, without a word-by-region tensor.

What the kernel cannot do goes to `awareness_scores`, which is also the reference: other devices, no Triton,
double precision, more than 128 words or 1,024 regions, a boundary that wants a gradient. A CPU takes the
blocks of `cpu_gradient.py` where they fit. More regions than one block holds are `many_regions.py`'s.

Products take the numbers as they come, float32 as accurately as float32 and half precision on tensor cores;
sums are float32. Without gradients captions are packed, which asks the device for their lengths. With
gradients, and while a CUDA graph is captured, nothing waits: captions are padded, or sorted into places of
fewer words where `longer_than` says how many places of each size there must be.

On the way back the gradients by the cosines are written for as many images as fit `MAX_GRADIENT_BYTES`;
those by words and regions are then two matrix products. No sum depends on the order in which programs finish.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pmpguard.kernels.awareness.cpu_gradient import MAX_GRADIENT_SHARPNESS, packed_awareness_with_gradient
from pmpguard.kernels.caption_blocks import CaptionRows, LongerThan, packed_rows, padded_rows, sorted_rows
from pmpguard.kernels.dispatch import kernels_run_on, wide_product
from pmpguard.kernels.packed_scoring import MAX_SHARPNESS
from pmpguard.models.attention.awareness import (
    NEGATIVE_SLOPE,
    SHARPNESS,
    SMALLEST_CONTEXT,
    Direction,
    awareness_scores,
)

MAX_FRAGMENTS = 128  # words, and regions in one block
MAX_REGIONS = 1024  # in several
REGION_BLOCK = 64  # of several
MAX_GRADIENT_BYTES = 1 << 29
GROUP = 16  # blocks of words that programs running together share
PRODUCT_DTYPE = torch.float16  # of the cosines a training step multiplies on tensor cores
HALF_GRADIENT = torch.bfloat16  # what gradients by cosines are kept in, unless vectors are float32
# What differs from the usual launch for 64 words by 64 regions of half precision:
FORWARD_LAUNCH: dict[str, Any] = {"registers": 168}  # without gradients
TRAINING_LAUNCH: dict[str, Any] = {"registers": 168}
BACKWARD_LAUNCH: dict[str, Any] = {}
PROGRAMS = 528  # on the way back: four for each multiprocessor of the largest GPUs of today


def awareness_scores_fused(
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    boundary: float | Tensor,
    *,
    region_mask: Tensor | None = None,
    sharpness: float = SHARPNESS,
    direction: Direction = "words",
    product_dtype: torch.dtype | None = None,
    longer_than: LongerThan | None = None,
) -> Tensor:
    """S of every caption against every image, as `awareness_scores` gives it.

    words (T, m, d), word_mask (T, m), regions (I, n, d), region_mask (I, n) or None for all -> (T, I).
    `product_dtype` rounds float32 vectors for the kernel only: gradients stay float32. With float16 a cosine
    of unit vectors is off by about 1e-5. `longer_than` holds (words, captions): at most so many captions end
    after so many words. It makes training faster; should it be wrong, the scores are not numbers.
    """
    constant = not isinstance(boundary, Tensor) or (boundary.ndim == 0 and not boundary.requires_grad)
    usual = constant and 0 < sharpness <= MAX_SHARPNESS and direction in ("words", "both")
    fits = fits_kernel(words, word_mask, regions, region_mask)
    if direction == "both":  # words and regions change places
        fits = fits and regions.shape[1] <= MAX_FRAGMENTS
    if not usual or not fits:
        if usual and direction == "words" and fits_packing(words, word_mask, regions, region_mask, sharpness):
            return packed_awareness_with_gradient(words, word_mask, regions, float(boundary), sharpness)
        return awareness_scores(
            words, word_mask, regions, boundary,
            region_mask=region_mask, sharpness=sharpness, direction=direction,
        )  # fmt: skip
    if isinstance(boundary, Tensor):
        boundary = boundary.to(words.device, torch.float32)
    else:
        boundary = torch.full((), boundary, device=words.device)
    options = boundary, sharpness, product_dtype or words.dtype
    forward: Tensor = _Awareness.apply(words, word_mask, regions, region_mask, *options, longer_than)  # type: ignore[no-untyped-call]
    if direction == "words":
        return forward
    if region_mask is None:
        region_mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
    mirrored: Tensor = _Awareness.apply(regions, region_mask, words, word_mask, *options, None)  # type: ignore[no-untyped-call]
    return (forward + mirrored.T) / 2


def fits_kernel(words: Tensor, word_mask: Tensor, regions: Tensor, region_mask: Tensor | None) -> bool:
    """Whether shapes agree, the kernel holds them, and the device is one it runs on."""
    if words.ndim != 3 or regions.ndim != 3 or words.shape[-1] != regions.shape[-1]:
        return False
    if words.shape[:2] != word_mask.shape or (
        region_mask is not None and region_mask.shape != regions.shape[:2]
    ):
        return False
    sizes = (*words.shape, *regions.shape)
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    return (
        min(sizes) > 0
        and words.shape[1] <= MAX_FRAGMENTS
        and regions.shape[1] <= MAX_REGIONS
        and words.dtype == regions.dtype
        and words.dtype in kinds
        and words.device == regions.device
        and kernels_run_on(words.device)
    )


def one_block(longest: int, regions: int, dtype: torch.dtype) -> bool:
    """Whether a program holds all regions of an image at once, in registers and shared memory."""
    fewer, more = sorted((longest, regions))
    return more <= MAX_FRAGMENTS and (dtype != torch.float32 or fewer <= 64)


def fits_packing(
    words: Tensor, word_mask: Tensor, regions: Tensor, region_mask: Tensor | None, sharpness: float
) -> bool:
    """Whether `packed_awareness_with_gradient` can do it: on a CPU, in float32, without masked regions."""
    return (
        words.device.type == regions.device.type == "cpu"
        and words.dtype == regions.dtype == torch.float32
        and words.ndim == regions.ndim == 3
        and words.shape[:2] == word_mask.shape
        and words.shape[-1] == regions.shape[-1]
        and min(*words.shape, *regions.shape) > 0
        and sharpness <= MAX_GRADIENT_SHARPNESS
        and (region_mask is None or (region_mask.shape == regions.shape[:2] and bool(region_mask.all())))
    )


@dataclass(frozen=True)
class Launch:
    """How a kernel is cut: sizes of its blocks, and what it asks of a multiprocessor."""

    rows: int  # words per block
    columns: int  # regions, with padding
    step: int  # numbers of a vector per product
    warps: int
    stages: int = 3
    registers: int | None = None  # at most, per thread; None lets the compiler choose
    images: int = 1  # per program, forward: the words are read once for them
    region_blocks: int = 1  # more than one: those of `many_regions.py`

    def options(self) -> dict[str, Any]:
        """By the names Triton knows."""
        sizes = {"BLOCK_M": self.rows, "BLOCK_N": self.columns, "BLOCK_K": self.step}
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {**sizes, **limit, "num_warps": self.warps, "num_stages": self.stages}


def choose_launch(
    longest: int, regions: int, dim: int, dtype: torch.dtype, training: bool
) -> tuple[Launch, Launch]:
    """Forward and backward, for captions of at most `longest` words; when training, both cut alike."""
    rows = 64 if longest <= 64 else 128
    if not one_block(longest, regions, dtype):
        blocks = -(-regions // REGION_BLOCK)
        several = Launch(rows, blocks * REGION_BLOCK, 0, warps=4 if rows == 64 else 8, region_blocks=blocks)
        return several, several
    columns = max(16, 1 << (regions - 1).bit_length())
    step = min(64 if dtype.itemsize == 2 else 32, max(16, 1 << (dim - 1).bit_length()))
    launch = Launch(rows, columns, step, warps=4 if rows * columns <= 64 * 64 else 8)
    if (rows, columns, step) != (64, 64, 64):
        return launch, launch
    forward = replace(launch, **(TRAINING_LAUNCH if training else FORWARD_LAUNCH))
    return forward, replace(launch, **BACKWARD_LAUNCH)


@dataclass(frozen=True)
class Operands:
    """What both kernels read."""

    words: Tensor  # (R, d)
    rows: CaptionRows
    share: Tensor  # (T,) one over the number of a caption's words
    regions: Tensor  # (I, N, d) zeros where masked or padded
    gram_high: Tensor | None  # (I, N, N) float16; None with several region blocks, which make their own
    gram_low: Tensor | None  # (I, N, N) what float16 left over
    region_mask: Tensor | None  # (I, n)
    boundary: Tensor  # () float32

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the kernels' parameters."""
        mask = self.boundary if self.region_mask is None else self.region_mask  # the first is never read
        assert self.gram_high is not None and self.gram_low is not None
        return (
            self.words, self.rows.caption, self.share, self.regions, self.gram_high, self.gram_low,
            mask, self.boundary,
        )  # fmt: skip


def prepare(
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    region_mask: Tensor | None,
    boundary: Tensor,
    launch: Launch,
    packed: bool,
    longer_than: LongerThan | None = None,
) -> Operands:
    """Captions in blocks, images padded to the kernel's columns, Gram matrices."""
    if packed:
        rows = packed_rows(word_mask, launch.rows)
    elif longer_than is None:
        rows = padded_rows(word_mask, launch.rows)
    else:
        rows = sorted_rows(word_mask, launch.rows, longer_than)
    share = 1.0 / word_mask.sum(1).clamp(min=1).float()  # (T,)
    if rows.complete is not None:
        share = torch.where(rows.complete, share, torch.nan)  # rather no score than a wrong one
    if region_mask is not None:
        regions = regions.masked_fill(~region_mask[..., None], 0.0)
        region_mask = region_mask.contiguous()
    regions = pad(regions, (0, 0, 0, launch.columns - regions.shape[1])).contiguous()  # (I, N, d)
    high = low = None
    if launch.region_blocks == 1:
        gram = wide_product(regions, regions.transpose(1, 2))  # (I, N, N)
        high = gram.half()
        low = (gram - high.float()).half()
    return Operands(rows.gather(words), rows, share, regions, high, low, region_mask, boundary)


def forward_scores(operands: Operands, captions: int, n: int, sharpness: float, launch: Launch) -> Tensor:
    """(T, I)."""
    if launch.region_blocks > 1:
        from pmpguard.kernels.awareness import many_regions

        return many_regions.forward_scores(operands, captions, n, sharpness, launch)
    from pmpguard.kernels.awareness.triton_kernels import forward_kernel

    images, dim = len(operands.regions), operands.regions.shape[-1]
    blocks = len(operands.words) // launch.rows
    scores = torch.zeros(captions, images, device=operands.words.device)  # (T, I)
    if blocks:
        forward_kernel[(blocks * -(-images // launch.images),)](
            *operands.tensors(), scores, blocks, images, n, dim,
            sharpness, NEGATIVE_SLOPE, SMALLEST_CONTEXT,
            GROUP=GROUP, IMAGES=launch.images, **constants(operands, launch), **launch.options(),
        )  # fmt: skip
    return scores


def gradients(
    operands: Operands, incoming: Tensor, n: int, sharpness: float, launch: Launch
) -> tuple[Tensor, Tensor]:
    """By rows of words (R, d) and by padded regions (I, N, d), both float32; incoming (T, I) float32."""
    kind = torch.float32 if operands.words.dtype == torch.float32 else HALF_GRADIENT
    if launch.region_blocks > 1:
        from pmpguard.kernels.awareness import many_regions

        return many_regions.gradients(operands, incoming, n, sharpness, launch, kind)
    from pmpguard.kernels.awareness.triton_kernels import backward_kernel

    images, columns, dim = operands.regions.shape
    rows = len(operands.words)
    blocks = rows // launch.rows
    words, regions = operands.words.to(kind), operands.regions.to(kind)
    at_once = max(1, min(images, MAX_GRADIENT_BYTES // max(1, rows * columns * kind.itemsize)))
    per_program = max(1, blocks // max(1, PROGRAMS // at_once))
    parts = -(-blocks // per_program)
    by_words = torch.zeros(rows, dim, device=words.device)
    by_regions = torch.zeros(images, columns, dim, device=words.device)
    for first in range(0, images if blocks else 0, at_once):
        some = min(at_once, images - first)
        by_cosines = torch.empty(rows, some * columns, dtype=kind, device=words.device)
        by_gram = torch.empty(parts, some, columns, columns, device=words.device)
        backward_kernel[(some, parts)](
            *operands.tensors(), incoming, by_cosines, by_gram,
            first, images, some, blocks, per_program, n, dim, sharpness, NEGATIVE_SLOPE, SMALLEST_CONTEXT,
            **constants(operands, launch), **launch.options(),
        )  # fmt: skip
        chosen = regions[first : first + some]  # (I', N, d)
        by_words += wide_product(by_cosines, chosen.flatten(0, 1))
        found = wide_product(by_cosines.T, words).view(some, columns, dim)
        of_these = by_regions[first : first + some]
        torch.baddbmm(found, by_gram.sum(0), chosen.float(), out=of_these)
    return by_words, by_regions


def constants(operands: Operands, launch: Launch) -> dict[str, Any]:
    """What else kernels are compiled for."""
    return {
        "WHOLE_K": operands.regions.shape[-1] % launch.step == 0,
        "MASKED": operands.region_mask is not None,
        "PRECISION": "tf32x3" if operands.words.dtype == torch.float32 else "tf32",
    }


class _Awareness(torch.autograd.Function):
    """Keeps the operands; cosines are computed again on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        words: Tensor,
        word_mask: Tensor,
        regions: Tensor,
        region_mask: Tensor | None,
        boundary: Tensor,
        sharpness: float,
        product_dtype: torch.dtype,
        longer_than: LongerThan | None,
    ) -> Tensor:
        ctx.dtype, ctx.shapes = words.dtype, (words.shape, regions.shape)
        words, regions = words.to(product_dtype), regions.to(product_dtype)
        needed = ctx.needs_input_grad[0] or ctx.needs_input_grad[2]
        sizes = words.shape[1], regions.shape[1], words.shape[2]
        launch, backward_launch = choose_launch(*sizes, words.dtype, needed)
        packed = not needed and not (words.is_cuda and torch.cuda.is_current_stream_capturing())
        operands = prepare(words, word_mask, regions, region_mask, boundary, launch, packed, longer_than)
        if needed:
            ctx.operands, ctx.launch, ctx.sharpness = operands, backward_launch, sharpness
        return forward_scores(operands, len(words), regions.shape[1], sharpness, launch)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        operands: Operands = ctx.operands
        word_shape, region_shape = ctx.shapes
        scores = incoming[0].float().contiguous()  # (T, I)
        n = region_shape[1]
        by_rows, by_regions = gradients(operands, scores, n, ctx.sharpness, ctx.launch)
        by_words = operands.rows.scatter(by_rows.to(ctx.dtype), word_shape)
        by_regions = by_regions[:, :n].to(ctx.dtype)
        if operands.region_mask is not None:
            by_regions = by_regions.masked_fill(~operands.region_mask[..., None], 0.0)
        return by_words, None, by_regions, None, None, None, None, None
