"""1x1 convolutions as matrix products over rows of channels, with bias, clamp and residual in the same pass.

Between depthwise convolutions, a 1x1 convolution costs what its memory traffic costs, so what follows it
belongs to it. `PRODUCTS` says who multiplies: "kernel" our Triton kernel, "matmul" torch's matrix product
with one more pass for the clamp, "plain" torch's convolution, as without Triton, on other devices and for
float32. `WEIGHT_PRODUCTS` says the same, "kernel" or "matmul", of the gradient by the weights: there the sum
runs over millions of rows, which the kernel splits among its programs and adds up in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pmpguard.kernels.convolution import bias_relu6
from pmpguard.kernels.convolution.depthwise import in_autocast_type
from pmpguard.kernels.dispatch import kernels_run_on

PRODUCTS = "kernel"
WEIGHT_PRODUCTS = "kernel"
LAUNCH: dict[str, int] = {"rows": 128, "stages": 3}
WEIGHT_LAUNCH: dict[str, int] = {"rows": 64, "stages": 3}
WEIGHT_PROGRAMS = 528  # four for each multiprocessor of the largest GPUs of today


def pointwise(
    features: Tensor, weight: Tensor, bias: Tensor, *, relu6: bool, residual: Tensor | None = None
) -> Tensor:
    """Features (N, C, h, w), weight (D, C, 1, 1), bias (D,), residual (N, D, h, w) -> (N, D, h, w).

    Clamped to [0, 6] if `relu6`, and then the residual added. Under autocast all take its number type but
    the bias.
    """
    cast = in_autocast_type(features)
    if not (relu6 and residual is not None) and fits_kernel(cast, weight):
        fused: Tensor = _Pointwise.apply(cast, weight, bias, relu6, residual)  # type: ignore[no-untyped-call]
        return fused
    product = F.conv2d(features, weight)
    if relu6:
        product = bias_relu6.bias_relu6(product, bias)
    else:
        product = product + bias.to(product.dtype).view(-1, 1, 1)
    return product if residual is None else residual + product


def fits_kernel(features: Tensor, weight: Tensor) -> bool:
    """Whether products are wanted of us, the numbers are half precision and the device runs the kernels."""
    return (
        PRODUCTS != "plain"
        and features.dtype in (torch.bfloat16, torch.float16)
        and features.ndim == 4
        and weight.shape[1:] == (features.shape[1], 1, 1)
        and features.numel() > 0
        and kernels_run_on(features.device)
    )


def block(size: int) -> int:
    """Outputs or inputs of a program: all of up to 128.

    >>> [block(size) for size in (3, 24, 96, 144, 160, 384, 960, 1280)]
    [16, 32, 128, 64, 64, 128, 64, 128]
    """
    if size <= 128:
        return max(16, 1 << (size - 1).bit_length())
    return 128 if size % 128 == 0 else 64


def units(inputs: int, outputs: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The kernels' arguments for numbers of channels: how many units, and how large each is."""
    of_inputs, of_outputs = (
        next(unit for unit in (16, 8, 1) if size % unit == 0) for size in (inputs, outputs)
    )
    return (inputs // of_inputs, outputs // of_outputs), {"INPUT_UNIT": of_inputs, "OUTPUT_UNIT": of_outputs}


def rows_of(features: Tensor) -> Tensor:
    """(N, C, h, w) with channels innermost -> (N h w, C), the same memory."""
    return features.permute(0, 2, 3, 1).reshape(-1, features.shape[1])


def like_image(rows: Tensor, image: Tensor) -> Tensor:
    """(N h w, D) -> (N, D, h, w) with the N, h, w of another image, the same memory."""
    images, _, height, width = image.shape
    return rows.view(images, height, width, -1).permute(0, 3, 1, 2)


def run_forward(
    features: Tensor, weight: Tensor, bias: Tensor, *, relu6: bool, residual: Tensor | None = None
) -> Tensor:
    """As `pointwise`; all contiguous with channels innermost, weight (D, C) of the features' type."""
    rows = rows_of(features)  # (R, C)
    if PRODUCTS == "matmul":
        if relu6:
            result = like_image(rows @ weight.T, features)
            bias_relu6.run_forward(result, bias, result)
            return result
        result = like_image(torch.addmm(bias.to(rows.dtype), rows, weight.T), features)
        return result if residual is None else result.add_(residual)
    from pmpguard.kernels.convolution.pointwise_triton import forward_kernel

    count, inputs = rows.shape
    outputs = len(weight)
    product = torch.empty(count, outputs, dtype=rows.dtype, device=rows.device)  # (R, D)
    block_r, block_o = LAUNCH["rows"], block(outputs)
    counts, unit = units(inputs, outputs)
    block_i = 16 if inputs <= 16 else 64 if inputs % 64 == 0 else 32
    forward_kernel[(-(-count // block_r) * -(-outputs // block_o),)](
        rows, weight, bias, rows if residual is None else rows_of(residual), product, count, *counts,
        RELU6=relu6, RESIDUAL=residual is not None, **unit,
        BLOCK_R=block_r, BLOCK_O=block_o, BLOCK_I=block_i,
        num_warps=8 if block_o == 128 else 4, num_stages=LAUNCH["stages"],
    )  # fmt: skip
    return like_image(product, features)


def run_backward(gradient: Tensor, features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (N, D, h, w), features (N, C, h, w), weight (D, C) -> by features, by weight (D, C)."""
    grown, rows = rows_of(gradient), rows_of(features)  # (R, D), (R, C)
    by_features = like_image(grown @ weight, features)
    return by_features, grown.T @ rows if WEIGHT_PRODUCTS == "matmul" else weight_sums(grown, rows)


def weight_sums(gradient: Tensor, rows: Tensor) -> Tensor:
    """(R, D)^T (R, C) -> (D, C) float32; the kernel's first matrix is the wider, as tensor cores want it."""
    if gradient.shape[1] < rows.shape[1]:
        return weight_sums(rows, gradient).T
    from pmpguard.kernels.convolution.pointwise_triton import weight_kernel

    count, inputs = rows.shape
    outputs = gradient.shape[1]
    block_r, block_o, block_i = WEIGHT_LAUNCH["rows"], block(outputs), block(inputs)
    counts, unit = units(inputs, outputs)
    tiles = -(-outputs // block_o) * -(-inputs // block_i)
    steps = max(1, -(-count // (block_r * max(1, WEIGHT_PROGRAMS // tiles))))
    splits = -(-count // (block_r * steps))
    parts = torch.empty(splits, outputs, inputs, device=rows.device)  # float32
    weight_kernel[(splits * tiles,)](
        gradient, rows, parts, count, steps, *counts, **unit,
        BLOCK_R=block_r, BLOCK_O=block_o, BLOCK_I=block_i,
        num_warps=8 if block_o * block_i > 64 * 64 else 4, num_stages=WEIGHT_LAUNCH["stages"],
    )  # fmt: skip
    return parts.sum(0)


def innermost(features: Tensor, dtype: torch.dtype) -> Tensor:
    """Of that number type, with channels innermost in memory."""
    return features.to(dtype).contiguous(memory_format=torch.channels_last)


class _Pointwise(torch.autograd.Function):
    """Keeps the features, and the result if it was clamped."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, relu6: bool, residual: Tensor | None
    ) -> Tensor:
        kind = features.dtype
        ctx.dtypes = weight.dtype, bias.dtype, None if residual is None else residual.dtype
        features, matrix = innermost(features, kind), weight.flatten(1).to(kind).contiguous()
        residual = None if residual is None else innermost(residual, kind)
        result = run_forward(features, matrix, bias.contiguous(), relu6=relu6, residual=residual)
        ctx.save_for_backward(features, matrix, *([result] if relu6 else []))
        return result

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        features, matrix, *result = ctx.saved_tensors
        weight_dtype, bias_dtype, residual_dtype = ctx.dtypes
        if result:
            gradient, by_bias = bias_relu6.run_backward(incoming[0], result[0])
        else:
            gradient = incoming[0].contiguous(memory_format=torch.channels_last)
            by_bias = gradient.sum((0, 2, 3), dtype=torch.float32)
        by_features, by_matrix = run_backward(gradient, features, matrix)
        by_weight = by_matrix.to(weight_dtype)[:, :, None, None]
        by_residual = None if residual_dtype is None else incoming[0].to(residual_dtype)
        return by_features, by_weight, by_bias.to(bias_dtype), None, by_residual
