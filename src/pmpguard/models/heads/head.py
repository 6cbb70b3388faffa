"""What a head is: a step after the encoders that belongs to the model, whichever method trained it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pmpguard.models.encoded import Encoded


class Head(nn.Module):
    """Changes encoded items, one item at a time, and may score pairs of them.

    An item's result never depends on its batch or on padding. This base class changes nothing.
    """

    def images(self, encoded: Encoded) -> Encoded:
        """After the image encoder."""
        return encoded

    def texts(self, encoded: Encoded) -> Encoded:
        """After the text encoder."""
        return encoded

    def score(self, texts: Encoded, images: Encoded) -> Tensor:
        """(T, I) with gradient: how well captions and images match, by ranking `head`."""
        return texts.pooled @ images.pooled.T

    def floats_per_pair(self, texts: Encoded, images: Encoded) -> int:
        """Numbers that `score` holds for each pair, so that it can be cut into chunks."""
        return 1


def widened(vectors: Tensor) -> Tensor:
    """Unit vectors stretched to length sqrt(d), as normalised layers give them out and take them."""
    return vectors * math.sqrt(vectors.shape[-1])


def with_pooled(encoded: Encoded) -> tuple[Tensor, Tensor]:
    """The pooled vector in front of the fragments, stretched: states (N, 1 + n, d), mask (N, 1 + n)."""
    states = widened(torch.cat([encoded.pooled[:, None], encoded.fragments], 1))
    mask = torch.cat([encoded.mask.new_ones(len(encoded), 1), encoded.mask], 1)
    return states, mask
