"""Cosines of cross-gated attention on a CPU in one pass over each pair, by a small function in C.

torch needs about seven passes over the n x d and m x d numbers of every pair (two products, sum, sigmoid,
difference, product, sum), and moving them between the cache and the core takes longer than computing them.
The function keeps 64 of the d numbers of a fragment in registers from its attention weights to its share of
the pooled vector; nothing of size n x d is ever written.

It is compiled when first needed, in a second or so, for the processor at hand, into a folder that is deleted
at once. Without a C compiler, for few pairs, where d is no multiple of 64, or with PMPGUARD_KERNELS=off,
torch does the work instead.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pmpguard.kernels.packed_scoring import (
    IMAGES_AT_ONCE,
    pack_captions,
    packed_gated_cosines,
    score_blocks,
)
from pmpguard.models.attention.cross_gated import CrossGatedAttention, own_part, seen_part

TILE = 64  # of the d numbers, in registers at once
WORTH_COMPILING = 20_000  # pairs that take torch about as long as the compiler
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
BLOCK_WORDS = 176
BLOCK_PAIRS = 256

Cosines = Callable[..., None]

_compile_once = threading.Lock()

SOURCE = r"""
#include <math.h>

#define TILE 64
#define VECTORS 4
typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(64), aligned(4), may_alias));

/* 1 / (1 + exp(-x)). exp(y) = 2^k exp(f): k is the nearest whole number to y / ln 2, |f| < 0.35. */
static inline vec sigmoid(vec x) {
    const vec zero = {0};
    const vec limit = zero + 80.0f, whole = zero + 12582912.0f; /* adding 1.5 * 2^23 rounds */
    ivec high = -x > limit, low = -x < -limit;
    vec y = (vec)((high & (ivec)limit) | (low & (ivec)-limit) | (~(high | low) & (ivec)-x));
    vec shifted = y * 1.44269504f + whole;
    vec k = shifted - whole;
    vec f = y - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2 in two parts */
    vec p = zero + 1.0f / 5040;
    p = p * f + 1.0f / 720;
    p = p * f + 1.0f / 120;
    p = p * f + 1.0f / 24;
    p = p * f + 1.0f / 6;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    vec e = (vec)((ivec)p + ((ivec)shifted << 23));
    return 1.0f / (1.0f + e);
}

/* Sum over fragments of context + gate * (fragment - context), for one tile.
   weights (rows, inner); seen, source (inner, TILE); own, kept (rows, TILE). */
static inline void gated_sum(long rows, long inner, const float *weights, const float *seen,
                             const float *source, const float *own, const float *kept, vec *sum) {
    for (int k = 0; k < VECTORS; k++) sum[k] = (vec){0};
    for (long row = 0; row < rows; row++) {
        vec x[VECTORS], context[VECTORS];
        const vec *bias = (const vec *)(own + row * TILE), *fragment = (const vec *)(kept + row * TILE);
        for (int k = 0; k < VECTORS; k++) x[k] = bias[k], context[k] = (vec){0};
        for (long i = 0; i < inner; i++) {
            const float weight = weights[row * inner + i];
            const vec *a = (const vec *)(seen + i * TILE), *b = (const vec *)(source + i * TILE);
            for (int k = 0; k < VECTORS; k++) x[k] += weight * a[k], context[k] += weight * b[k];
        }
        for (int k = 0; k < VECTORS; k++) sum[k] += context[k] + sigmoid(x[k]) * (fragment[k] - context[k]);
    }
}

/* cosines (I, C). alpha (I, C, m, n), beta (I, C, n, m). Words (C, d / TILE, m, TILE), regions
   (I, d / TILE, n, TILE): the fragments, what they bring to their own gate and to the gates of others. */
