"""relu6(x + bias) in one pass over memory.

In a network of small convolutions, batch normalisation and ReLU6 are separate passes over memory beside
cheap arithmetic. Frozen normalisation folds into the convolution's weights, and what is left, a bias per
channel and the clamp, is one Triton kernel on CUDA. Without Triton, and on other devices, it is two plain
operations with the same result.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

_BLOCK = 1024
_kernels: tuple[Any, Any] | None = None


def bias_relu6(features: Tensor, bias: Tensor) -> Tensor:
    """(N, C, h, w) and (C,) -> (N, C, h, w), clamped to [0, 6]."""
    if features.is_cuda and features.numel() and importlib.util.find_spec("triton") is not None:
        fused: Tensor = _BiasRelu6.apply(features, bias)  # type: ignore[no-untyped-call]
        return fused
    return (features + bias.to(features.dtype).view(-1, 1, 1)).clamp(0, 6)


class _BiasRelu6(torch.autograd.Function):
    """Keeps only the result: the gradient passes where it lies strictly between 0 and 6."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, bias: Tensor) -> Tensor:
        features = features.contiguous(memory_format=torch.channels_last)
        result = torch.empty_like(features)
        count, channels = features.numel(), features.shape[1]
        forward, _ = kernels()
        forward[(-(-count // _BLOCK),)](features, bias, result, count, channels, BLOCK=_BLOCK)
        ctx.save_for_backward(result)
        ctx.bias_dtype = bias.dtype
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (result,) = ctx.saved_tensors
        incoming = gradients[0].contiguous(memory_format=torch.channels_last)
        outgoing = torch.empty_like(result)
        count = result.numel()
        _, backward = kernels()
        backward[(-(-count // _BLOCK),)](incoming, result, outgoing, count, BLOCK=_BLOCK)
        return outgoing, outgoing.sum((0, 2, 3), dtype=torch.float32).to(ctx.bias_dtype)


def kernels() -> tuple[Any, Any]:
    """The two Triton kernels, compiled when first needed; channels are innermost in memory."""
    global _kernels
    if _kernels is None:
        from pmpguard.model import bias_relu6_triton

        _kernels = bias_relu6_triton.forward_kernel, bias_relu6_triton.backward_kernel
    return _kernels
