"""Triton kernels of `fold_norm`, defined only where Triton is installed.

Weights are (D, L), one row for each channel put out. A program takes ROWS of them, LENGTH >= L.
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["outputs", "length"])
    def forward_kernel(
        weight, scale, bias, mean, variance, folded, shift, outputs, length, eps,
        ROWS: tl.constexpr, LENGTH: tl.constexpr,
    ):  # fmt: skip
        """weight * factor and bias - mean * factor."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
        there = row < outputs
        factor = tl.load(scale + row, mask=there, other=0.0)
        factor *= tl.rsqrt(tl.load(variance + row, mask=there, other=1.0) + eps)
        moved = tl.load(bias + row, mask=there) - tl.load(mean + row, mask=there) * factor
        tl.store(shift + row, moved, mask=there)
        column = tl.arange(0, LENGTH)
        place = row[:, None] * length + column[None, :]  # (ROWS, LENGTH)
        inside = there[:, None] & (column < length)[None, :]
        tl.store(folded + place, tl.load(weight + place, mask=inside) * factor[:, None], mask=inside)

    @triton.jit(do_not_specialize=["outputs", "length"])
    def backward_kernel(
        by_folded, by_shift, weight, scale, mean, variance, by_weight, by_scale, outputs, length, eps,
        ROWS: tl.constexpr, LENGTH: tl.constexpr,
    ):  # fmt: skip
        """By weight and by scale; by bias it is `by_shift` itself."""
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
        there = row < outputs
        root = tl.rsqrt(tl.load(variance + row, mask=there, other=1.0) + eps)
        factor = tl.load(scale + row, mask=there, other=0.0) * root
        column = tl.arange(0, LENGTH)
        place = row[:, None] * length + column[None, :]  # (ROWS, LENGTH)
        inside = there[:, None] & (column < length)[None, :]
        gradient = tl.load(by_folded + place, mask=inside, other=0.0)
        tl.store(by_weight + place, gradient * factor[:, None], mask=inside)
        total = tl.sum(gradient * tl.load(weight + place, mask=inside, other=0.0), 1)
        moved = tl.load(by_shift + row, mask=there, other=0.0) * tl.load(mean + row, mask=there, other=0.0)
        tl.store(by_scale + row, (total - moved) * root, mask=there)
