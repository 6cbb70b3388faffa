"""Batch normalisation by stored statistics, put into the weights of the convolution before it.

It is a factor and a shift per channel: a handful of operations on small tensors. A network has dozens of
convolutions and folds them at every step, so on CUDA the whole is one kernel, and one more on the way back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pmpguard.kernels.dispatch import kernels_run_on

TILE = 2048  # weights of a program


def fold_norm(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight (D, C, k, k) times the normalisation's factor, and its shift (D,)."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None
    tensors = (weight, norm.weight, norm.bias, mean, variance)
    if kernels_run_on(weight.device) and all(tensor.dtype == torch.float32 for tensor in tensors):
        folded: tuple[Tensor, Tensor] = _FoldNorm.apply(*tensors, norm.eps)  # type: ignore[no-untyped-call]
        return folded
    factor = norm.weight * torch.rsqrt(variance + norm.eps)
    return weight * factor.view(-1, 1, 1, 1), norm.bias - mean * factor


def in_rows(weight: Tensor) -> Tensor:
    """Dense, one channel put out after another; what lies within each keeps its order."""
    if weight.is_contiguous(memory_format=torch.channels_last):
        return weight
    return weight.contiguous()


def sizes(weight: Tensor) -> tuple[int, dict[str, int]]:
    """How many programs, and of what size."""
    length = max(16, 1 << (weight[0].numel() - 1).bit_length())
    rows = max(1, TILE // length)
    return -(-len(weight) // rows), {"ROWS": rows, "LENGTH": length}


class _FoldNorm(torch.autograd.Function):
    """Keeps its inputs; statistics get no gradient."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        from pmpguard.kernels.convolution.fold_norm_triton import forward_kernel

        weight = in_rows(weight)
        folded, shift = torch.empty_like(weight), torch.empty_like(bias)
        programs, blocks = sizes(weight)
        forward_kernel[(programs,)](
            weight, scale, bias, mean, variance, folded, shift, len(weight), weight[0].numel(), eps, **blocks
        )
        ctx.save_for_backward(weight, scale, mean, variance)
        ctx.eps = eps
        return folded, shift

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        from pmpguard.kernels.convolution.fold_norm_triton import backward_kernel

        weight, scale, mean, variance = ctx.saved_tensors
        by_weight, by_scale = torch.empty_like(weight), torch.empty_like(scale)
        by_folded = (
            torch.empty_like(weight).copy_(incoming[0]) if differs(incoming[0], weight) else incoming[0]
        )
        by_shift = incoming[1].contiguous()
        programs, blocks = sizes(weight)
        backward_kernel[(programs,)](
            by_folded, by_shift, weight, scale, mean, variance, by_weight, by_scale,
            len(weight), weight[0].numel(), ctx.eps, **blocks,
        )  # fmt: skip
        return by_weight, by_scale, by_shift, None, None, None


def differs(gradient: Tensor, weight: Tensor) -> bool:
    """Whether the numbers of a gradient lie in another order than those of its weight."""
    if weight.is_contiguous():
        return not gradient.is_contiguous()
    return not gradient.is_contiguous(memory_format=torch.channels_last)
