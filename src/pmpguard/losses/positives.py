"""Which captions and images of a batch belong together."""

from __future__ import annotations

import torch
from torch import Tensor


def positive_targets(
    image_of: Tensor, image_keys: Tensor, caption_keys: Tensor, weights: Tensor | None = None
) -> Tensor:
    """How strongly each caption and image of the batch belong together: (T, I) in [0, 1].

    image_of (T,) is each caption's column; equal image_keys (I,) are one image, equal caption_keys (T,) one
    sentence. Caption t belongs to image v when some pair of that sentence has that image; the largest of
    those pairs' weights (T,) counts, 1 without weights.

    >>> key = torch.arange(3)
    >>> positive_targets(key, key, torch.tensor([7, 7, 8]), torch.tensor([1.0, 0.5, 0.0]))
    tensor([[1.0000, 0.5000, 0.0000],
            [1.0000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    if weights is None:
        weights = torch.ones(len(image_of), device=image_of.device)
    same_caption = caption_keys[:, None] == caption_keys[None, :]  # (T, T)
    same_image = image_keys[image_of][:, None] == image_keys[None, :]  # (T, I)
    targets = weights.new_zeros(len(image_of), len(image_keys))  # (T, I)
    # Sentence by sentence through the first pair of each, so that no (T, T, I) tensor is needed.
    first = same_caption.int().argmax(1)  # (T,)
    labelled = weights[:, None] * same_image  # (T, I)
    targets.scatter_reduce_(0, first[:, None].expand_as(labelled), labelled, "amax")
    return targets[first]
