"""Triton kernels of `bias_relu6`, defined only where Triton is installed."""

# mypy: ignore-errors
from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def forward_kernel(features, bias, result, count, channels, BLOCK: tl.constexpr):
        """One block of numbers: the channel of number i is i mod channels."""
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = place < count
        value = tl.load(features + place, mask=inside).to(tl.float32)
        value += tl.load(bias + place % channels, mask=inside).to(tl.float32)
        value = tl.minimum(tl.maximum(value, 0.0), 6.0)
        tl.store(result + place, value, mask=inside)

    @triton.jit
    def backward_kernel(incoming, result, outgoing, count, BLOCK: tl.constexpr):
        """The gradient where the result was not clamped."""
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = place < count
        value = tl.load(result + place, mask=inside).to(tl.float32)
        gradient = tl.load(incoming + place, mask=inside)
        passes = (value > 0.0) & (value < 6.0)
        tl.store(outgoing + place, tl.where(passes, gradient, 0.0), mask=inside)
