"""Whole splits as a model sees them: for detection before an epoch and for validation after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pmpguard.data.images.sources import ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.device import encoder_precision
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World, gather_encoded
from pmpguard.training.feature_cache import cache_tokens, can_cache
from pmpguard.training.kept_tokens import image_tokens_of, images_of, text_tokens_of, texts_of
from pmpguard.training.loader import TokenTable

ReadCaptions = Callable[[Retriever, Tensor, Tensor], Encoded]
ReadImages = Callable[[Retriever, Tensor], Encoded]


@dataclass(frozen=True)
class Split:
    """Pairs with their images and tokenised captions; of frozen backbones, with their kept tokens."""

    table: PairTable
    images: ImageSource
    tokens: TokenTable

    @classmethod
    def open(
        cls,
        table: PairTable,
        images: ImageSource,
        retriever: Retriever,
        config: TrainConfig,
        device: torch.device,
    ) -> Split:
        tokens = TokenTable.of(table, retriever, device)
        if not can_cache(retriever, config.augmentation):
            return cls(table, images, tokens)
        return cls(
            table, *cache_tokens(retriever, images, tokens, config.batch_size, device, config.precision)
        )

    def encode(
        self, retriever: Retriever, config: TrainConfig, device: torch.device, world: World
    ) -> tuple[Encoded, Encoded]:
        """Each distinct caption and each image once, every rank doing its share and getting all."""
        return self._read(texts_of, images_of, retriever, config, device, world)

    def pooled_tokens(
        self, retriever: Retriever, config: TrainConfig, device: torch.device, world: World
    ) -> tuple[Tensor, Tensor]:
        """The same up to the encoders' last linear layers, without fragments: (C, c) and (I, e)."""

        def captions_of(retriever: Retriever, words: Tensor, mask: Tensor) -> Encoded:
            return _without_fragments(text_tokens_of(retriever, words, mask))

        def images_of(retriever: Retriever, images: Tensor) -> Encoded:
            return _without_fragments(image_tokens_of(retriever, images))

        captions, images = self._read(captions_of, images_of, retriever, config, device, world)
        return captions.pooled, images.pooled

    def _read(
        self,
        read_captions: ReadCaptions,
        read_images: ReadImages,
        retriever: Retriever,
        config: TrainConfig,
        device: torch.device,
        world: World,
    ) -> tuple[Encoded, Encoded]:
        tokens, images = self.tokens, self.images

        def encode_captions(part: slice) -> Encoded:
            return read_captions(retriever, tokens.ids[part], tokens.mask[part])

        parts = shared_parts(len(images), config, world)
        pixels = images.batches([np.arange(part.start, part.stop) for part in parts])

        def encode_images(part: slice) -> Encoded:
            return read_images(retriever, next(pixels))  # in the order of the parts

        return (
            encode_shared(encode_captions, len(tokens.ids), config, device, world),
            encode_shared(encode_images, len(images), config, device, world),
        )


def _without_fragments(tokens: Encoded) -> Encoded:
    """Copies, because a view would keep the memory of all fragments."""
    return Encoded(tokens.pooled.clone(), tokens.fragments[:, :0].clone(), tokens.mask[:, :0].clone())


def shared_parts(count: int, config: TrainConfig, world: World) -> list[slice]:
    """This rank's share of `count` items, cut into batches."""
    share = world.share(count)
    starts = range(share.start, share.stop, config.batch_size)
    return [slice(start, min(start + config.batch_size, share.stop)) for start in starts]


def encode_shared(
    encode: Callable[[slice], Encoded], count: int, config: TrainConfig, device: torch.device, world: World
) -> Encoded:
    """Encode `count` items in the run's precision, each rank its share; vectors come out in float32."""
    parts = shared_parts(count, config, world)
    with encoder_precision(device, config.precision):
        encoded = [encode(part).to(dtype=torch.float32) for part in parts]
    return gather_encoded(Encoded.cat(encoded), count, world)
