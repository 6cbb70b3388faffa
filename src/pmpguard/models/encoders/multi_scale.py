"""Earlier stages of a vision backbone, brought to the last stage's grid: regions at several scales."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmpguard.errors import ConfigError
from pmpguard.models.encoders.convnets import InvertedResidualNet
from pmpguard.models.encoders.tiny import TinyVision


class StageTap:
    """Keeps what a backbone's earlier stages put out, by forward hooks, until it is asked for."""

    def __init__(self, backbone: nn.Module) -> None:
        self.outputs: list[Any] = []
        for stage in earlier_stages(backbone):
            stage.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.outputs.append(output)

    def clear(self) -> None:
        self.outputs = []

    def joined(self, pooled: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        """The last stage's pooled (N, c) and regions (N, n, c) with the earlier ones' channels after them."""
        side = math.isqrt(regions.shape[1])
        earlier = torch.cat([on_grid(output, side) for output in self.outputs], -1)  # (N, n, C)
        self.clear()
        return torch.cat([pooled, earlier.mean(1)], -1), torch.cat([regions, earlier], -1)


def earlier_stages(backbone: nn.Module) -> list[nn.Module]:
    """The modules that end the stages before the last, finest first."""
    if isinstance(backbone, TinyVision):
        return [backbone.down1, backbone.down2]
    if isinstance(backbone, InvertedResidualNet):
        blocks = list(backbone.blocks)
        last_of_scale = [block for block, after in itertools.pairwise(blocks) if after.depthwise.stride == 2]
        return last_of_scale[-3:]  # strides 4, 8 and 16
    encoder = getattr(backbone, "encoder", backbone)
    for name in ("stages", "layers"):  # convolutional and windowed nets; plain transformers
        stages = getattr(encoder, name, None)
        if isinstance(stages, nn.ModuleList) and len(stages) > 1:
            if len(stages) <= 4:
                return list(stages)[:-1]
            return [stages[len(stages) * quarter // 4 - 1] for quarter in (1, 2, 3)]
    raise ConfigError(
        f"the stages of {type(backbone).__name__} are not known",
        fix="set multi_scale=false, or choose another vision encoder",
    )


def on_grid(output: Any, side: int) -> Tensor:
    """A stage's output (map, tokens, or a tuple with either) as regions (N, side * side, c), each normalised.

    Averaged where the stage is finer. Normalised because stages differ in size by orders of magnitude.
    """
    tensors = [
        part for part in (output if isinstance(output, tuple) else (output,)) if isinstance(part, Tensor)
    ]
    states = next((part for part in tensors if part.ndim == 4), tensors[0])
    if states.ndim == 3:  # tokens, class tokens first
        own_side = math.isqrt(states.shape[1])
        places = states[:, states.shape[1] - own_side * own_side :]
        states = places.transpose(1, 2).reshape(len(places), -1, own_side, own_side)  # (N, c, h, w)
    regions = F.adaptive_avg_pool2d(states, side).flatten(2).transpose(1, 2)  # (N, side * side, c)
    return F.layer_norm(regions, regions.shape[-1:])
