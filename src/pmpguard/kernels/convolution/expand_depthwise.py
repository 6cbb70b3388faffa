"""The wide half of an inverted residual: a 1x1 convolution, a depthwise convolution, a relu6 after each.

Together they save a pass on the way back: the depthwise kernel has the wide features at hand, so it also
passes their clamp and sums their bias's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pmpguard.kernels.convolution import depthwise, pointwise
from pmpguard.kernels.convolution.depthwise import Window, in_autocast_type, taps_of


def expand_depthwise(
    features: Tensor,
    wide_weight: Tensor,
    wide_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: int,
    padding: tuple[int, int, int, int],
) -> Tensor:
    """`depthwise_relu6` of a `pointwise` with relu6.

    Features (N, C, h, w), wide_weight (D, C, 1, 1), wide_bias (D,), weight (D, 1, k, k), bias (D,), zeros
    (top, bottom, left, right) -> (N, D, h', w').
    """
    cast, window = in_autocast_type(features), Window(weight.shape[-1], stride, *padding)
    if cast.ndim == 4 and pointwise.fits_kernel(cast, wide_weight):
        wide = cast[:, :1].expand(-1, len(wide_weight), -1, -1)  # only its shape and type are asked for
        if depthwise.fits_kernel(wide, weight, window):
            fused: Tensor = _ExpandDepthwise.apply(cast, wide_weight, wide_bias, weight, bias, window)  # type: ignore[no-untyped-call]
            return fused
    wide = pointwise.pointwise(features, wide_weight, wide_bias, relu6=True)
    return depthwise.depthwise_relu6(wide, weight, bias, stride, padding)


class _ExpandDepthwise(torch.autograd.Function):
    """Keeps the features, the wide features and the result."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        wide_weight: Tensor,
        wide_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        window: Window,
    ) -> Tensor:
        ctx.dtypes = wide_weight.dtype, wide_bias.dtype, weight.dtype, bias.dtype
        ctx.window, ctx.weight_shape = window, weight.shape
        features = pointwise.innermost(features, features.dtype)
        matrix, taps = wide_weight.flatten(1).to(features.dtype).contiguous(), taps_of(weight)
        wide = pointwise.run_forward(features, matrix, wide_bias.contiguous(), relu6=True)  # (N, D, h, w)
        result = depthwise.run_forward(wide, taps, bias.contiguous(), window)
        ctx.save_for_backward(features, matrix, wide, taps, result)
        return result

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        features, matrix, wide, taps, result = ctx.saved_tensors
        by_wide, sums = depthwise.run_backward(incoming[0], result, wide, taps, ctx.window, clamped=True)
        by_features, by_matrix = pointwise.run_backward(by_wide, features, matrix)
        wide_weight_type, wide_bias_type, weight_type, bias_type = ctx.dtypes
        by_weight = sums[:-2].T.reshape(ctx.weight_shape).to(weight_type)
        return (
            by_features, by_matrix.to(wide_weight_type)[:, :, None, None], sums[-1].to(wide_bias_type),
            by_weight, sums[-2].to(bias_type), None,
        )  # fmt: skip
