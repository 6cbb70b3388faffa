"""A small random batch and a method on tiny encoders."""

from __future__ import annotations

import torch
from torch import Tensor

from pmpguard.methods.method import EncodedBatch, Method
from pmpguard.methods.registry import find_method
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever

WORDS = ["red", "green", "roof", "pond", "road", "tree"]


def encoded(count: int, fragments: int, dim: int, generator: torch.Generator) -> Encoded:
    def unit(*shape: int) -> Tensor:
        vectors = torch.randn(*shape, generator=generator, dtype=torch.float32)
        return torch.nn.functional.normalize(vectors, dim=-1)

    mask = torch.arange(fragments)[None] < torch.randint(1, fragments + 1, (count, 1), generator=generator)
    return Encoded(unit(count, dim), unit(count, fragments, dim), mask)


def batch(captions: int = 6, images: int = 5, epoch: int = 3, seed: int = 0) -> EncodedBatch:
    generator = torch.Generator().manual_seed(seed)
    image_of = torch.cat(
        [torch.arange(images), torch.randint(images, (captions - images,), generator=generator)]
    )
    return EncodedBatch(
        encoded(captions, 4, 16, generator),
        encoded(images, 3, 16, generator),
        image_of,
        torch.arange(images) + 10,
        torch.arange(captions),
        torch.arange(captions),
        epoch,
    )


def build(name: str, preset: str = "recommended", **settings: object) -> Method:
    kind = find_method(name)
    read = kind.read_settings(preset, dict(settings))
    config = RetrieverConfig(vision="tiny", text="tiny", dim=16, image_size=32)
    torch.manual_seed(0)
    return kind(Retriever.create(kind.model_config(config, read), WORDS), read, 100)
