"""Embeddings of clustered scenes in two unrelated spaces, some pairs mismatched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Clusters:
    texts: Tensor  # (N, d), one for each pair
    images: Tensor  # (I, e)
    image_of: Tensor  # (N,)
    own: np.ndarray  # (N,) the image that each text describes

    @property
    def is_mismatched(self) -> np.ndarray:
        """(N,) bool"""
        mismatched: np.ndarray = self.own != self.image_of.numpy()
        return mismatched


def clusters(
    images: int = 600,
    rate: float = 0.2,
    per_image: int = 1,
    *,
    dims: tuple[int, int] = (24, 40),
    level: str = "caption",
    noise: float = 0.5,
    seed: int = 0,
) -> Clusters:
    """Scenes of about twenty images a kind; texts (or all texts of an image) of a share of pairs moved."""
    generator = np.random.default_rng(seed)
    kinds = generator.normal(size=(max(images // 20, 5), 12))
    scenes = kinds[generator.integers(len(kinds), size=images)] + 0.5 * generator.normal(size=(images, 12))
    image_of = np.repeat(np.arange(images), per_image)
    if level == "image":
        moved = np.flatnonzero(generator.random(images) < rate)
        place = np.arange(images)
        place[moved] = np.roll(moved, 1)
        own = place[image_of]
    else:
        moved = np.flatnonzero(generator.random(len(image_of)) < rate)
        own = image_of.copy()
        own[moved] = own[generator.permutation(moved)]
    texts = scenes[own] + noise * generator.normal(size=(len(own), 12))
    pixels = scenes + noise * generator.normal(size=scenes.shape)
    to_texts, to_images = (generator.normal(size=(12, dim)) for dim in dims)
    if dims[0] == dims[1]:
        to_images = to_texts
    spaces = (torch.from_numpy(x).float() for x in (texts @ to_texts, pixels @ to_images))
    return Clusters(*spaces, torch.from_numpy(image_of), own)


def blind(pairs: int, dims: tuple[int, int] = (32, 48), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Texts and images that have nothing to do with each other."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(pairs, dims[0])), generator.normal(size=(pairs, dims[1]))
