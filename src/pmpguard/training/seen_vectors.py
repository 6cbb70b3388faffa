"""Vectors that an epoch's steps have made anyway, for the look at the training set before the next one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pmpguard.methods.method import EncodedBatch
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.training import kept_vectors
from pmpguard.training.distributed import World
from pmpguard.training.encode import Split

NAMES = ("captions", "images", "has_captions", "has_images")


class SeenVectors:
    """The pooled vectors of a split, in float16, each as the last step saw it: augmented, by its weights.

    Every tensor keeps its place in memory, so that captured steps can write to it.
    """

    def __init__(self, split: Split, dim: int, device: torch.device) -> None:
        self.split = split
        self.captions, self.images = (
            torch.zeros(len(items), dim, dtype=torch.float16, device=device)
            for items in (split.tokens, split.images)
        )
        self.has_captions, self.has_images = (
            torch.zeros(len(items), dtype=torch.bool, device=device) for items in (split.tokens, split.images)
        )

    def keep(self, batch: EncodedBatch) -> None:
        self.captions[batch.caption_keys] = batch.texts.pooled.detach().half()
        self.images[batch.image_keys] = batch.images.pooled.detach().half()
        self.has_captions[batch.caption_keys] = True
        self.has_images[batch.image_keys] = True

    def look(self, retriever: Retriever, world: World) -> tuple[Encoded, Encoded]:
        """All captions and images, without fragments; what no step saw since the last look is encoded."""
        kinds = (self.captions, self.has_captions), (self.images, self.has_images)
        missing = [(~has).nonzero()[:, 0] for _, has in kinds]
        asked = (
            np.r_[rows.cpu().numpy(), : max(world.size - len(rows), 0)] for rows in missing
        )  # something for every rank
        anew = self.split.encode_pooled(retriever, world, *asked)
        encoded = []
        for (vectors, has), rows, some in zip(kinds, missing, anew, strict=True):
            vectors[rows] = some.pooled[: len(rows)].half()
            is_large = vectors.numel() * 4 > kept_vectors.MAX_BYTES
            pooled = vectors.clone() if is_large else vectors.float()
            encoded.append(Encoded(pooled, pooled[:, None][:, :0], has[:, None][:, :0]))
            has.fill_(False)
        return encoded[0], encoded[1]

    def tensors(self) -> dict[str, Tensor]:
        """What checkpoints hold of it."""
        return {name: getattr(self, name) for name in NAMES}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name in NAMES:
            getattr(self, name).copy_(tensors[name])
