"""What the parts of a training cost here, measured on a few of its images before it begins.

Everything is done twice and timed the second time: the first starts threads, kernels and caches up.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.data.images.sources import ImagesInMemory, ImageSource
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.methods.method import Method, TrainingView
from pmpguard.models.encoded import Encoded
from pmpguard.training.batch_sampler import PairSampler
from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.encode import Split
from pmpguard.training.epoch import open_split
from pmpguard.training.feature_cache import CachedImages
from pmpguard.training.loader import BatchLoader
from pmpguard.training.parameter_groups import build_optimiser
from pmpguard.training.step import StepRunner, captures

FEW = 8  # images that tell whether a whole batch can be tried
PATIENCE = 15.0  # seconds that trying a whole batch may take
SHORT = 20.0  # seconds of steps, of which nobody needs to know more
PLANNED = 1000  # pairs that an epoch is planned for
RANKED = (256, 128)  # captions and images that are ranked
WORDS = 12  # of a caption, usually
STEPS = 2  # timed
log = logging.getLogger("pmpguard")


@dataclass(frozen=True)
class Pace:
    """Seconds of each part, and the bytes that are kept of an image and of its captions."""

    decode: float  # an image from its file
    read: float  # an image and its captions by frozen encoders, which keep what they read
    encode: float  # an image and its captions, as detection and validation see them
    step: float  # a pair of a step
    rank: float  # an image by a caption
    kept: float


@dataclass(frozen=True)
class PlanPace:
    """Seconds of planning the first epoch and every later one, and how often each encodes everything."""

    first: float
    later: float
    looks_first: int
    looks_later: int


def rehearse(method: Method, table: PairTable, pixels: ImageSource, config: TrainConfig) -> Pace:
    """By steps of the whole batch, or of a small one where that, or the training, tells enough."""
    few = _rehearsed(method, table, pixels, config, FEW)
    images = min(len(pixels), -(-config.batch_size // together(table, config)))
    whole = (STEPS + 1) * config.batch_size * few.step + 3 * images * (few.encode + few.read + few.decode)
    short = config.epochs * len(table) * few.step < SHORT
    if images <= FEW or short or whole > PATIENCE:
        return few
    return _rehearsed(method, table, pixels, config, images)


def together(table: PairTable, config: TrainConfig) -> int:
    """Pairs of a batch that share an image."""
    return min(config.captions_per_image, max(1, round(len(table) / len(table.first_rows))))


def _rehearsed(
    method: Method, table: PairTable, pixels: ImageSource, config: TrainConfig, images: int
) -> Pace:
    retriever, device = method.retriever, method.retriever.device
    codes = np.arange(min(images, len(pixels)))
    sample = table.take(np.flatnonzero(table.image_codes < len(codes)))
    count, decoded = len(codes), list[Tensor]()
    decode = second_time(lambda: decoded.extend(pixels.batches([codes])), device) / count
    opened: list[Split] = []

    def read() -> None:  # another set of images each time: what was read of the first is remembered
        opened.append(open_split(sample, ImagesInMemory(decoded[0], device), retriever, config))

    def ranked() -> None:
        captions, shown = seen[0]
        rows, columns = (torch.arange(most, device=device) for most in RANKED)
        method.score(captions[rows % len(captions)], shown[columns % len(shown)])

    with torch.no_grad():
        reading = second_time(read, device) / count
        seen: list[tuple[Encoded, Encoded]] = []
        encoding = second_time(lambda: seen.append(opened[0].encode(retriever)), device) / count
        ranking = second_time(ranked, device) / (RANKED[0] * RANKED[1])
    step = _step_seconds(method, opened[0], config)
    return Pace(decode, reading, encoding, step, ranking, _kept(opened[0]) / count)


def _step_seconds(method: Method, split: Split, config: TrainConfig) -> float:
    """Of a pair, by real steps; weights of the method are changed."""
    device, alone = method.retriever.device, World()
    pairs = min(config.batch_size, len(split.images) * together(split.table, config), len(split.table))
    config = replace(config, batch_size=max(2, pairs))
    codes = split.table.image_codes, split.table.caption_codes
    sampler = PairSampler(*codes, config.batch_size, config.seed, config.captions_per_image)
    own = type(method)(method.retriever, method.settings, len(split.table)).to(device).train()
    loader = BatchLoader(
        split.table, split.images, split.tokens, sampler, config.augmentation, config.seed,
        device, alone, same_shapes=captures(config, device, alone),
    )  # fmt: skip
    optimiser = build_optimiser(own, config, device)
    runner = StepRunner(own, optimiser, AveragedWeights(own, config.ema), config, device, alone)
    batches = itertools.chain.from_iterable(loader.batches(epoch, 0) for epoch in itertools.count())
    number = itertools.count()

    def take(steps: int) -> None:
        for _ in range(steps):
            runner.step([next(batches)], 0, next(number), 0.0)  # at a rate of 0

    take(3 if runner.capturing else 1)  # to be replayed, the second is captured as a graph
    return timed(lambda: take(STEPS), device) / (STEPS * config.batch_size)


def plan_pace(method: Method, table: PairTable, config: TrainConfig) -> PlanPace:
    """By planning epochs of some of the pairs, whose vectors are drawn so that most captions match."""
    some = table.take(np.arange(min(PLANNED, len(table))))
    device = method.retriever.device
    own = type(method)(method.retriever, method.settings, len(some)).to(device).eval()
    draw = torch.Generator().manual_seed(0)
    fragments = 0 if not own.plans_by_fragments else method.retriever.image_encoder.grid**2
    images = _drawn(torch.randn(len(some.first_rows), config.model.dim, generator=draw), fragments, device)
    rows = np.unique(some.caption_codes, return_index=True)[1]
    shown = images.pooled.cpu()[some.image_codes[rows]]
    noise = normalize(torch.randn(shown.shape, generator=draw), dim=-1)
    captions = _drawn(shown + noise, WORDS if fragments else 0, device)
    ids = torch.randint(0, 1000, (len(rows), WORDS), generator=draw).to(device)
    looks = 0

    def encode() -> tuple[Encoded, Encoded]:
        nonlocal looks
        looks += 1
        return captions, images

    def tokens() -> tuple[Tensor, Tensor]:
        captions, images = encode()
        return captions.pooled, images.pooled

    def plan(epoch: int) -> None:
        nonlocal looks
        looks = 0
        view = TrainingView(
            encode,
            torch.from_numpy(some.caption_codes).to(device),
            torch.from_numpy(some.image_codes).to(device),
            epoch,
            config.seed,
            image_labels=torch.from_numpy(image_label_codes(some)).to(device),
            is_last=False,
            read_tokens=tokens,
            token_ids=lambda: (ids, torch.ones_like(ids, dtype=torch.bool)),
        )
        own.begin_epoch(view)

    with torch.no_grad(), _silent():
        later, looks_later = 0.0, 0
        first, looks_first = timed(lambda: plan(0), device), looks
        if config.epochs > 1:
            later, looks_later = timed(lambda: plan(config.epochs - 1), device), looks
    share = len(table) / len(some)
    return PlanPace(first * share, later * share, looks_first, looks_later)


def _drawn(vectors: Tensor, fragments: int, device: torch.device) -> Encoded:
    """Items (N, d) with the same vector for each of their fragments."""
    pooled = normalize(vectors, dim=-1).to(device)
    mask = torch.ones(len(pooled), fragments, dtype=torch.bool, device=device)
    return Encoded(pooled, pooled[:, None].repeat(1, fragments, 1), mask)


def _kept(split: Split) -> int:
    """Bytes of the features that are kept of a split, if any are."""
    images = split.images.features if isinstance(split.images, CachedImages) else None
    features = [each for each in (split.tokens.features, images) if each is not None]
    parts = [part for each in features for part in (each.fragments, each.pooled)]
    return sum(part.numel() * part.element_size() for part in parts)


def second_time(work: Callable[[], object], device: torch.device) -> float:
    work()
    return timed(work, device)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device has done it."""
    _wait(device)
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Nothing is said of pairs that were drawn."""
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
