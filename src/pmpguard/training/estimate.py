"""How long a training takes and what it holds in memory, from a few steps measured beforehand."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import normalize

from pmpguard.data.images.sources import ImagesInMemory, ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.device import pick_device
from pmpguard.kernels.awareness.fused import awareness_scores_fused
from pmpguard.models.retriever import Retriever
from pmpguard.training.config import TrainConfig
from pmpguard.training.feature_cache import can_cache

SAMPLE = 8  # images read to measure
USUAL_WORDS = 12  # of a caption
BESIDE_ATTENTION = 1.5  # a step takes so much longer than its awareness attention alone, detection included
TRAINED = 3  # times the work of reading an image goes into training an encoder on it
BYTES_TRAINED, BYTES_FROZEN = 20, 4  # of a weight: itself, its gradient, two moments and its average


@dataclass(frozen=True)
class Estimate:
    """Of a training: seconds, and bytes of the model, its optimiser and what is kept of the images."""

    seconds: float
    memory: int

    def __str__(self) -> str:
        return f"{spoken(self.seconds)} and {self.memory / 1e9:.1f} GB for model and images"


def training_estimate(
    table: PairTable, pixels: ImageSource, settings: TrainConfig, runs: int = 1
) -> Estimate:
    """Of `runs` trainings on the pairs of `table`; frozen encoders read its images once.

    Two batches are really encoded and one step of awareness attention really made, with random words.
    """
    images, device = len(table.first_rows), pick_device(settings.device)
    retriever = Retriever.create(settings.model, table.captions[:100]).to(device).eval()
    per_image, bytes_per_image = _reading(retriever, pixels)
    steps = runs * settings.epochs * max(1, round(len(table) / settings.batch_size))
    if can_cache(retriever, settings.augmentation):
        reading, held = images * per_image, images * bytes_per_image
    else:
        shown = settings.batch_size / settings.captions_per_image  # images of a step
        reading, held = steps * shown * per_image * TRAINED, 0
    if isinstance(pixels, ImagesInMemory):
        held += pixels.pixels.numel()
    weights = sum(
        each.numel() * (BYTES_TRAINED if each.requires_grad else BYTES_FROZEN)
        for each in retriever.parameters()
    )
    return Estimate(reading + steps * _step_seconds(retriever, settings) * BESIDE_ATTENTION, weights + held)


@torch.no_grad()
def _reading(retriever: Retriever, pixels: ImageSource) -> tuple[float, int]:
    """Seconds and bytes of features of one image, by the second of two batches, as the first starts up."""
    codes = np.arange(min(SAMPLE, len(pixels)))
    took, size = 0.0, 0
    for _ in range(2):
        started = time.perf_counter()
        for batch in pixels.batches([codes]):
            features = retriever.image_tokens(batch).fragments
            size = features.numel() * features.element_size()
        took = time.perf_counter() - started
    return took / len(codes), size // len(codes)


def _step_seconds(retriever: Retriever, settings: TrainConfig) -> float:
    texts, dim = settings.batch_size, settings.model.dim
    images = max(2, texts // settings.captions_per_image)
    draw = torch.Generator().manual_seed(0)
    words = normalize(torch.randn(texts, USUAL_WORDS, dim, generator=draw), dim=-1).to(retriever.device)
    shape = (images, retriever.image_encoder.grid**2, dim)
    regions = normalize(torch.randn(shape, generator=draw), dim=-1).to(words)
    words.requires_grad_()
    started = time.perf_counter()
    mask = torch.ones(words.shape[:2], dtype=torch.bool, device=words.device)
    awareness_scores_fused(words, mask, regions, 0.0).sum().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - started


def spoken(seconds: float) -> str:
    """
    >>> spoken(40), spoken(600), spoken(20_000)
    ('less than a minute', 'about 10 minutes', 'about 5.6 hours')
    """
    if seconds < 60:
        return "less than a minute"
    if seconds < 90:
        return "about a minute"
    return f"about {seconds / 60:.0f} minutes" if seconds < 7200 else f"about {seconds / 3600:.1f} hours"
