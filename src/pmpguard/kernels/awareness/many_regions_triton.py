"""Triton kernels of `many_regions.py`, defined only where Triton is installed.

A program takes one block of words and one image and goes through its regions BLOCK_N at a time. The cosines
(R, images, N) lie in memory, N a whole number of blocks; everything else is made from them in registers.
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    from pmpguard.kernels.awareness.triton_kernels import (
        LOG2_E,
        feature_weights,
        relevance_logits,
        split_dot,
        write_scores,
    )

    @triton.jit
    def regions_there(region_mask, image, first, n, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
        """(1, BLOCK_N) whether a column from `first` on is a region to look at."""
        columns = first + tl.arange(0, BLOCK_N)
        there = columns < n
        if MASKED:
            flag = tl.load(region_mask + image.to(tl.int64) * n + columns, mask=there, other=0)
            there = there & (flag != 0)
        return there[None, :]

    @triton.jit
    def load_cosines(cosines, rows, own, some_images, first, N: tl.constexpr, BLOCK_N: tl.constexpr):
        """(BLOCK_M, BLOCK_N) of `rows` with the regions from `first` on."""
        place = (rows.to(tl.int64)[:, None] * some_images + own) * N + first + tl.arange(0, BLOCK_N)[None, :]
        return tl.load(cosines + place)

    @triton.jit
    def times_gram(
        cosines, rows, own, some_images, best, gram_high, gram_low, region_mask, image, n, first, t,
        sharpness, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        """The feature weights of all regions times BLOCK_N columns of the Gram matrix, from `first` on."""
        product = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        columns = first + tl.arange(0, BLOCK_N)
        for other in range(0, N, BLOCK_N):
            s = load_cosines(cosines, rows, own, some_images, other, N, BLOCK_N)
            there = regions_there(region_mask, image, other, n, BLOCK_N, MASKED)
            _, high, low = feature_weights(s, best, there & (s > t), sharpness)
            beside = other + tl.arange(0, BLOCK_N)
            place = own.to(tl.int64) * N * N + beside[:, None] * N + columns[None, :]
            g_high = tl.load(gram_high + place)
            product = tl.dot(high, tl.load(gram_low + place), product)
            product = tl.dot(low, g_high, product)
            product = tl.dot(high, g_high, product)
        return product

    @triton.jit
    def word_sums(
        cosines, rows, own, some_images, same, gram_high, gram_low, region_mask, image, n, t, sharpness,
        slope, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        """Of every word: best cosine, how many regions have it, u.c, |c|^2, and the sums of relevance."""
        best = tl.full((BLOCK_M,), -1e30, tl.float32)
        for first in range(0, N, BLOCK_N):
            s = load_cosines(cosines, rows, own, some_images, first, N, BLOCK_N)
            there = regions_there(region_mask, image, first, n, BLOCK_N, MASKED)
            best = tl.maximum(best, tl.max(tl.where(there, s, -1e30), 1))
        ties = tl.zeros((BLOCK_M,), tl.float32)
        along = tl.zeros((BLOCK_M,), tl.float32)
        length = tl.zeros((BLOCK_M,), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        weighted = tl.zeros((BLOCK_M,), tl.float32)
        for first in range(0, N, BLOCK_N):
            s = load_cosines(cosines, rows, own, some_images, first, N, BLOCK_N)
            there = regions_there(region_mask, image, first, n, BLOCK_N, MASKED)
            ties += tl.sum((there & (s == best[:, None])).to(tl.float32), 1)
            raw, _, _ = feature_weights(s, best, there & (s > t), sharpness)
            along += tl.sum(raw * s, 1)
            product = times_gram(
                cosines, rows, own, some_images, best, gram_high, gram_low, region_mask, image, n, first, t,
                sharpness, N, BLOCK_M, BLOCK_N, MASKED,
            )  # fmt: skip
            length += tl.sum(product * raw, 1)
            logits, _ = relevance_logits(s, same, slope)
            weight = tl.where(there, tl.exp2(sharpness * LOG2_E * logits), 0.0)
            total += tl.sum(weight, 1)
            weighted += tl.sum(weight * s, 1)
        return best, ties, along, length, total, weighted

    @triton.jit
    def forward_kernel(
        cosines, caption_of, share, gram_high, gram_low, region_mask, boundary, scores,
        first_image, images, some_images, n, sharpness, slope, smallest,
        N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        """Scores (T, I) of the captions of one block with one of `some_images` images.

        cosines (R, some_images, N), gram_* (some_images, N, N), the rest as for the kernel of few regions.
        """
        rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
        own = tl.program_id(1)
        image = first_image + own
        caption = tl.load(caption_of + rows)
        same = (caption[:, None] == tl.load(caption_of + rows)[None, :]).to(tl.float16)
        t = tl.load(boundary).to(tl.float32)
        best, _, along, length, total, weighted = word_sums(
            cosines, rows, own, some_images, same, gram_high, gram_low, region_mask, image, n, t, sharpness,
            slope, N, BLOCK_M, BLOCK_N, MASKED,
        )  # fmt: skip
        found = (caption >= 0) & (best > -1e29)
        directed = length > smallest
        feature = tl.where(directed, along * tl.rsqrt(tl.where(directed, length, 1.0)), 0.0)
        relevance = weighted / tl.where(found, total, 1.0)
        value = tl.where(found, feature + relevance + tl.minimum(best - t, 0.0), 0.0)
        write_scores(value, rows, image, caption_of, share, scores, images, BLOCK_M)

    @triton.jit
    def backward_kernel(
        cosines, caption_of, share, gram_high, gram_low, region_mask, boundary, incoming,
        outgoing, raws, weighted_raws,
        first_image, images, some_images, n, sharpness, slope, smallest,
        N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        """Gradients by the cosines, from `incoming` (T, I), for some of the images.

        outgoing (R, some_images, N). The product of `weighted_raws` and `raws`, of the same shape, over the
        rows is twice the gradient by the Gram matrix.
        """
        rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
        own = tl.program_id(1)
        image = first_image + own
        caption = tl.load(caption_of + rows)
        same = (caption[:, None] == tl.load(caption_of + rows)[None, :]).to(tl.float16)
        t = tl.load(boundary).to(tl.float32)
        kind = outgoing.dtype.element_ty
        best, ties, along, length, total, relevance = word_sums(
            cosines, rows, own, some_images, same, gram_high, gram_low, region_mask, image, n, t, sharpness,
            slope, N, BLOCK_M, BLOCK_N, MASKED,
        )  # fmt: skip
        found = (caption >= 0) & (best > -1e29)
        gradient = tl.load(incoming + caption.to(tl.int64) * images + image, mask=found, other=0.0)
        gradient *= tl.load(share + caption, mask=found, other=0.0)
        directed = length > smallest
        inverse = tl.where(directed, tl.rsqrt(tl.where(directed, length, 1.0)), 0.0)
        bend = along * inverse * inverse * inverse  # minus twice the gradient of f by |c|^2
        total = tl.where(found, total, 1.0)
        relevance = relevance / total
        negative = tl.where(found & (best <= t), 1.0 / tl.where(found, ties, 1.0), 0.0)
        for first in range(0, N, BLOCK_N):
            s = load_cosines(cosines, rows, own, some_images, first, N, BLOCK_N)
            there = regions_there(region_mask, image, first, n, BLOCK_N, MASKED)
            raw, _, _ = feature_weights(s, best, there & (s > t), sharpness)
            product = times_gram(
                cosines, rows, own, some_images, best, gram_high, gram_low, region_mask, image, n, first, t,
                sharpness, N, BLOCK_M, BLOCK_N, MASKED,
            )  # fmt: skip
            change = s * inverse[:, None] - product * bend[:, None]  # by raw
            total_change = raw * (inverse[:, None] + sharpness * change)
            total_change += tl.where(there & (s == best[:, None]), negative[:, None], 0.0)

            logits, scale = relevance_logits(s, same, slope)
            weight = tl.where(there, tl.exp2(sharpness * LOG2_E * logits), 0.0) / total[:, None]
            change = sharpness * weight * (s - relevance[:, None])  # by logits over sharpness
            through_norm = change * logits
            high = through_norm.to(tl.float16)
            low = (through_norm - high.to(tl.float32)).to(tl.float16)
            change = (change - logits * split_dot(same, high, low)) * scale  # by leaky
            total_change += weight + tl.where(s > 0.0, change, change * slope)

            columns = first + tl.arange(0, BLOCK_N)
            place = (rows.to(tl.int64)[:, None] * some_images + own) * N + columns[None, :]
            tl.store(outgoing + place, (total_change * gradient[:, None]).to(kind))
            tl.store(raws + place, raw.to(kind))
            tl.store(weighted_raws + place, (raw * (-bend * gradient)[:, None]).to(kind))
