"""From a backbone's tokens to unit vectors of the shared dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmpguard.models.encoded import Encoded


class Projection(nn.Module):
    """One linear layer for fragments, a separate one for the pooled token, then L2 normalisation.

    Fragments answer "which word, which region", the pooled vector "which item"; one layer for both would
    make each loss pull on the other's space.
    """

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.fragments = nn.Linear(width, dim)
        self.pooled = nn.Linear(width, dim)

    def forward(self, tokens: Encoded) -> Encoded:
        fragments = unit(self.fragments(tokens.fragments))  # (N, n, dim)
        pooled = unit(self.pooled(tokens.pooled))  # (N, dim)
        return Encoded(pooled, fragments, tokens.mask)

    @torch.no_grad()
    def start_from(self, matrix: Tensor, bias: Tensor | None = None) -> None:
        """Begin with a pretrained projection (dim, width), so that CLIP's own embedding is the pooled one."""
        for layer in (self.fragments, self.pooled):
            layer.weight.copy_(matrix)
            layer.bias.copy_(torch.zeros_like(layer.bias) if bias is None else bias)


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1, in at least float32: in half precision they would miss it by a percent."""
    half = vectors.dtype in (torch.bfloat16, torch.float16)
    return F.normalize(vectors.float() if half else vectors, dim=-1)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Mean of the states (N, n, c) at the true places of the mask (N, n); zero where there is none."""
    weights = mask.unsqueeze(-1).to(states.dtype)  # (N, n, 1)
    return (states * weights).sum(1) / weights.sum(1).clamp_min(1)  # (N, c)
