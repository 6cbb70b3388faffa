"""Triton kernels of `cross_gated_fused`, defined only where Triton is installed.

Vectors lie across: a caption is (D, L) and an image (D, N), one column per fragment, so that the sums over
fragments run inside a thread. With u, v the vectors, x1 the own and x2 the seen parts of the gates, and the
attention alpha, beta (N, L) of a pair, a chunk of BLOCK_D numbers of the pooled vectors needs only the same
chunk of u, v, x1 and x2:

    word contexts  c = v alpha,    gates g = sigmoid(u1 + v2 alpha),   P = sum over words of c + g (u - c)
    region contexts e = u beta^T,  gates h = sigmoid(v1 + u2 beta^T),  Q = sum over regions of e + h (v - e)

The biases of the gates stay apart from the own parts, in float32: 2 + x would keep few bits of x in float16.
Forward, contexts take alpha and beta as two float16, the second holding what the first left over: rounded
weights do not sum to 1, and that is most of the error. Gates do not need it.

Padded and masked fragments are zeros in u and v, and have no attention: they add nothing to P and Q.

Going back, dP = (Q/|Q| - cos P/|P|) / |P|, and so for dQ. Products take float16, so gradients are first
multiplied by `LIFT` and what is small is a factor of the whole pair.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton has no unpacking)
from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    LOG2_E = tl.constexpr(1.4426950408889634)
    LIFT = tl.constexpr(256.0)
    LARGEST = tl.constexpr(65504.0)  # that float16 holds

    @triton.jit
    def chunk(tensor, item, start, D: tl.constexpr, BLOCK_D: tl.constexpr, WIDTH: tl.constexpr):
        """Rows start .. start + BLOCK_D of one item of (items, D, WIDTH)."""
        rows = start + tl.arange(0, BLOCK_D)
        place = tl.cast(item, tl.int64) * D * WIDTH + rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        return tl.load(tensor + place)

    @triton.jit
    def bias_chunk(bias, start, BLOCK_D: tl.constexpr):
        """(BLOCK_D, 1) of (D,)."""
        return tl.load(bias + start + tl.arange(0, BLOCK_D))[:, None]

    @triton.jit
    def halves(x):
        """Two float16 tensors that sum to x."""
        high = x.to(tl.float16)
        return high, (x - high.to(tl.float32)).to(tl.float16)

    @triton.jit
    def sigmoid(x):
        return 1.0 / (1.0 + tl.exp2(x * -LOG2_E))

    @triton.jit
    def attention(logits, word_there, region_there):
        """alpha over regions and beta over words, both (N, L) float32, 0 at what is not there."""
        there = region_there[:, None] & word_there[None, :]
        raised = tl.where(there, logits, -1e30)
        over_regions = tl.where(there, tl.exp2((raised - tl.max(raised, 0)[None, :]) * LOG2_E), 0.0)
        total = tl.sum(over_regions, 0)
        alpha = over_regions / tl.where(total > 0.0, total, 1.0)[None, :]
        over_words = tl.where(there, tl.exp2((raised - tl.max(raised, 1)[:, None]) * LOG2_E), 0.0)
        total = tl.sum(over_words, 1)
        beta = over_words / tl.where(total > 0.0, total, 1.0)[:, None]
        return alpha, beta

    @triton.jit
    def gated(own, context, gate):
        """Sum over fragments of context + gate * (own - context): (BLOCK_D,)."""
        return tl.sum(context + gate * (own.to(tl.float32) - context), 1)

    @triton.jit
    def forward_kernel(
        rotated, words, own_word, seen_region, word_mask, regions, seen_word, own_region, region_mask,
        word_bias, region_bias, sums, groups, images,
        D: tl.constexpr, L: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr,
        CAPTIONS: tl.constexpr, GROUP: tl.constexpr,
    ):  # fmt: skip
        """|P|^2, |Q|^2 and P.Q of CAPTIONS captions with one image, into sums (T, I, 3).

        rotated, words, own_word, seen_region (T, D, L); regions, seen_word, own_region (I, D, N).
        Programs that run together share GROUP groups of captions and a few images.
        """
        program = tl.program_id(0)
        together = GROUP * images
        first = program // together * GROUP
        size = tl.minimum(groups - first, GROUP)
        group = first + program % together % size
        image = program % together // size

        logits = ()
        for _ in tl.static_range(CAPTIONS):
            logits = logits + (tl.zeros((N, L), tl.float32),)
        for start in range(0, D, BLOCK_D):
            v = tl.trans(chunk(regions, image, start, D, BLOCK_D, N))
            summed = ()
            for c in tl.static_range(CAPTIONS):
                u = chunk(rotated, group * CAPTIONS + c, start, D, BLOCK_D, L)
                summed = summed + (tl.dot(v, u, logits[c]),)
            logits = summed
        region_there = tl.load(region_mask + image.to(tl.int64) * N + tl.arange(0, N)) != 0
        alphas = ()
        low_alphas = ()
        betas = ()
        low_betas = ()
        for c in tl.static_range(CAPTIONS):
            caption = group * CAPTIONS + c
            word_there = tl.load(word_mask + caption.to(tl.int64) * L + tl.arange(0, L)) != 0
            alpha, beta = attention(logits[c], word_there, region_there)
            high, low = halves(alpha)
            alphas = alphas + (high,)
            low_alphas = low_alphas + (low,)
            high, low = halves(beta)
            betas = betas + (tl.trans(high),)
            low_betas = low_betas + (tl.trans(low),)

        word_squares = ()
        region_squares = ()
        products = ()
        for _ in tl.static_range(CAPTIONS):
            word_squares = word_squares + (tl.zeros((BLOCK_D,), tl.float32),)
            region_squares = region_squares + (tl.zeros((BLOCK_D,), tl.float32),)
            products = products + (tl.zeros((BLOCK_D,), tl.float32),)
        for start in range(0, D, BLOCK_D):
            v = chunk(regions, image, start, D, BLOCK_D, N)
            v1 = chunk(own_region, image, start, D, BLOCK_D, N)
            v2 = chunk(seen_word, image, start, D, BLOCK_D, N)
            b1 = bias_chunk(word_bias, start, BLOCK_D)
            b2 = bias_chunk(region_bias, start, BLOCK_D)
            more_words = ()
            more_regions = ()
            more_products = ()
            for c in tl.static_range(CAPTIONS):
                caption = group * CAPTIONS + c
                u = chunk(words, caption, start, D, BLOCK_D, L)
                u1 = chunk(own_word, caption, start, D, BLOCK_D, L)
                u2 = chunk(seen_region, caption, start, D, BLOCK_D, L)
                context = tl.dot(v, low_alphas[c], tl.dot(v, alphas[c]))
                p = gated(u, context, sigmoid(tl.dot(v2, alphas[c]) + u1 + b1))
                context = tl.dot(u, low_betas[c], tl.dot(u, betas[c]))
                q = gated(v, context, sigmoid(tl.dot(u2, betas[c]) + v1 + b2))
                more_words = more_words + (word_squares[c] + p * p,)
                more_regions = more_regions + (region_squares[c] + q * q,)
                more_products = more_products + (products[c] + p * q,)
            word_squares = more_words
            region_squares = more_regions
            products = more_products
        for c in tl.static_range(CAPTIONS):
            place = sums + ((group * CAPTIONS + c).to(tl.int64) * images + image) * 3
            tl.store(place, tl.sum(word_squares[c], 0))
            tl.store(place + 1, tl.sum(region_squares[c], 0))
            tl.store(place + 2, tl.sum(products[c], 0))

    @triton.jit
    def pair_scalars(sums, incoming, caption, image, images):
        """1/|P|, 1/|Q|, the cosine, and the factors of what comes from dP and from dQ."""
        place = tl.cast(caption, tl.int64) * images + image
        word_square = tl.load(sums + place * 3)
        region_square = tl.load(sums + place * 3 + 1)
        there = (word_square > 0.0) & (region_square > 0.0)
        p = tl.where(there, tl.rsqrt(tl.where(there, word_square, 1.0)), 0.0)
        q = tl.where(there, tl.rsqrt(tl.where(there, region_square, 1.0)), 0.0)
        gradient = tl.load(incoming + place) / LIFT
        return p, q, tl.load(sums + place * 3 + 2) * p * q, gradient * p, gradient * q

    @triton.jit
    def side_back(own, context, gate, lifted):
        """From the lifted gradient (BLOCK_D,) of a sum: by context, by the gate's logits, by own."""
        gradient = lifted[:, None]
        through_gate = gradient * (own.to(tl.float32) - context) * gate * (1.0 - gate)
        direct = gradient * gate
        return gradient - direct, through_gate, direct

    @triton.jit
    def chunk_back(u, u1, u2, b1, v, v1, v2, b2, alpha, beta, p_inverse, q_inverse, cosine):
        """Lifted gradients of a chunk: of word contexts, gates and words, then of the regions' three."""
        word_context = tl.dot(v, alpha)
        word_gate = sigmoid(tl.dot(v2, alpha) + u1 + b1)
        region_context = tl.dot(u, tl.trans(beta))
        region_gate = sigmoid(tl.dot(u2, tl.trans(beta)) + v1 + b2)
        p = gated(u, word_context, word_gate) * p_inverse
        q = gated(v, region_context, region_gate) * q_inverse
        by_context, by_gate, by_word = side_back(u, word_context, word_gate, (q - cosine * p) * LIFT)
        region_back = side_back(v, region_context, region_gate, (p - cosine * q) * LIFT)
        return by_context, by_gate, by_word, region_back[0], region_back[1], region_back[2]

    @triton.jit
    def pair_kernel(
        rotated, words, own_word, seen_region, word_mask, regions, seen_word, own_region, region_mask,
        word_bias, region_bias, sums, incoming, alphas, betas, by_logits, first_image, images, some_images,
        D: tl.constexpr, L: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr,
    ):  # fmt: skip
        """One pair: alpha and beta into (T, I', N, L), and the gradient by the logits into (T, L, I', N)."""
        caption = tl.program_id(0)
        own = tl.program_id(1)
        image = first_image + own
        logits = tl.zeros((N, L), tl.float32)
        for start in range(0, D, BLOCK_D):
            v = tl.trans(chunk(regions, image, start, D, BLOCK_D, N))
            logits = tl.dot(v, chunk(rotated, caption, start, D, BLOCK_D, L), logits)
        columns = tl.arange(0, N)
        places = tl.arange(0, L)
        region_there = tl.load(region_mask + image.to(tl.int64) * N + columns) != 0
        word_there = tl.load(word_mask + caption.to(tl.int64) * L + places) != 0
        wide_alpha, wide_beta = attention(logits, word_there, region_there)
        alpha = wide_alpha.to(tl.float16)
        beta = wide_beta.to(tl.float16)
        pair = (caption.to(tl.int64) * some_images + own) * N * L
        tl.store(alphas + pair + columns[:, None] * L + places[None, :], alpha)
        tl.store(betas + pair + columns[:, None] * L + places[None, :], beta)

        p, q, cosine, word_factor, region_factor = pair_scalars(sums, incoming, caption, image, images)
        by_alpha = tl.zeros((N, L), tl.float32)
        by_beta = tl.zeros((N, L), tl.float32)
        for start in range(0, D, BLOCK_D):
            v = chunk(regions, image, start, D, BLOCK_D, N)
            v1 = chunk(own_region, image, start, D, BLOCK_D, N)
            v2 = chunk(seen_word, image, start, D, BLOCK_D, N)
            u = chunk(words, caption, start, D, BLOCK_D, L)
            u1 = chunk(own_word, caption, start, D, BLOCK_D, L)
            u2 = chunk(seen_region, caption, start, D, BLOCK_D, L)
            b1 = bias_chunk(word_bias, start, BLOCK_D)
            b2 = bias_chunk(region_bias, start, BLOCK_D)
            back = chunk_back(u, u1, u2, b1, v, v1, v2, b2, alpha, beta, p, q, cosine)
            by_alpha = tl.dot(tl.trans(v), back[0].to(tl.float16), by_alpha)
            by_alpha = tl.dot(tl.trans(v2), back[1].to(tl.float16), by_alpha)
            by_beta = tl.dot(tl.trans(back[3].to(tl.float16)), u, by_beta)
            by_beta = tl.dot(tl.trans(back[4].to(tl.float16)), u2, by_beta)
        across = tl.sum(wide_alpha * by_alpha, 0)
        result = word_factor * wide_alpha * (by_alpha - across[None, :])
        across = tl.sum(wide_beta * by_beta, 1)
        result += region_factor * wide_beta * (by_beta - across[:, None])
        row = caption.to(tl.int64) * L + places
        place = (row[None, :] * some_images + own) * N + columns[:, None]
        result = tl.minimum(tl.maximum(result, -LARGEST), LARGEST)
        tl.store(by_logits + place, result.to(tl.float16))

    @triton.jit
    def word_kernel(
        words, own_word, seen_region, regions, seen_word, own_region, word_bias, region_bias,
        sums, incoming, alphas, betas,
        by_words, by_own, by_seen, first_image, images, some_images,
        D: tl.constexpr, L: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr,
    ):  # fmt: skip
        """One caption and chunk, image after image: adds to three gradients (T, D, L) in float32."""
        caption = tl.program_id(0)
        start = tl.program_id(1) * BLOCK_D
        b1 = bias_chunk(word_bias, start, BLOCK_D)
        b2 = bias_chunk(region_bias, start, BLOCK_D)
        u = chunk(words, caption, start, D, BLOCK_D, L)
        u1 = chunk(own_word, caption, start, D, BLOCK_D, L)
        u2 = chunk(seen_region, caption, start, D, BLOCK_D, L)
        word_total = chunk(by_words, caption, start, D, BLOCK_D, L)
        own_total = chunk(by_own, caption, start, D, BLOCK_D, L)
        seen_total = chunk(by_seen, caption, start, D, BLOCK_D, L)
        for own in range(some_images):
            image = first_image + own
            pair = caption * some_images + own
            v = chunk(regions, image, start, D, BLOCK_D, N)
            v1 = chunk(own_region, image, start, D, BLOCK_D, N)
            v2 = chunk(seen_word, image, start, D, BLOCK_D, N)
            alpha = chunk(alphas, pair, 0, N, N, L)
            beta = chunk(betas, pair, 0, N, N, L)
            p, q, cosine, word_factor, region_factor = pair_scalars(sums, incoming, caption, image, images)
            back = chunk_back(u, u1, u2, b1, v, v1, v2, b2, alpha, beta, p, q, cosine)
            word_total += word_factor * back[2]
            word_total += region_factor * tl.dot(back[3].to(tl.float16), beta)
            own_total += word_factor * back[1]
            seen_total += region_factor * tl.dot(back[4].to(tl.float16), beta)
        rows = start + tl.arange(0, BLOCK_D)
        place = caption.to(tl.int64) * D * L + rows[:, None] * L + tl.arange(0, L)[None, :]
        tl.store(by_words + place, word_total)
        tl.store(by_own + place, own_total)
        tl.store(by_seen + place, seen_total)

    @triton.jit
    def region_kernel(
        words, own_word, seen_region, regions, seen_word, own_region, word_bias, region_bias,
        sums, incoming, alphas, betas,
        by_regions, by_seen, by_own, first_image, images, some_images, captions,
        D: tl.constexpr, L: tl.constexpr, N: tl.constexpr, BLOCK_D: tl.constexpr,
    ):  # fmt: skip
        """One image and chunk, caption after caption: added to three gradients (I, D, N) in float32."""
        own = tl.program_id(0)
        image = first_image + own
        start = tl.program_id(1) * BLOCK_D
        b1 = bias_chunk(word_bias, start, BLOCK_D)
        b2 = bias_chunk(region_bias, start, BLOCK_D)
        v = chunk(regions, image, start, D, BLOCK_D, N)
        v1 = chunk(own_region, image, start, D, BLOCK_D, N)
        v2 = chunk(seen_word, image, start, D, BLOCK_D, N)
        region_total = chunk(by_regions, image, start, D, BLOCK_D, N)
        seen_total = chunk(by_seen, image, start, D, BLOCK_D, N)
        own_total = chunk(by_own, image, start, D, BLOCK_D, N)
        for caption in range(captions):
            pair = caption * some_images + own
            u = chunk(words, caption, start, D, BLOCK_D, L)
            u1 = chunk(own_word, caption, start, D, BLOCK_D, L)
            u2 = chunk(seen_region, caption, start, D, BLOCK_D, L)
            alpha = chunk(alphas, pair, 0, N, N, L)
            beta = chunk(betas, pair, 0, N, N, L)
            p, q, cosine, word_factor, region_factor = pair_scalars(sums, incoming, caption, image, images)
            back = chunk_back(u, u1, u2, b1, v, v1, v2, b2, alpha, beta, p, q, cosine)
            region_total += region_factor * back[5]
            region_total += word_factor * tl.dot(back[0].to(tl.float16), tl.trans(alpha))
            seen_total += word_factor * tl.dot(back[1].to(tl.float16), tl.trans(alpha))
            own_total += region_factor * back[4]
        rows = start + tl.arange(0, BLOCK_D)
        place = image.to(tl.int64) * D * N + rows[:, None] * N + tl.arange(0, N)[None, :]
        tl.store(by_regions + place, region_total)
        tl.store(by_seen + place, seen_total)
        tl.store(by_own + place, own_total)
