"""Embeddings with known mismatched pairs, and the same as a dataset on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


@dataclass(frozen=True)
class Planted:
    images: np.ndarray  # (I, d)
    captions: np.ndarray  # (C, d), one for each pair
    image_of: np.ndarray  # (N,)
    wrong: np.ndarray  # (N,) bool
    own: np.ndarray  # (N,) the image each caption really describes


def planted(
    images: int = 200,
    per_image: int = 4,
    rate: float = 0.3,
    dim: int = 16,
    seed: int = 0,
    noise: float = 1.0,
    blur: float = 0.0,
) -> Planted:
    """Captions near the scene they describe, images too (`blur`); a share has another image's label."""
    generator = np.random.default_rng(seed)
    image_of = np.repeat(np.arange(images), per_image)
    moved = np.flatnonzero(generator.random(len(image_of)) < rate)
    own = image_of.copy()
    own[moved] = image_of[generator.permutation(moved)]
    centres = generator.normal(size=(images, dim))
    captions = centres[own] + noise * generator.normal(size=(len(own), dim))
    pixels = centres + blur * generator.normal(size=centres.shape)
    return Planted(pixels, captions, image_of, own != image_of, own)


def write_clip_folder(folder: Path, pairs: Planted, parts: int = 2) -> None:
    """As clip-retrieval writes it, in several parts, float16; plus an image for every image."""
    for name in ("img_emb", "text_emb", "metadata", "images"):
        (folder / name).mkdir(parents=True)
    for number, rows in enumerate(np.array_split(np.arange(len(pairs.image_of)), parts)):
        np.save(
            folder / f"img_emb/img_emb_{number}.npy", pairs.images[pairs.image_of[rows]].astype("float16")
        )
        np.save(folder / f"text_emb/text_emb_{number}.npy", pairs.captions[rows].astype("float16"))
        columns = {
            "image_path": [f"images/{pairs.image_of[row]}.png" for row in rows],
            "caption": [f"caption {row} of something like {pairs.own[row]}" for row in rows],
        }
        pq.write_table(pa.table(columns), folder / f"metadata/metadata_{number}.parquet")
    for image in range(len(pairs.images)):
        colour = (image * 37 % 256, image * 91 % 256, image * 13 % 256)
        Image.new("RGB", (16, 16), colour).save(folder / f"images/{image}.png")