void gated_cosines(long images, long captions, long m, long n, long tiles, const float *alpha,
                   const float *beta, const float *words, const float *own_word, const float *seen_region,
                   const float *regions, const float *own_region, const float *seen_word, float *cosines) {
    for (long i = 0; i < images; i++)
        for (long c = 0; c < captions; c++) {
            const long pair = i * captions + c;
            const float *over_regions = alpha + pair * m * n, *over_words = beta + pair * n * m;
            vec dot = {0}, word_norm = {0}, region_norm = {0};
            for (long tile = 0; tile < tiles; tile++) {
                const long w = (c * tiles + tile) * m * TILE, r = (i * tiles + tile) * n * TILE;
                vec word[VECTORS], region[VECTORS];
                gated_sum(m, n, over_regions, seen_word + r, regions + r, own_word + w, words + w, word);
                gated_sum(n, m, over_words, seen_region + w, words + w, own_region + r, regions + r, region);
                for (int k = 0; k < VECTORS; k++) {
                    dot += word[k] * region[k];
                    word_norm += word[k] * word[k];
                    region_norm += region[k] * region[k];
                }
            }
            float ab = 0, aa = 0, bb = 0;
            for (int k = 0; k < 16; k++) ab += dot[k], aa += word_norm[k], bb += region_norm[k];
            const float length = sqrtf(aa) * sqrtf(bb);
            cosines[pair] = ab / (length > 1e-12f ? length : 1e-12f);
        }
}
"""


@torch.no_grad()
def native_gated_cosines(
    attention: CrossGatedAttention, words: Tensor, word_mask: Tensor, regions: Tensor
) -> Tensor:
    """`attention(words, word_mask, regions)` in float32: (T, m, d), (T, m), (I, n, d) -> (T, I)."""
    worth_it = len(words) * len(regions) >= WORTH_COMPILING and words.shape[-1] % TILE == 0
    cosines = compiled() if worth_it and os.environ.get("PMPGUARD_KERNELS") != "off" else None
    if cosines is None:
        return packed_gated_cosines(attention, words, word_mask, regions)
    packed, blocks = pack_captions(words, word_mask, BLOCK_WORDS, _images_per_block)  # (W, d)
    word_gate, region_gate = attention.word_gate, attention.region_gate
    by_word = [
        attention.rotate(packed),
        packed,
        own_part(word_gate, packed),
        seen_part(region_gate, packed),
    ]
    columns = []
    for start in range(0, len(regions), IMAGES_AT_ONCE):
        some = regions[start : start + IMAGES_AT_ONCE].float().contiguous()  # (I', n, d)
        gating = (some, own_part(region_gate, some), seen_part(word_gate, some))
        by_image = [some, *(tiled(tensor) for tensor in gating)]
        score = partial(_native_block, cosines=cosines)
        columns.append(score_blocks(score, blocks, by_word, by_image, len(words)))
    return torch.cat(columns, dim=1)


def _native_block(
    by_word: Sequence[Tensor], by_image: Sequence[Tensor], length: int, *, cosines: Cosines
) -> Tensor:
    """Four (m * C, d), then (I, n, d) and three (I, d / TILE, n, TILE) -> (I, C)."""
    rotated, *gating = by_word
    regions, *tiles = by_image
    images, n, dim = regions.shape
    logits = (regions.view(images * n, dim) @ rotated.T).view(images, n, length, -1)  # (I, n, m, C)
    captions = logits.shape[-1]
    alpha = logits.softmax(1).permute(0, 3, 2, 1).contiguous()  # (I, C, m, n)
    beta = logits.softmax(2).permute(0, 3, 1, 2).contiguous()  # (I, C, n, m)
    by_position = (length, captions, dim)
    words = [tiled(tensor.view(by_position).transpose(0, 1)) for tensor in gating]
    found = torch.empty(images, captions)
    sizes = (images, captions, length, n, dim // TILE)
    cosines(*sizes, *(tensor.data_ptr() for tensor in (alpha, beta, *words, *tiles, found)))
    return found


def tiled(fragments: Tensor) -> Tensor:
    """(N, f, d) -> (N, d / TILE, f, TILE), so that a tile of all fragments lies together."""
    items, count, dim = fragments.shape
    return fragments.reshape(items, count, dim // TILE, TILE).transpose(1, 2).contiguous()


def _images_per_block(captions: int, length: int) -> int:
    return max(1, BLOCK_PAIRS // captions)


def compiled() -> Cosines | None:
    """The function in C, or None where it cannot be had."""
    with _compile_once:
        return _compiled()


@functools.cache
def _compiled() -> Cosines | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "gated_cosines.so"
            command = [compiler, *FLAGS, "-x", "c", "-", "-lm", "-o", str(library)]
            subprocess.run(command, input=SOURCE.encode(), capture_output=True, check=True, timeout=60)
            function = ctypes.CDLL(str(library)).gated_cosines
    except (OSError, subprocess.SubprocessError):
        return None
    function.argtypes = [ctypes.c_long] * 5 + [ctypes.c_void_p] * 9
    function.restype = None
    call: Cosines = function
    return call
