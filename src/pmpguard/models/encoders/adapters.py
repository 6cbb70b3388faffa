"""HarMA's adapters: small layers inside frozen towers, with cores that both modalities share.

In every transformer layer the output x of the feed-forward part becomes x + sigmoid(g) * A(x). A narrows to
`width`, attends among the tokens of one item, passes its shared core, attends again with the same weights,
mixes with what it narrowed by a second gate, and widens. The widening starts at zero, so that an adapted
tower begins as the tower it was. A tower without such layers (a convolutional net, a windowed transformer
whose early stages hold thousands of tokens) gets one adapter on its output tokens instead, the pooled one
among them; with `place` set to "output" every tower does, and what the frozen towers put out can be kept.
The adapters of both towers that are equally far from the end share a core.

Adapters are attached by hooks: the tower's modules and the names of its weights stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmpguard.models.config import AdapterConfig
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.image import ImageEncoder
from pmpguard.models.encoders.text import TextEncoder
from pmpguard.models.heads.attention import Attention

LAYERS = ("encoder.layer", "encoder.layers", "transformer.layer", "layers")
FEED_FORWARD_OUTPUT = ("output.dense", "mlp", "ffn", "narrow")


class HarmonisedAdapters(nn.Module):
    """All adapters of a model, attached to its encoders."""

    def __init__(self, config: AdapterConfig, images: ImageEncoder, texts: TextEncoder) -> None:
        super().__init__()
        inner = (config.width, config.attention_heads, config.gate)
        places = [
            feed_forward_outputs(encoder.backbone) if config.place == "layers" else []
            for encoder in (images, texts)
        ]
        deepest = max(1, *map(len, places))
        self.shared = nn.ModuleList(SharedCore(*inner) for _ in range(deepest))
        self.images = self._attach(images, places[0], inner)
        self.texts = self._attach(texts, places[1], inner)

    def _attach(
        self,
        encoder: ImageEncoder | TextEncoder,
        places: list[nn.Module],
        inner: tuple[int, int, float],
    ) -> nn.ModuleList:
        widths = [last_linear(place).out_features for place in places] or [encoder.width]
        adapters = [GatedAdapter(width, *inner) for width in widths]
        cores = list(self.shared)[-len(adapters) :]
        encoder.adapted = bool(places)
        if places:
            for place, adapter, core in zip(places, adapters, cores, strict=True):
                place.register_forward_hook(InsideHook(adapter, core, encoder))
        else:
            encoder.projection.register_forward_pre_hook(OutputHook(adapters[0], cores[0]))
        return nn.ModuleList(adapters)


class GatedAdapter(nn.Module):
    """x + sigmoid(outer gate) * widen(mix), where mix blends narrowed tokens with what they attended to."""

    def __init__(self, outer_width: int, width: int, heads: int, gate: float) -> None:
        super().__init__()
        self.narrow = nn.Linear(outer_width, width)
        self.attention = Attention(width, heads)
        self.widen = zero_start(nn.Linear(width, outer_width))
        self.inner_gate = nn.Parameter(torch.tensor(gate))
        self.outer_gate = nn.Parameter(torch.tensor(gate))

    def forward(self, states: Tensor, mask: Tensor | None, shared: nn.Module) -> Tensor:
        """(N, L, c), (N, L) or None -> (N, L, c)."""
        narrowed = F.gelu(self.narrow(states))  # (N, L, width)
        seen = shared(self.attention(narrowed, narrowed, mask), mask)
        seen = self.attention(seen, seen, mask)
        mixed = torch.lerp(seen, narrowed, torch.sigmoid(self.inner_gate).to(seen.dtype))
        return states + torch.sigmoid(self.outer_gate) * self.widen(mixed)  # type: ignore[no-any-return]


class SharedCore(nn.Module):
    """What adapters of both towers pass through: half as wide again, gated attention, residual."""

    def __init__(self, width: int, heads: int, gate: float) -> None:
        super().__init__()
        self.narrow = nn.Linear(width, width // 2)
        self.attention = Attention(width // 2, heads)
        self.widen = zero_start(nn.Linear(width // 2, width))
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        narrowed = F.gelu(self.narrow(states))
        seen = self.attention(narrowed, narrowed, mask)
        mixed = torch.lerp(narrowed, seen, torch.sigmoid(self.gate).to(seen.dtype))
        return states + self.widen(mixed)  # type: ignore[no-any-return]


class InsideHook:
    """Puts a layer's output (N, L, c) through an adapter; padding is what the text encoder says it is."""

    def __init__(self, adapter: GatedAdapter, shared: nn.Module, encoder: ImageEncoder | TextEncoder) -> None:
        self.adapter, self.shared, self.encoder = adapter, shared, encoder

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        mask = self.encoder.token_mask if isinstance(self.encoder, TextEncoder) else None
        return self.adapter(output, mask, self.shared)  # type: ignore[no-any-return]


class OutputHook:
    """Puts a tower's tokens through an adapter before they are projected."""

    def __init__(self, adapter: GatedAdapter, shared: nn.Module) -> None:
        self.adapter, self.shared = adapter, shared

    def __call__(self, module: nn.Module, inputs: tuple[Encoded]) -> tuple[Encoded]:
        (tokens,) = inputs
        states = torch.cat([tokens.pooled[:, None], tokens.fragments], 1)  # (N, 1 + n, c)
        mask = torch.cat([tokens.mask.new_ones(len(tokens), 1), tokens.mask], 1)
        adapted = self.adapter(states, mask, self.shared)
        return (Encoded(adapted[:, 0], adapted[:, 1:], tokens.mask),)


def attach_adapters(
    config: AdapterConfig, images: ImageEncoder, texts: TextEncoder
) -> HarmonisedAdapters | None:
    """The adapters a model is configured with; None for a model without."""
    return HarmonisedAdapters(config, images, texts) if config.name == "harma" else None


def feed_forward_outputs(backbone: nn.Module) -> list[nn.Module]:
    """For each transformer layer the module that gives its feed-forward output; [] where there are none."""
    layers = first_submodule(backbone, LAYERS)
    if not isinstance(layers, nn.ModuleList):
        return []
    places = [first_submodule(layer, FEED_FORWARD_OUTPUT) for layer in layers]
    found = [place for place in places if place is not None]
    return found if len(found) == len(layers) else []


def first_submodule(module: nn.Module, paths: tuple[str, ...]) -> nn.Module | None:
    known = dict(module.named_modules())
    return next((known[path] for path in paths if path in known), None)


def last_linear(module: nn.Module) -> nn.Linear:
    return [part for part in module.modules() if isinstance(part, nn.Linear)][-1]


def zero_start(layer: nn.Linear) -> nn.Linear:
    """A layer that gives zeros until it has learned otherwise."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
