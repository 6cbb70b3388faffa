"""Encodings of random unit vectors, ragged where they are masked, and the plain awareness score of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.encoded import Encoded


def some(
    count: int,
    fragments: int,
    dim: int = 8,
    seed: int = 0,
    masked: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Encoded:
    """Unit vectors; where `masked`, ragged, with a gap at the front of some items."""
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> Tensor:
        return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1).to(dtype)

    mask = torch.ones(count, fragments, dtype=torch.bool)
    if masked:
        lengths = torch.randint(1, fragments + 1, (count,), generator=generator)
        mask = torch.arange(fragments) < lengths[:, None]
        mask[::3, 0] = False
    return Encoded(unit(count, dim), unit(count, fragments, dim), mask)


def awareness(texts: Encoded, images: Encoded) -> Tensor:
    return awareness_scores(texts.fragments, texts.mask, images.fragments, 0.1, region_mask=images.mask)
