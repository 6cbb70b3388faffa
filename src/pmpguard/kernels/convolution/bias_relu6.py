"""relu6(x + bias) in one pass over memory.

In a network of small convolutions, batch normalisation and ReLU6 are separate passes over memory beside
cheap arithmetic. Frozen normalisation folds into the convolution's weights, and what is left, a bias per
channel and the clamp, is one Triton kernel on CUDA; on the way back one kernel gives the gradient and its sum
by channel, in a fixed order. Without Triton, and on other devices, it is two plain operations with the same
result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pmpguard.kernels.dispatch import kernels_run_on

TILE = 2048  # numbers a program takes at a time
PROGRAMS = 2112  # on the way back: sixteen for each multiprocessor of the largest GPUs of today


def bias_relu6(features: Tensor, bias: Tensor) -> Tensor:
    """(N, C, h, w) and (C,) -> (N, C, h, w), clamped to [0, 6]."""
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    if features.numel() and features.dtype in kinds and kernels_run_on(features.device):
        fused: Tensor = _BiasRelu6.apply(features, bias)  # type: ignore[no-untyped-call]
        return fused
    return (features + bias.to(features.dtype).view(-1, 1, 1)).clamp(0, 6)


def channel_block(channels: int) -> int:
    """Channels of a program: whole 128-byte lines where that leaves few of them unused.

    >>> [channel_block(channels) for channels in (3, 32, 96, 144, 192, 240, 960)]
    [16, 32, 32, 32, 64, 64, 64]
    """
    if channels <= 16:
        return 16
    return 64 if -(-channels // 64) * 64 <= 1.1 * channels else 32


def run_forward(features: Tensor, bias: Tensor, result: Tensor) -> None:
    """Fills the result, which may be the features; both (N, C, h, w) with channels innermost."""
    from pmpguard.kernels.convolution.bias_relu6_triton import forward_kernel

    channels = features.shape[1]
    rows, block = features.numel() // channels, channel_block(channels)
    programs = -(-rows * block // TILE) * -(-channels // block)
    sizes = {"ROWS": TILE // block, "CHANNELS": block}
    forward_kernel[(programs,)](features, bias, result, rows, channels, **sizes)


def run_backward(incoming: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient (N, C, h, w) where the result is not clamped, and its sum (C,) float32."""
    from pmpguard.kernels.convolution.bias_relu6_triton import backward_kernel

    incoming = incoming.contiguous(memory_format=torch.channels_last)
    outgoing = torch.empty_like(result, memory_format=torch.channels_last)
    channels = result.shape[1]
    rows, block = result.numel() // channels, channel_block(channels)
    tiles, blocks = -(-rows * block // TILE), -(-channels // block)
    steps = max(1, tiles * blocks // PROGRAMS)
    each = -(-tiles // steps)
    parts = torch.empty(each, channels, device=result.device)  # float32
    sizes = {"ROWS": TILE // block, "CHANNELS": block}
    backward_kernel[(each * blocks,)](incoming, result, outgoing, parts, rows, steps, channels, **sizes)
    return outgoing, parts.sum(0)


class _BiasRelu6(torch.autograd.Function):
    """Keeps only the result: the gradient passes where it lies strictly between 0 and 6."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, bias: Tensor) -> Tensor:
        features = features.contiguous(memory_format=torch.channels_last)
        result = torch.empty_like(features, memory_format=torch.channels_last)
        run_forward(features, bias.contiguous(), result)
        ctx.save_for_backward(result)
        ctx.bias_dtype = bias.dtype
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (result,) = ctx.saved_tensors
        outgoing, total = run_backward(gradients[0], result)
        return outgoing, total.to(ctx.bias_dtype)
