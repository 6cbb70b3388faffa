"""relu6(depthwise convolution + bias) in one pass over memory, and all its gradients in one more.

A depthwise convolution does so little arithmetic that it costs what its memory traffic costs. Here padding,
bias and clamp belong to the convolution's kernel. On the way back one kernel reads the features, the result
and the incoming gradient once and gives the gradients by features, weights and bias; each program writes its
own sums, so runs give the same bits.

Sums are float32 whatever the features are. Without Triton, on other devices, and for shapes the kernels do
not take, it is the plain operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pmpguard.kernels.convolution.bias_relu6 import bias_relu6, channel_block
from pmpguard.kernels.dispatch import kernels_run_on

PROGRAMS = 2112  # wanted at least: sixteen for each multiprocessor of the largest GPUs of today
SHORTEST_STRIP = 8  # rows a program slides over, so that its first rows, read twice, do not weigh
FORWARD_LAUNCH: dict[int, dict[str, Any]] = {  # by kernel size; numbers per thread, then Triton's options
    3: {"vector": 4, "num_warps": 4},
    5: {"vector": 2, "num_warps": 4},
}
BACKWARD_LAUNCH: dict[int, dict[str, Any]] = {  # 168 registers: three programs for each multiprocessor
    3: {"vector": 4, "num_warps": 4, "maxnreg": 168},
    5: {"vector": 2, "num_warps": 4, "maxnreg": 168},
}


@dataclass(frozen=True)
class Window:
    """Size, step and zeros around of a square convolution."""

    kernel: int
    stride: int
    top: int
    bottom: int
    left: int
    right: int

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        rows = (height + self.top + self.bottom - self.kernel) // self.stride + 1
        return rows, (width + self.left + self.right - self.kernel) // self.stride + 1

    def constants(self) -> dict[str, int]:
        """By the kernels' names."""
        return {"K": self.kernel, "STRIDE": self.stride, "TOP": self.top, "LEFT": self.left}


def depthwise_relu6(
    features: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int | tuple[int, int, int, int]
) -> Tensor:
    """Features (N, C, h, w), weight (C, 1, k, k), bias (C,) -> (N, C, h', w'), clamped to [0, 6].

    Padding is one number of zeros for all sides, or zeros (top, bottom, left, right). Under autocast the
    features take its number type; weights and bias stay what they are.
    """
    sides = (padding,) * 4 if isinstance(padding, int) else padding
    window = Window(weight.shape[-1], stride, *sides)
    if fits_kernel(features, weight, window):
        fused: Tensor = _Depthwise.apply(in_autocast_type(features), weight, bias, window)  # type: ignore[no-untyped-call]
        return fused
    if window.top == window.bottom and window.left == window.right:
        spread = F.conv2d(features, weight, None, stride, (window.top, window.left), 1, len(weight))
    else:
        padded = F.pad(features, (window.left, window.right, window.top, window.bottom))
        spread = F.conv2d(padded, weight, None, stride, 0, 1, len(weight))
    return bias_relu6(spread, bias)


def in_autocast_type(features: Tensor) -> Tensor:
    """Autocast leaves the inputs of our own functions alone, so they are cast here."""
    kind = features.device.type
    return features.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else features


def fits_kernel(features: Tensor, weight: Tensor, window: Window) -> bool:
    """Whether the device is one the kernels run on, and they take these shapes."""
    return (
        features.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and features.ndim == 4
        and features.shape[1] == len(weight)
        and weight.shape[1:] == (1, window.kernel, window.kernel)
        and window.kernel in (3, 5)
        and window.stride in (1, 2)
        and min(window.top, window.bottom, window.left, window.right) >= 0
        and max(window.top + window.bottom, window.left + window.right) < window.kernel
        and min(window.outputs(*features.shape[2:])) > 0
        and 0 < features[:1].numel() < 2**31  # places within an image are 32-bit numbers
        and kernels_run_on(features.device)
    )


@dataclass(frozen=True)
class Grid:
    """How the work is cut: lanes of `columns` adjacent columns, strips of rows, blocks of channels."""

    columns: int
    groups: int  # lanes of one image's row
    lanes: int  # of all images
    strip: int  # rows of a program
    lanes_each: int  # of a program
    channels_each: int
    lane_blocks: int
    channel_blocks: int
    strips: int

    def size(self) -> tuple[int, int]:
        return self.lane_blocks * self.channel_blocks, self.strips

    def constants(self) -> dict[str, int]:
        return {"COLUMNS": self.columns, "LANES": self.lanes_each, "CHANNELS": self.channels_each}


