"""Third evidence that a caption belongs to its image: it says what is said of pictures that look alike.

The captions of an image's nearest pictures, averaged, are what its caption should resemble. No caption of the
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
    nearest = min(nearest, len(images) - 1)
    if nearest < 1:
        return own.new_zeros(own.shape)
    consensus = []
    for start in range(0, len(images), chunk):
        part = images[start : start + chunk]  # (Q, e)
        cosines = part @ images.T  # (Q, I)
        cosines.diagonal(start).fill_(-torch.inf)  # never the image itself
        consensus.append(own[cosines.topk(nearest, dim=1).indices].mean(1))  # (Q, d)
    return normalize(torch.cat(consensus), dim=1)
