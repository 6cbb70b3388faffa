"""Averaged weights: an exponential moving average that is evaluated, saved and used for detection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class AveragedWeights:
    """Follows a module's trained parameters; with decay 0 it is the module itself.

    The first steps use a smaller decay, (1 + step) / (10 + step), so that the random start is forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        own = {name: value for name, value in module.named_parameters() if value.requires_grad and decay}
        self.names = list(own)
        self._live: list[Tensor] = list(own.values())
        self.tensors: dict[str, Tensor] = {name: own[name].detach().clone() for name in self.names}

    @torch.no_grad()
    def update(self, step: int) -> None:
        if self.names:
            decay = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self.tensors.values()), self._live, 1 - decay)

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name in self.names:
            self.tensors[name].copy_(tensors[name])

    @contextlib.contextmanager
    def in_place(self, module: nn.Module) -> Iterator[None]:
        """Within the block the module computes with the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, name in zip(self._live, self.names, strict=True):
            trained = live.detach().clone()
            live.copy_(self.tensors[name])
            self.tensors[name].copy_(trained)
