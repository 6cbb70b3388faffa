"""Scores of many captions and images without holding every pair's fragments at once.

`all_pairs` cuts any scoring function into chunks; the result does not depend on the chunk sizes.
`awareness_all_pairs` and `gated_all_pairs` take the fastest way there is for the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from pmpguard.errors import ConfigError
from pmpguard.kernels.awareness.fused import awareness_scores_fused, fits_kernel
from pmpguard.kernels.cross_gated.fused import fits_gated_kernel, gated_cosines_fused
from pmpguard.kernels.packed_scoring import MAX_SHARPNESS, packed_awareness_scores, packed_gated_cosines
from pmpguard.models.attention.awareness import SHARPNESS, Direction, aligned_awareness_scores
from pmpguard.models.attention.cross_gated import CrossGatedAttention
from pmpguard.models.encoded import Encoded

ScoreBlock = Callable[[Encoded, Encoded], Tensor]  # T captions, I images -> (T, I)

MAX_CHUNK_BYTES = 1 << 28
MAX_PACKED_CAPTIONS = 8192  # packed at once on a CPU
MAX_FUSED_ITEMS = 4096  # captions and images for a GPU's kernel, which keeps next to nothing per pair


@torch.no_grad()
def all_pairs(
    score_block: ScoreBlock,
    texts: Encoded,
    images: Encoded,
    *,
    text_chunk: int | None = None,
    image_chunk: int | None = None,
    budget_bytes: int = MAX_CHUNK_BYTES,
    floats_per_pair: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Scores (T, I) without gradient, in chunks of captions of similar length, trimmed to the longest.

    Chunk sizes not given are chosen so that `floats_per_pair` intermediate numbers for each pair of a chunk
    stay within `budget_bytes`; the default suits `awareness_scores`. `device` is where the scores are kept,
    by default where the captions are.
    """
    if floats_per_pair is None:
        floats_per_pair = awareness_floats(texts, images)
    text_chunk, image_chunk = chunk_sizes(
        len(texts), len(images), text_chunk, image_chunk, budget_bytes // (4 * max(1, floats_per_pair))
    )
    scores = torch.zeros(len(texts), len(images), dtype=dtype, device=device or texts.pooled.device)
    order = texts.mask.sum(1).argsort(stable=True)  # (T,)
    for top in range(0, len(texts), text_chunk):
        rows = order[top : top + text_chunk]
        some_texts = trimmed(texts[rows])
        for start in range(0, len(images), image_chunk):
            block = score_block(some_texts, images[start : start + image_chunk])  # (T', I')
            scores[rows.to(scores.device), start : start + image_chunk] = block.to(scores)
    return scores


def all_pairs_with_gradient(
    score_block: ScoreBlock, texts: Encoded, images: Encoded, *, text_chunk: int, image_chunk: int
) -> Tensor:
    """Scores (T, I) to train with. Each chunk keeps its inputs only and is computed again on the way back."""
    chunk_sizes(len(texts), len(images), text_chunk, image_chunk, 1)

    def score_tensors(*tensors: Tensor) -> Tensor:
        return score_block(Encoded(*tensors[:3]), Encoded(*tensors[3:]))

    rows = []
    for top in range(0, len(texts), text_chunk):
        some_texts = texts[top : top + text_chunk]
        row = []
        for left in range(0, len(images), image_chunk):
            inputs = [
                tensor
                for part in (some_texts, images[left : left + image_chunk])
                for tensor in (part.pooled, part.fragments, part.mask)
            ]
            row.append(checkpoint(score_tensors, *inputs, use_reentrant=False, preserve_rng_state=False))
        rows.append(torch.cat(row, dim=1))
    return torch.cat(rows)  # (T, I)


@torch.no_grad()
def awareness_all_pairs(
    texts: Encoded,
    images: Encoded,
    boundary: float | Tensor,
    *,
    sharpness: float = SHARPNESS,
    direction: Direction = "words",
    budget_bytes: int = MAX_CHUNK_BYTES,
) -> Tensor:
    """S of every caption and image, (T, I), without gradient."""
    packable = direction == "words" and 0 < sharpness <= MAX_SHARPNESS
    if packable and _packable(texts, images):
        parts = [
            packed_awareness_scores(some.fragments, some.mask, images.fragments, float(boundary), sharpness)
            for some in _slices(texts, MAX_PACKED_CAPTIONS)
        ]
        return torch.cat(parts)

    def score(some_texts: Encoded, some_images: Encoded) -> Tensor:
        return awareness_scores_fused(
            some_texts.fragments,
            some_texts.mask,
            some_images.fragments,
            boundary,
            region_mask=some_images.mask,
            sharpness=sharpness,
            direction=direction,
        )

    fused = fits_kernel(texts.fragments, texts.mask, images.fragments, images.mask)
    chunk = MAX_FUSED_ITEMS if fused else None
    return all_pairs(
        score, texts, images, text_chunk=chunk, image_chunk=chunk, budget_bytes=budget_bytes,
        dtype=_wide(texts.fragments.dtype),
    )  # fmt: skip


