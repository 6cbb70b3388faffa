"""Triton kernels of `fused.py`, defined only where Triton is installed.

A program holds the cosines of one block of words with the regions of an image, (BLOCK_M, BLOCK_N), and makes
everything else from them without leaving the chip. Captions lie in blocks whole, so what runs across the
words of a caption is a product with the matrix `same`, 1 where two rows belong to one caption.

Products of float32 numbers on tensor cores: a number is split into two float16, the second holding what the
first left over, 22 bits together. That is float32 accuracy at half the cost of the built-in way. It holds for
numbers between about 1e-4 and 6e4, so squares of cosines are multiplied by `LIFT` first.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton has no unpacking)
from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    LOG2_E = tl.constexpr(1.4426950408889634)
    LIFT = tl.constexpr(4096.0)
    ROOT_LIFT = tl.constexpr(64.0)

    @triton.jit
    def split_dot(exact, high, low):
        """exact @ (high + low), where `exact` is float16 without error."""
        return tl.dot(exact, low, tl.dot(exact, high))

    @triton.jit
    def cosines(
        words, regions, rows, image, last_image, dim, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
        BLOCK_K: tl.constexpr, IMAGES: tl.constexpr, WHOLE_K: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """(BLOCK_M, BLOCK_N) of `rows` of words (R, dim) with each of IMAGES images of (I, BLOCK_N, dim).

        Images after the last are the last once more.
        """
        columns = tl.arange(0, BLOCK_N)
        steps = tl.arange(0, BLOCK_K)
        word = words + rows.to(tl.int64)[:, None] * dim + steps[None, :]
        s = ()
        for _ in tl.static_range(IMAGES):
            s = s + (tl.zeros((BLOCK_M, BLOCK_N), tl.float32),)
        for start in range(0, dim, BLOCK_K):
            inside = steps < dim - start
            if WHOLE_K:
                left = tl.load(word + start)
            else:
                left = tl.load(word + start, mask=inside[None, :], other=0.0)
            summed = ()
            for c in tl.static_range(IMAGES):
                own = tl.minimum(image + c, last_image).to(tl.int64)
                region = regions + (own * BLOCK_N + columns)[None, :] * dim + steps[:, None]
                if WHOLE_K:
                    right = tl.load(region + start)
                else:
                    right = tl.load(region + start, mask=inside[:, None], other=0.0)
                summed = summed + (tl.dot(left, right, s[c], input_precision=PRECISION),)
            s = summed
        return s

    @triton.jit
    def feature_weights(s, best, passes, sharpness):
        """exp(sharpness * (s - best)) where a region passes, and its two float16 parts."""
        raw = tl.where(passes, tl.exp2(sharpness * LOG2_E * (s - best[:, None])), 0.0)
        high = raw.to(tl.float16)
        return raw, high, (raw - high.to(tl.float32)).to(tl.float16)

    @triton.jit
    def times_gram(high, low, gram_high, gram_low, image, BLOCK_N: tl.constexpr):
        """(high + low) @ G of the image; G is symmetric."""
        columns = tl.arange(0, BLOCK_N)
        place = image.to(tl.int64) * BLOCK_N * BLOCK_N + columns[:, None] * BLOCK_N + columns[None, :]
        g_high = tl.load(gram_high + place)
        g_low = tl.load(gram_low + place)
        product = tl.dot(high, g_low)
        product = tl.dot(low, g_high, product)
        return tl.dot(high, g_high, product)

    @triton.jit
    def relevance_logits(s, same, slope):
        """p = leaky(s) over its norm across the words of a caption, and 1 / that norm."""
        leaky = tl.where(s > 0.0, s, s * slope)
        square = leaky * leaky * LIFT
        high = square.to(tl.float16)
        energy = split_dot(same, high, (square - high.to(tl.float32)).to(tl.float16))
        scale = tl.where(energy > 0.0, tl.rsqrt(energy) * ROOT_LIFT, 1.0)
        return leaky * scale, scale

    @triton.jit
    def regions_there(region_mask, image, n, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
        """(BLOCK_N,) whether a column is a region to look at."""
        columns = tl.arange(0, BLOCK_N)
        there = columns < n
        if MASKED:
            flag = tl.load(region_mask + image.to(tl.int64) * n + columns, mask=there, other=0)
            there = there & (flag != 0)
        return there

    @triton.jit
    def write_scores(value, rows, image, caption_of, share, scores, images, BLOCK_M: tl.constexpr):
        """Means of the words' evidence (BLOCK_M,) over their captions, to scores (T, I)."""
        caption = tl.load(caption_of + rows)
        # Read again, else the comparison above is kept in registers until here.
        left = tl.load(caption_of + rows, volatile=True)
        right = tl.load(caption_of + rows, volatile=True)
        pooled = tl.sum(tl.where(left[:, None] == right[None, :], value[None, :], 0.0), 1)
        # The first row of a caption writes its score.
        before = tl.load(caption_of + rows - 1, mask=rows % BLOCK_M > 0, other=-1)
        writes = (caption >= 0) & (caption != before)
        pooled = pooled * tl.load(share + caption, mask=caption >= 0, other=0.0)
        tl.store(scores + caption.to(tl.int64) * images + image, pooled, mask=writes)

    @triton.jit
    def score_block(
        s, rows, image, caption_of, share, gram_high, gram_low, region_mask, boundary, scores,
        images, n, sharpness, slope, smallest,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
    ):  # fmt: skip
        """Scores (T, I) of the captions of one block with one image, from its cosines."""
        there = regions_there(region_mask, image, n, BLOCK_N, MASKED)[None, :]
        caption = tl.load(caption_of + rows)
        same = (caption[:, None] == tl.load(caption_of + rows)[None, :]).to(tl.float16)
        t = tl.load(boundary).to(tl.float32)

        best = tl.max(tl.where(there, s, -1e30), 1)
        found = (caption >= 0) & (best > -1e29)
        raw, high, low = feature_weights(s, best, there & (s > t), sharpness)
        along = tl.sum(raw * s, 1)
        length = tl.sum(times_gram(high, low, gram_high, gram_low, image, BLOCK_N) * raw, 1)
        directed = length > smallest
        feature = tl.where(directed, along * tl.rsqrt(tl.where(directed, length, 1.0)), 0.0)

        logits, _ = relevance_logits(s, same, slope)
        weight = tl.where(there, tl.exp2(sharpness * LOG2_E * logits), 0.0)
        total = tl.sum(weight, 1)
        relevance = tl.sum(weight * s, 1) / tl.where(found, total, 1.0)

        value = tl.where(found, feature + relevance + tl.minimum(best - t, 0.0), 0.0)
        write_scores(value, rows, image, caption_of, share, scores, images, BLOCK_M)

    @triton.jit
    def forward_kernel(
        words, caption_of, share, regions, gram_high, gram_low, region_mask, boundary, scores,
        blocks, images, n, dim, sharpness, slope, smallest,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
        IMAGES: tl.constexpr, WHOLE_K: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Scores (T, I) of the captions of one block with IMAGES images.

        words (R, dim), caption_of (R,), share (T,) one over a caption's words, regions (I, BLOCK_N, dim),
        gram_* (I, BLOCK_N, BLOCK_N). Programs that run together share GROUP blocks and a few images.
        """
        program = tl.program_id(0)
        together = GROUP * tl.cdiv(images, IMAGES)
        first = program // together * GROUP
        size = tl.minimum(blocks - first, GROUP)
        block = first + program % together % size
        image = program % together // size * IMAGES

        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        s = cosines(
            words,
            regions,
            rows,
            image,
            images - 1,
            dim,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            IMAGES,
            WHOLE_K,
            PRECISION,
        )
        for c in tl.static_range(IMAGES):
            # Images after the last give the last one's score again.
            own = tl.minimum(image + c, images - 1)
            score_block(
                s[c], rows, own, caption_of, share, gram_high, gram_low, region_mask, boundary, scores,
                images, n, sharpness, slope, smallest, BLOCK_M, BLOCK_N, MASKED,
            )  # fmt: skip

    @triton.jit
    def backward_kernel(
        words, caption_of, share, regions, gram_high, gram_low, region_mask, boundary, incoming,
        outgoing, gram_outgoing,
        first_image, images, some_images, blocks, blocks_per_program, n, dim, sharpness, slope, smallest,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
        WHOLE_K: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Gradients with respect to cosines and Gram matrix, from `incoming` (T, I), for some of the images.

        outgoing (R, some_images, BLOCK_N), gram_outgoing (programs per image, some_images, BLOCK_N, BLOCK_N),
        twice the gradient. A program takes some consecutive blocks with one image.
        """
        part = tl.program_id(1)
        own = tl.program_id(0)
        image = first_image + own
        columns = tl.arange(0, BLOCK_N)
        there = regions_there(region_mask, image, n, BLOCK_N, MASKED)[None, :]
        t = tl.load(boundary).to(tl.float32)
        kind = outgoing.dtype.element_ty
        gram_gradient = tl.zeros((BLOCK_N, BLOCK_N), tl.float32)
        last = tl.minimum((part + 1) * blocks_per_program, blocks)
        for block in range(part * blocks_per_program, last):
            rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
            s = cosines(
                words, regions, rows, image, image, dim, BLOCK_M, BLOCK_N, BLOCK_K, 1, WHOLE_K, PRECISION
            )[0]
            caption = tl.load(caption_of + rows)
            same = (caption[:, None] == tl.load(caption_of + rows)[None, :]).to(tl.float16)

            best = tl.max(tl.where(there, s, -1e30), 1)
            found = (caption >= 0) & (best > -1e29)
            gradient = tl.load(incoming + caption.to(tl.int64) * images + image, mask=found, other=0.0)
            gradient *= tl.load(share + caption, mask=found, other=0.0)

            raw, high, low = feature_weights(s, best, there & (s > t), sharpness)
            along = tl.sum(raw * s, 1)
            product = times_gram(high, low, gram_high, gram_low, image, BLOCK_N)
            length = tl.sum(product * raw, 1)
            directed = length > smallest
            inverse = tl.where(directed, tl.rsqrt(tl.where(directed, length, 1.0)), 0.0)
            bend = along * inverse * inverse * inverse  # minus twice the gradient of f by |c|^2
            change = s * inverse[:, None] - product * bend[:, None]  # by raw
            total_change = raw * (inverse[:, None] + sharpness * change)
            weighted = raw * (-bend * gradient)[:, None]
            gram_gradient = tl.dot(
                tl.trans(weighted.to(kind)), raw.to(kind), gram_gradient, input_precision=PRECISION
            )

            highest = there & (s == best[:, None])
            ties = tl.sum(highest.to(tl.float32), 1)
            negative = tl.where(found & (best <= t), 1.0 / tl.where(found, ties, 1.0), 0.0)
            total_change += tl.where(highest, negative[:, None], 0.0)

            logits, scale = relevance_logits(s, same, slope)
            weight = tl.where(there, tl.exp2(sharpness * LOG2_E * logits), 0.0)
            weight = weight / tl.where(found, tl.sum(weight, 1), 1.0)[:, None]
            relevance = tl.sum(weight * s, 1)
            change = sharpness * weight * (s - relevance[:, None])  # by logits over sharpness
            through_norm = change * logits
            high = through_norm.to(tl.float16)
            low = (through_norm - high.to(tl.float32)).to(tl.float16)
            change = (change - logits * split_dot(same, high, low)) * scale  # by leaky
            total_change += weight + tl.where(s > 0.0, change, change * slope)

            total_change *= gradient[:, None]
            place = (rows.to(tl.int64)[:, None] * some_images + own) * BLOCK_N + columns[None, :]
            tl.store(outgoing + place, total_change.to(kind))
        place = (part.to(tl.int64) * some_images + own) * BLOCK_N * BLOCK_N
        tl.store(gram_outgoing + place + columns[:, None] * BLOCK_N + columns[None, :], gram_gradient)
