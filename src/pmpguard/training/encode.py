"""Whole splits as a model sees them: the one way, for detection, validation, evaluation and the audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from pmpguard.data.images.sources import ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.device import encoder_precision
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.progress import progress_bar
from pmpguard.training import kept_vectors
from pmpguard.training.distributed import World, gather_encoded
from pmpguard.training.feature_cache import (
    IN_MEMORY,
    cache_features,
    encode_images,
    encode_texts,
    image_features,
    text_features,
)
from pmpguard.training.loader import ImageInput, ImageInputs, TextInput, TokenTable
from pmpguard.training.stored_features import Storage

BATCH = 128
ALONE = World()
Input = TypeVar("Input")


@dataclass(frozen=True)
class Split:
    """Pairs with their images and tokenised captions; of frozen backbones, with the features they gave."""

    table: PairTable
    images: ImageInputs
    tokens: TokenTable
    batch: int = BATCH
    precision: str = "fp32"

    @classmethod
    def open(
        cls,
        table: PairTable,
        images: ImageInputs,
        retriever: Retriever,
        *,
        batch: int = BATCH,
        precision: str = "fp32",
    ) -> Split:
        return cls(table, images, TokenTable.of(table, retriever, retriever.device), batch, precision)

    @classmethod
    def cached(
        cls,
        table: PairTable,
        images: ImageSource,
        retriever: Retriever,
        *,
        batch: int = BATCH,
        precision: str = "fp32",
        storage: Storage = IN_MEMORY,
    ) -> Split:
        """With the features of frozen backbones in the place of pixels and token ids."""
        tokens = TokenTable.of(table, retriever, retriever.device)
        features = cache_features(retriever, images, tokens, batch, retriever.device, precision, storage)
        return cls(table, *features, batch, precision)

    @property
    def caption_of(self) -> Tensor:
        """(N,) int64 on the device: which of the distinct captions each pair has."""
        return torch.from_numpy(self.tokens.row_of).to(self.tokens.ids.device)

    def encode(
        self, retriever: Retriever, world: World = ALONE, most: int | None = None
    ) -> tuple[Encoded, Encoded]:
        """Each distinct caption and each image once, float32; every rank does its share and gets all.

        Captions or images of over `most` bytes are in float16, and on disk: see `kept_vectors`.
        """
        return self._read(encode_texts, encode_images, retriever, world, most=most)

    def encode_pooled(
        self,
        retriever: Retriever,
        world: World = ALONE,
        captions: np.ndarray | None = None,
        images: np.ndarray | None = None,
    ) -> tuple[Encoded, Encoded]:
        """The same without fragments, which of a whole training set would fill the memory.

        `captions` and `images` are the numbers of those that are wanted, by default all. Large sets are in
        float16.
        """
        read = _alone(encode_texts), _alone(encode_images)
        return self._read(*read, retriever, world, captions, images, kept_vectors.MAX_BYTES)

    def pooled_features(self, retriever: Retriever, world: World = ALONE) -> tuple[Tensor, Tensor]:
        """Without fragments and up to the encoders' last linear layers: (C, c) and (I, e)."""
        read = _alone(text_features), _alone(image_features)
        captions, images = self._read(*read, retriever, world, most=kept_vectors.MAX_BYTES)
        return captions.pooled, images.pooled

    @torch.no_grad()
    def _read(
        self,
        read_texts: Callable[[Retriever, TextInput], Encoded],
        read_images: Callable[[Retriever, ImageInput], Encoded],
        retriever: Retriever,
        world: World,
        captions: np.ndarray | None = None,
        images: np.ndarray | None = None,
        most: int | None = None,
    ) -> tuple[Encoded, Encoded]:
        device = self.tokens.ids.device
        captions = np.arange(len(self.tokens)) if captions is None else captions
        images = np.arange(len(self.images)) if images is None else images
        own = [numbers[world.share(len(numbers))] for numbers in (captions, images)]
        parts = [[some[i : i + self.batch] for i in range(0, len(some), self.batch)] for some in own]
        counts, longest = [len(numbers) for numbers in own], self.tokens.longest
        bar = progress_bar(sum(counts), 0, "encoding", unit="item", active=world.is_main, leave=False)

        def told(part: Encoded) -> Encoded:
            bar.update(len(part))
            return part.to(dtype=torch.float32)

        with encoder_precision(device, self.precision), bar:
            texts = kept_vectors.kept(
                (told(read_texts(retriever, self.tokens.padded(part, longest))) for part in parts[0]),
                counts[0],
                most,
                len(captions),
            )
            seen = kept_vectors.kept(
                (told(read_images(retriever, given)) for given in self.images.batches(parts[1])),
                counts[1],
                most,
                len(images),
            )
        return gather_encoded(texts, len(captions), world), gather_encoded(seen, len(images), world)


def _alone(read: Callable[[Retriever, Input], Encoded]) -> Callable[[Retriever, Input], Encoded]:
    """What `read` gives, without fragments."""
    return lambda retriever, given: _without_fragments(read(retriever, given))


def _without_fragments(features: Encoded) -> Encoded:
    """Copies, because a view would keep the memory of all fragments."""
    return Encoded(features.pooled.clone(), features.fragments[:, :0].clone(), features.mask[:, :0].clone())
