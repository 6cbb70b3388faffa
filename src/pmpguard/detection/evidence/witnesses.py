"""Third evidence that a caption belongs to its image: it says what is said of images that look alike.

The captions of an image's nearest images, averaged, are what its caption should resemble. No caption of the
image itself takes part, so no pair judges itself, and one caption for each image is enough.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

NEAREST = 10
CHUNK = 1024


@torch.no_grad()
def neighbour_consensus(
    images: Tensor,
    captions: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    *,
    nearest: int = NEAREST,
    chunk: int = CHUNK,
) -> Tensor:
    """(I, d) unit: for each image the mean caption of its nearest other images.

    images (I, e) and captions (C, d) are unit vectors; row r pairs caption `caption_of[r]` with image
    `image_of[r]`. Every image counts once, however many captions it has; one without any counts nothing.
    """
    own = captions.new_zeros(len(images), captions.shape[1])  # (I, d)
    own.index_add_(0, image_of, captions[caption_of])
    counts = torch.bincount(image_of, minlength=len(images)).clamp(min=1)  # (I,)
    own /= counts[:, None]
    numbers = nearest_others(images, nearest, chunk)[1]  # (I, k)
    if not numbers.shape[1]:
        return own.new_zeros(own.shape)
    return normalize(torch.cat([own[part].mean(1) for part in torch.split(numbers, chunk)]), dim=1)


def centred(vectors: Tensor) -> Tensor:
    """Unit vectors (n, d) without what all have in common, which says nothing about any."""
    return normalize(vectors - vectors.mean(0), dim=1)


@torch.no_grad()
def nearest_others(vectors: Tensor, nearest: int, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """Cosines (n, k) and numbers (n, k) of the k vectors most like each of (n, d), itself left out.

    k is `nearest`, or less where there are fewer others.
    """
    nearest = min(nearest, len(vectors) - 1)
    cosines, numbers = [], []
    for start in range(0, len(vectors), chunk):
        part = vectors[start : start + chunk] @ vectors.T  # (Q, n)
        part.diagonal(start).fill_(-torch.inf)
        found = part.topk(nearest, dim=1)
        cosines.append(found.values)
        numbers.append(found.indices)
    return torch.cat(cosines), torch.cat(numbers)