@torch.no_grad()
def gated_all_pairs(
    attention: CrossGatedAttention, texts: Encoded, images: Encoded, *, budget_bytes: int = MAX_CHUNK_BYTES
) -> Tensor:
    """CGA's cosine of every caption and image, (T, I), without gradient."""
    if _packable(texts, images):
        parts = [
            packed_gated_cosines(attention, some.fragments, some.mask, images.fragments)
            for some in _slices(texts, MAX_PACKED_CAPTIONS)
        ]
        return torch.cat(parts)

    def score(some_texts: Encoded, some_images: Encoded) -> Tensor:
        return gated_cosines_fused(
            attention, some_texts.fragments, some_texts.mask, some_images.fragments, some_images.mask
        )

    fused = fits_gated_kernel(texts.fragments, texts.mask, images.fragments, images.mask)
    chunk = MAX_FUSED_ITEMS if fused else None
    return all_pairs(
        score, texts, images, text_chunk=chunk, image_chunk=chunk, budget_bytes=budget_bytes,
        floats_per_pair=gated_floats(texts, images), dtype=_wide(texts.fragments.dtype),
    )  # fmt: skip


def gated_awareness_scores(
    attention: CrossGatedAttention,
    texts: Encoded,
    images: Encoded,
    boundary: float | Tensor,
    *,
    sharpness: float = SHARPNESS,
    direction: Direction = "words",
) -> Tensor:
    """S of fragments that were gated for their own pair, all pairs: (T, I). For chunks of `all_pairs`."""
    gated = attention.gate(texts.fragments, texts.mask, images.fragments, images.mask)
    shape = gated.words.shape[:2]  # T, I
    return aligned_awareness_scores(
        normalize(gated.words, dim=-1).flatten(0, 1),  # (T * I, m, d)
        texts.mask[:, None].expand(*shape, -1).flatten(0, 1),
        normalize(gated.regions, dim=-1).flatten(0, 1),  # (T * I, n, d)
        boundary,
        region_mask=images.mask[None].expand(*shape, -1).flatten(0, 1),
        sharpness=sharpness,
        direction=direction,
    ).view(shape)


def awareness_floats(texts: Encoded, images: Encoded) -> int:
    """Intermediate numbers per pair of `awareness_scores`."""
    return 10 * texts.mask.shape[1] * images.mask.shape[1]


def gated_floats(texts: Encoded, images: Encoded) -> int:
    """Intermediate numbers per pair of `CrossGatedAttention`."""
    return 5 * (texts.mask.shape[1] + images.mask.shape[1]) * texts.pooled.shape[1]


def chunk_sizes(
    texts: int, images: int, text_chunk: int | None, image_chunk: int | None, pairs: int
) -> tuple[int, int]:
    """Sizes for chunks of about `pairs` pairs: the ones given, the others as square as possible."""
    for name, size in (("text_chunk", text_chunk), ("image_chunk", image_chunk)):
        if size is not None and size < 1:
            raise ConfigError(f"{name} is {size}", fix="give at least 1, or leave it out")
    if text_chunk is None:
        text_chunk = max(1, min(texts, pairs // image_chunk if image_chunk else int(pairs**0.5)))
    if image_chunk is None:
        image_chunk = max(1, min(images, pairs // text_chunk))
    return text_chunk, image_chunk


def trimmed(items: Encoded) -> Encoded:
    """Without the fragments at the end that are masked in every item."""
    used = items.mask.any(0).nonzero()  # (k, 1)
    longest = int(used[-1]) + 1 if len(used) else 1
    return Encoded(items.pooled, items.fragments[:, :longest], items.mask[:, :longest])


def _slices(items: Encoded, size: int) -> list[Encoded]:
    return [items[start : start + size] for start in range(0, max(1, len(items)), size)]


def _packable(texts: Encoded, images: Encoded) -> bool:
    """Whether the packed way gives what is asked: on a CPU, no double precision, no masked region."""
    on_cpu = texts.fragments.device.type == images.fragments.device.type == "cpu"
    single = torch.float64 not in (texts.fragments.dtype, images.fragments.dtype)
    return on_cpu and single and bool(images.mask.all())


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
