"""How long a training takes and what it holds in memory, from a rehearsal of its parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pmpguard.data.images.sources import ImagesInMemory, ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.device import pick_device
from pmpguard.progress import spoken
from pmpguard.training.config import TrainConfig, resolve
from pmpguard.training.feature_cache import can_cache
from pmpguard.training.loop import build_method
from pmpguard.training.rehearsal import plan_pace, rehearse

TEST_RANKINGS = 4  # by which the test split, about as large as validation, is ranked in the end
BYTES_TRAINED, BYTES_FROZEN = 20, 4  # of a weight: itself, its gradient, two moments and its average


@dataclass(frozen=True)
class Estimate:
    """Of a training: seconds, and bytes of the model, its optimiser and what is kept of the images."""

    seconds: float
    memory: int

    def __str__(self) -> str:
        return f"{spoken(self.seconds)} and {self.memory / 1e9:.1f} GB for model and images"


def training_estimate(
    table: PairTable,
    pixels: ImageSource,
    settings: TrainConfig,
    runs: int = 1,
    held_out: PairTable | None = None,
) -> Estimate:
    """Of `runs` trainings on the pairs of `table`, each validated on pairs like those `held_out`.

    What a training encodes, plans, steps and ranks is done with a few images and multiplied. Frozen encoders
    read the images once for all runs.
    """
    config, device = resolve(settings), pick_device(settings.device)
    images, pairs = len(table.first_rows), len(table)
    validated = 0 if held_out is None else len(held_out.first_rows)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        method = build_method(config, pairs, table.captions).to(device)
        keeps = can_cache(method.retriever, config.augmentation)
        trained = [each.requires_grad for each in method.parameters()]
        sizes = [each.numel() for each in method.parameters()]
        pace = rehearse(method, table, pixels, config)
        plan = plan_pace(method, table, config)
    decode = 0.0 if keeps or isinstance(pixels, ImagesInMemory) else pace.decode
    encode = pace.encode + decode
    steps = pairs // config.batch_size * config.batch_size * pace.step + images * decode
    looks = plan.looks_first + plan.looks_later * (config.epochs - 1)
    planning = plan.first + plan.later * (config.epochs - 1) + looks * images * encode
    ranking = 0.0 if held_out is None else len(held_out) * validated * pace.rank
    validation = -(-config.epochs // config.evaluate_every) * (validated * encode + ranking)
    test = validated * encode + TEST_RANKINGS * ranking
    reading = (images + 2 * validated) * (pace.read + pace.decode) if keeps else 0.0
    seconds = reading + runs * (config.epochs * steps + planning + validation + test)
    held = images * pace.kept + (pixels.pixels.numel() if isinstance(pixels, ImagesInMemory) else 0)
    bytes_each = (BYTES_TRAINED if each else BYTES_FROZEN for each in trained)
    weights = sum(size * each for size, each in zip(sizes, bytes_each, strict=True))
    return Estimate(seconds, int(weights + held))
