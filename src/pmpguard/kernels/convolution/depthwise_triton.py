"""Triton kernels of `depthwise`, defined only where Triton is installed.

Channels are innermost in memory. A program takes CHANNELS channels of LANES lanes, a lane being two adjacent
columns of one image, and slides down the rows: each row is read once and added to the results it reaches,
which wait in registers. Lanes of all images follow one another, so narrow images leave few threads idle.

A tile is (LANES, CHANNELS). Rows of tiles are tuples, (row, column) with the column running fastest.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton has no unpacking)
from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    SIZES = ["lanes", "groups", "strip", "height", "width", "out_height", "out_width"]

    @triton.jit
    def load_taps(taps, channel, there, channels, COUNT: tl.constexpr):
        """COUNT rows of taps (COUNT, C), each (1, CHANNELS) float32."""
        rows = ()
        for tap in tl.static_range(COUNT):
            row = tl.load(taps + tap * channels + channel, mask=there, other=0.0).to(tl.float32)
            rows = rows + (row,)
        return rows

    @triton.jit
    def load_rows(
        own, y, first, last, start, inside, width, channels, ROWS: tl.constexpr, WIDE: tl.constexpr
    ):  # fmt: skip
        """Rows y .. y + ROWS of a lane's features (ROWS, WIDE), 0 where they are not in first .. last."""
        row = ()
        for i in tl.static_range(ROWS):
            for u in tl.static_range(WIDE):
                seen = inside & (start + u < width) & (y + i >= first) & (y + i < last)
                row = row + (tl.load(own + ((y + i) * width + u) * channels, mask=seen, other=0.0),)
        return row

    @triton.jit(do_not_specialize=SIZES)
    def forward_kernel(
        features, taps, bias, result,
        lanes, groups, strip, height, width, out_height, out_width, channels,
        K: tl.constexpr, STRIDE: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
        COLUMNS: tl.constexpr, LANES: tl.constexpr, CHANNELS: tl.constexpr,
    ):  # fmt: skip
        """relu6(depthwise convolution + bias) of `strip` rows of the result.

        Input row STRIDE m + i - TOP is tap row STRIDE d + i of the result's row m - d.
        """
        blocks = tl.cdiv(channels, CHANNELS)
        program = tl.program_id(0)
        lane = (program // blocks) * LANES + tl.arange(0, LANES)[:, None]  # (LANES, 1)
        channel = (program % blocks) * CHANNELS + tl.arange(0, CHANNELS)[None, :]  # (1, CHANNELS)
        known = channel < channels
        inside = (lane < lanes) & known  # (LANES, CHANNELS)
        image = (lane // groups).to(tl.int64)
        column = (lane % groups) * COLUMNS  # first of the lane in the result
        start = column * STRIDE - LEFT  # first of the lane in the features

        DEPTH: tl.constexpr = (K - 1) // STRIDE  # results a row of features reaches beyond the newest
        WIDTH: tl.constexpr = STRIDE * (COLUMNS - 1) + K
        source = features + image * height * width * channels + start * channels + channel
        target = result + image * out_height * out_width * channels + column * channels + channel
        weight = load_taps(taps, channel, known, channels, K * K)
        shift = tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)
        nothing = tl.zeros((LANES, CHANNELS), tl.float32)

        pending = ()  # sums of the newest DEPTH results
        for _ in tl.static_range(DEPTH * COLUMNS):
            pending = pending + (nothing,)
        first = tl.program_id(1) * strip
        last = tl.minimum(first + strip, out_height)
        for m in range(first, last + DEPTH):
            row = ()  # (STRIDE, WIDTH)
            for i in tl.static_range(STRIDE):
                y = STRIDE * m + i - TOP
                for j in tl.static_range(WIDTH):
                    seen = inside & (start + j >= 0) & (start + j < width) & (y >= 0) & (y < height)
                    place = source + (y * width + j) * channels
                    row = row + (tl.load(place, mask=seen, other=0.0).to(tl.float32),)
            sums = ()  # (DEPTH + 1, COLUMNS)
            for d in tl.static_range(DEPTH + 1):
                for u in tl.static_range(COLUMNS):
                    total = nothing
                    if d > 0:
                        total = pending[(d - 1) * COLUMNS + u]
                    for i in tl.static_range(STRIDE):
                        if STRIDE * d + i < K:
                            for t in tl.static_range(K):
                                total += row[i * WIDTH + STRIDE * u + t] * weight[(STRIDE * d + i) * K + t]
                    sums = sums + (total,)
            o = m - DEPTH
            for u in tl.static_range(COLUMNS):
                value = tl.minimum(tl.maximum(sums[DEPTH * COLUMNS + u] + shift, 0.0), 6.0)
                stored = inside & (column + u < out_width) & (o >= first)
                tl.store(target + (o * out_width + u) * channels, value, mask=stored)
            pending = ()
            for d in tl.static_range(DEPTH * COLUMNS):
                pending = pending + (sums[d],)

    @triton.jit(do_not_specialize=SIZES)
    def backward_kernel(
        incoming, result, features, taps, by_features, parts,
        lanes, groups, strip, height, width, out_height, out_width, channels,
        K: tl.constexpr, STRIDE: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
        COLUMNS: tl.constexpr, LANES: tl.constexpr, CHANNELS: tl.constexpr, CLAMPED: tl.constexpr,
    ):  # fmt: skip
        """All gradients of `strip` rows of the features.

        The gradient's row o reaches features' rows STRIDE o - TOP + i through tap row i. `parts` takes this
        program's sums, (programs, K K + 2, C): of the taps, of the bias, and of `by_features`. CLAMPED says
        that the features are themselves a relu6, whose clamp `by_features` then passes as well.
        """
        blocks = tl.cdiv(channels, CHANNELS)
        program = tl.program_id(0)
        lane = (program // blocks) * LANES + tl.arange(0, LANES)[:, None]  # (LANES, 1)
        channel = (program % blocks) * CHANNELS + tl.arange(0, CHANNELS)[None, :]  # (1, CHANNELS)
        known = channel < channels
        inside = (lane < lanes) & known  # (LANES, CHANNELS)
        image = (lane // groups).to(tl.int64)

        WIDE: tl.constexpr = STRIDE * COLUMNS  # columns of features per lane
        LOW: tl.constexpr = -((K - 1 - LEFT) // STRIDE)  # first column of the gradient, from the lane's own
        REACH: tl.constexpr = COLUMNS + (STRIDE - 1 + LEFT) // STRIDE - LOW  # columns of the gradient
        KEPT: tl.constexpr = K - STRIDE  # rows of features that wait for more
        start = (lane % groups) * WIDE  # first of the lane in the features
        column = (lane % groups) * COLUMNS + LOW  # first of the lane in the gradient
        own = image * height * width * channels + start * channels + channel
        other = image * out_height * out_width * channels + column * channels + channel
        weight = load_taps(taps, channel, known, channels, K * K)
        nothing = tl.zeros((LANES, CHANNELS), tl.float32)

        by_taps = ()  # (K, K)
        for _ in tl.static_range(K * K):
            by_taps = by_taps + (nothing,)
        by_bias = nothing
        by_shift = nothing
        values = ()  # features (KEPT, WIDE)
        totals = ()  # their gradients so far (KEPT, WIDE)
        for _ in tl.static_range(KEPT * WIDE):
            values = values + (nothing,)
            totals = totals + (nothing,)
        first = tl.program_id(1) * strip
        last = tl.minimum(first + strip, height)
        begin = first // STRIDE - (K - 1 - TOP) // STRIDE
        y = STRIDE * begin - TOP + KEPT
        fresh = load_rows(features + own, y, first, last, start, inside, width, channels, STRIDE, WIDE)
        for o in range(begin, (last - 1 + TOP) // STRIDE + 1):
            for i in tl.static_range(STRIDE * WIDE):
                values = values + (fresh[i].to(tl.float32),)
            y = STRIDE * (o + 1) - TOP + KEPT  # asked for one step ahead
            fresh = load_rows(features + own, y, first, last, start, inside, width, channels, STRIDE, WIDE)
            row = ()  # gradients (REACH,), 0 where the result was clamped
            # Each gradient counts once for the bias.
            counts = ((STRIDE * o >= first) & (STRIDE * o < last)).to(tl.float32)
            for e in tl.static_range(REACH):
                seen = inside & (column + e >= 0) & (column + e < out_width) & (o >= 0) & (o < out_height)
                place = other + (o * out_width + e) * channels
                clamped = tl.load(result + place, mask=seen, other=0.0).to(tl.float32)
                gradient = tl.load(incoming + place, mask=seen, other=0.0).to(tl.float32)
                gradient = tl.where((clamped > 0.0) & (clamped < 6.0), gradient, 0.0)
                row = row + (gradient,)
                if e >= -LOW and e < COLUMNS - LOW:
                    by_bias += gradient * counts
            sums = ()  # (K, WIDE)
            for i in tl.static_range(K):
                for u in tl.static_range(WIDE):
                    total = nothing
                    if i < KEPT:
                        total = totals[i * WIDE + u]
                    for t in tl.static_range(K):
                        if (u + LEFT - t) % STRIDE == 0:
                            total += row[(u + LEFT - t) // STRIDE - LOW] * weight[i * K + t]
                    sums = sums + (total,)
            grown = ()  # (K, K)
            for i in tl.static_range(K):
                for t in tl.static_range(K):
                    total = by_taps[i * K + t]
                    for u in tl.static_range(WIDE):
                        if (u + LEFT - t) % STRIDE == 0:
                            total += row[(u + LEFT - t) // STRIDE - LOW] * values[i * WIDE + u]
                    grown = grown + (total,)
            by_taps = grown
            for i in tl.static_range(STRIDE):
                y = STRIDE * o - TOP + i
                for u in tl.static_range(WIDE):
                    seen = inside & (start + u < width) & (y >= first) & (y < last)
                    total = sums[i * WIDE + u]
                    if CLAMPED:
                        value = values[i * WIDE + u]  # 0 outside
                        total = tl.where((value > 0.0) & (value < 6.0), total, 0.0)
                        by_shift += total
                    tl.store(by_features + own + (y * width + u) * channels, total, mask=seen)
            waiting = ()
            totals = ()
            for i in tl.static_range(KEPT * WIDE):
                waiting = waiting + (values[STRIDE * WIDE + i],)
                totals = totals + (sums[STRIDE * WIDE + i],)
            values = waiting

        each = tl.num_programs(0) // blocks
        part = (tl.program_id(1) * each + program // blocks).to(tl.int64) * (K * K + 2)
        channel = (program % blocks) * CHANNELS + tl.arange(0, CHANNELS)  # (CHANNELS,)
        parts += part * channels + channel
        for tap in tl.static_range(K * K):
            tl.store(parts + tap * channels, tl.sum(by_taps[tap], 0), mask=channel < channels)
        tl.store(parts + K * K * channels, tl.sum(by_bias, 0), mask=channel < channels)
        tl.store(parts + (K * K + 1) * channels, tl.sum(by_shift, 0), mask=channel < channels)
