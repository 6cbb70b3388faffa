"""A batch of words and regions, and what one of two processes makes of its half of it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.models.attention.boundary import Boundary


def unit(*shape: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def batch(captions: int = 8, images: int = 8, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Words near a region of their own image, so that most captions rank their image first."""
    regions = unit(images, 5, 16, seed=seed)
    image_of = torch.arange(captions) % images
    words = normalize(regions[image_of][:, :4] + 0.3 * unit(captions, 4, 16, seed=seed + 1), dim=-1)
    mask = torch.rand(captions, 4, generator=torch.Generator().manual_seed(seed)) > 0.2
    mask[:, 0] = True
    return words, mask, regions, image_of


def half_of_the_batch(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    words, mask, regions, image_of = batch(64, 8)
    rows = slice(32 * rank, 32 * (rank + 1))
    boundary = Boundary()
    boundary.update(words[rows], mask[rows], regions, image_of[rows])
    state = torch.cat([boundary.moments, boundary.words_seen[None], boundary.t[None]])
    np.save(f"{folder}/state{rank}.npy", state.numpy())
    torch.distributed.destroy_process_group()
