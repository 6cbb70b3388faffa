"""Triton kernels of `pointwise`, defined only where Triton is installed.

Features are rows of channels, (R, inputs) with R = N h w; weights (outputs, inputs). Numbers of channels come
as so many units of 1, 8 or 16: what the compiler knows of their divisors decides how wide it reads.
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["rows", "input_units", "output_units"])
    def forward_kernel(
        features, weight, bias, residual, result, rows, input_units, output_units,
        INPUT_UNIT: tl.constexpr, OUTPUT_UNIT: tl.constexpr, RELU6: tl.constexpr, RESIDUAL: tl.constexpr,
        BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
    ):  # fmt: skip
        """features weight^T + bias, clamped or with the residual added.

        Programs of the same rows follow one another, so that rows are read from memory once.
        """
        inputs, outputs = input_units * INPUT_UNIT, output_units * OUTPUT_UNIT
        blocks = tl.cdiv(outputs, BLOCK_O)
        program = tl.program_id(0)
        row = (program // blocks).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # (BLOCK_R,)
        output = (program % blocks) * BLOCK_O + tl.arange(0, BLOCK_O)  # (BLOCK_O,)
        step = tl.arange(0, BLOCK_I)
        left = features + row[:, None] * inputs + step[None, :]  # (BLOCK_R, BLOCK_I)
        right = weight + output[None, :] * inputs + step[:, None]  # (BLOCK_I, BLOCK_O)
        there = (row < rows)[:, None]
        known = (output < outputs)[None, :]
        total = tl.zeros((BLOCK_R, BLOCK_O), tl.float32)
        for start in range(0, inputs, BLOCK_I):
            some = start + step < inputs
            a = tl.load(left + start, mask=there & some[None, :], other=0.0)
            b = tl.load(right + start, mask=known & some[:, None], other=0.0)
            total = tl.dot(a, b, total)
        total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
        place = row[:, None] * outputs + output[None, :]
        if RELU6:
            total = tl.minimum(tl.maximum(total, 0.0), 6.0)
        if RESIDUAL:
            total += tl.load(residual + place, mask=there & known, other=0.0).to(tl.float32)
        tl.store(result + place, total.to(result.dtype.element_ty), mask=there & known)

    @triton.jit(do_not_specialize=["rows", "steps", "input_units", "output_units"])
    def weight_kernel(
        gradient, features, parts, rows, steps, input_units, output_units,
        INPUT_UNIT: tl.constexpr, OUTPUT_UNIT: tl.constexpr,
        BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
    ):  # fmt: skip
        """gradient^T features over `steps` times BLOCK_R rows, into `parts` (splits, outputs, inputs)."""
        inputs, outputs = input_units * INPUT_UNIT, output_units * OUTPUT_UNIT
        across = tl.cdiv(inputs, BLOCK_I)
        tiles = across * tl.cdiv(outputs, BLOCK_O)
        program = tl.program_id(0)
        part = (program // tiles).to(tl.int64)
        tile = program % tiles
        output = (tile // across) * BLOCK_O + tl.arange(0, BLOCK_O)  # (BLOCK_O,)
        input = (tile % across) * BLOCK_I + tl.arange(0, BLOCK_I)  # (BLOCK_I,)
        total = tl.zeros((BLOCK_O, BLOCK_I), tl.float32)
        for step in range(steps):
            row = (part * steps + step) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]  # (BLOCK_R, 1)
            left = gradient + row * outputs + output[None, :]
            right = features + row * inputs + input[None, :]
            a = tl.load(left, mask=(row < rows) & (output < outputs)[None, :], other=0.0)
            b = tl.load(right, mask=(row < rows) & (input < inputs)[None, :], other=0.0)
            total = tl.dot(tl.trans(a), b, total)
        place = (part * outputs + output[:, None]) * inputs + input[None, :]
        tl.store(parts + place, total, mask=(output < outputs)[:, None] & (input < inputs)[None, :])