def cut(
    images: int, channels: int, rows: int, groups: int, columns: int, multiple: int, launch: dict[str, Any]
) -> Grid:
    """Strips are as long as enough programs allow, and a `multiple` of rows."""
    block = channel_block(channels)
    lanes_each = launch["vector"] * launch["num_warps"] * 32 // block
    lane_blocks, channel_blocks = -(-images * groups // lanes_each), -(-channels // block)
    strips = max(1, min(-(-PROGRAMS // (lane_blocks * channel_blocks)), rows // SHORTEST_STRIP))
    strip = -(-rows // (strips * multiple)) * multiple
    return Grid(
        columns, groups, images * groups, strip, lanes_each, block, lane_blocks, channel_blocks,
        -(-rows // strip),
    )  # fmt: skip


def options(launch: dict[str, Any]) -> dict[str, Any]:
    """What Triton is to know of a launch."""
    return {name: value for name, value in launch.items() if name != "vector"}


def run_forward(features: Tensor, taps: Tensor, bias: Tensor, window: Window) -> Tensor:
    """Features (N, C, h, w) with channels innermost, taps (k k, C), bias (C,) -> (N, C, h', w')."""
    from pmpguard.kernels.convolution.depthwise_triton import forward_kernel

    images, channels, height, width = features.shape
    rows, columns = window.outputs(height, width)
    result = torch.empty(
        images, channels, rows, columns, dtype=features.dtype, device=features.device,
        memory_format=torch.channels_last,
    )  # fmt: skip
    launch = FORWARD_LAUNCH[window.kernel]
    grid = cut(images, channels, rows, -(-columns // 2), 2, 1, launch)
    forward_kernel[grid.size()](
        features, taps, bias, result,
        grid.lanes, grid.groups, grid.strip, height, width, rows, columns, channels,
        **window.constants(), **grid.constants(), **options(launch),
    )  # fmt: skip
    return result


def run_backward(
    incoming: Tensor, result: Tensor, features: Tensor, taps: Tensor, window: Window, *, clamped: bool = False
) -> tuple[Tensor, Tensor]:
    """The gradient by features (N, C, h, w), and float32 sums (k k + 2, C): by taps, by bias, of the first.

    `clamped` says the features are a relu6 themselves; their gradient is then 0 where they are 0 or 6.
    """
    from pmpguard.kernels.convolution.depthwise_triton import backward_kernel

    images, channels, height, width = features.shape
    by_features = torch.empty_like(features, memory_format=torch.channels_last)
    launch, each = BACKWARD_LAUNCH[window.kernel], 2 // window.stride  # two columns of features
    grid = cut(images, channels, height, -(-width // 2), each, window.stride, launch)
    parts = torch.empty(
        grid.lane_blocks * grid.strips, window.kernel**2 + 2, channels, device=features.device
    )  # float32
    backward_kernel[grid.size()](
        incoming.contiguous(memory_format=torch.channels_last), result, features, taps, by_features, parts,
        grid.lanes, grid.groups, grid.strip, height, width, *result.shape[2:], channels,
        **window.constants(), **grid.constants(), CLAMPED=clamped, **options(launch),
    )  # fmt: skip
    return by_features, parts.sum(0)


class _Depthwise(torch.autograd.Function):
    """Keeps features, weights and result; the result says where it was clamped."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, window: Window) -> Tensor:
        features = features.contiguous(memory_format=torch.channels_last)
        taps = taps_of(weight)
        result = run_forward(features, taps, bias.contiguous(), window)
        ctx.save_for_backward(features, taps, result)
        ctx.window, ctx.dtypes, ctx.weight_shape = window, (weight.dtype, bias.dtype), weight.shape
        return result

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        features, taps, result = ctx.saved_tensors
        by_features, sums = run_backward(incoming[0], result, features, taps, ctx.window)
        weight_dtype, bias_dtype = ctx.dtypes
        by_weight = sums[:-2].T.reshape(ctx.weight_shape).to(weight_dtype)
        return by_features, by_weight, sums[-2].to(bias_dtype), None


def taps_of(weight: Tensor) -> Tensor:
    """(C, 1, k, k) -> (k k, C), channels innermost as in the features."""
    return weight.flatten(1).T.contiguous()
