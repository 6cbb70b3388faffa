"""Triton kernels of `bias_relu6`, defined only where Triton is installed.

Features are rows of channels, (N h w, C). A program takes CHANNELS channels of some rows.
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["rows"])
    def forward_kernel(
        features, bias, result, rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr
    ):  # fmt: skip
        """min(max(features + bias, 0), 6) of ROWS rows; the result may be the features."""
        blocks = tl.cdiv(channels, CHANNELS)
        program = tl.program_id(0)
        row = (program // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        channel = (program % blocks) * CHANNELS + tl.arange(0, CHANNELS)[None, :]  # (1, CHANNELS)
        inside = (row < rows) & (channel < channels)
        place = row * channels + channel
        shift = tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)
        value = tl.load(features + place, mask=inside, other=0.0).to(tl.float32) + shift
        tl.store(result + place, tl.minimum(tl.maximum(value, 0.0), 6.0), mask=inside)

    @triton.jit(do_not_specialize=["rows", "steps"])
    def backward_kernel(
        incoming, result, outgoing, parts, rows, steps, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr
    ):  # fmt: skip
        """The gradient where the result was not clamped, of `steps` times ROWS rows.

        `parts` (programs, C) takes this program's sum of it.
        """
        blocks = tl.cdiv(channels, CHANNELS)
        program = tl.program_id(0)
        part = (program // blocks).to(tl.int64)
        channel = (program % blocks) * CHANNELS + tl.arange(0, CHANNELS)[None, :]  # (1, CHANNELS)
        total = tl.zeros((ROWS, CHANNELS), tl.float32)
        for step in range(steps):
            row = (part * steps + step) * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
            inside = (row < rows) & (channel < channels)
            place = row * channels + channel
            value = tl.load(result + place, mask=inside, other=0.0).to(tl.float32)
            gradient = tl.load(incoming + place, mask=inside, other=0.0).to(tl.float32)
            gradient = tl.where((value > 0.0) & (value < 6.0), gradient, 0.0)
            tl.store(outgoing + place, gradient, mask=inside)
            total += gradient
        channel = (program % blocks) * CHANNELS + tl.arange(0, CHANNELS)  # (CHANNELS,)
        tl.store(parts + part * channels + channel, tl.sum(total, 0), mask=channel < channels)
