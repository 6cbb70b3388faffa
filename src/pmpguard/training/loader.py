"""From rows of the pair table to the tensors of one step, on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pmpguard.data.images.transforms import Augmentation, augment
from pmpguard.data.pairs import PairTable
from pmpguard.data.text import names_direction
from pmpguard.device import to_device
from pmpguard.kernels.caption_blocks import LongerThan
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.training.batch_sampler import BatchPlan, PairSampler, plan_batch
from pmpguard.training.distributed import World
from pmpguard.training.packing import (
    CAPTION_STEP,
    IMAGE_STEP,
    LENGTH_STEP,
    Packing,
    Words,
    most_longer,
    pack_words,
    rounded,
)
from pmpguard.training.schedule import step_seed

# What encoders are given: pixels or token ids, or what is cached of a frozen backbone.
ImageInput = Tensor | Encoded
TextInput = Words | Encoded


@dataclass(frozen=True)
class DeviceBatch:
    """A batch plan on the device, with one rank's part of what the encoders read.

    `EncodedBatch` is another type because it holds what the encoders of all ranks gave.
    """

    images: ImageInput  # own pixels (own I, 3, H, W) float, augmented, in [0, 255]
    texts: TextInput  # of U distinct captions
    caption_of: Tensor  # (own T,) int64: which of the U each pair has
    image_of: Tensor  # (T,) int64
    image_keys: Tensor  # (I,) int64
    caption_keys: Tensor  # (T,) int64
    rows: Tensor  # (T,) int64
    # (words, most captions of the T with more); None where unknown
    longer_than: LongerThan | None = field(default=None, kw_only=True)

    def tensors(self) -> list[Tensor]:
        return [tensor for name in self._names() for tensor in tensors_of(getattr(self, name))]

    def _names(self) -> list[str]:
        return [own.name for own in fields(self) if own.name != "longer_than"]

    @property
    def kind(self) -> tuple[object, ...]:
        """Steps of equal kinds can replay one another: all that is fixed when a step is captured."""
        return self.longer_than, *(tuple(tensor.shape) for tensor in self.tensors())

    def cloned(self) -> DeviceBatch:
        """The same values in memory of their own."""
        copies: dict[str, Any] = {}
        for name in self._names():
            value = getattr(self, name)
            clones = [tensor.clone() for tensor in tensors_of(value)]
            copies[name] = clones[0] if isinstance(value, Tensor) else type(value)(*clones)
        return replace(self, **copies)


def tensors_of(value: ImageInput | TextInput) -> list[Tensor]:
    """The tensors an input is made of."""
    if isinstance(value, Tensor):
        return [value]
    parts = [getattr(value, own.name) for own in fields(value)]
    return [part for part in parts if part is not None]  # captions side by side have no places


class ImageInputs(Protocol):
    """Distinct images by number: an `ImageSource`, or `CachedImages`."""

    def __len__(self) -> int: ...

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[ImageInput]: ...


@dataclass(frozen=True)
class TokenTable:
    """Every distinct caption tokenised once; of a frozen backbone with its features."""

    ids: Tensor  # (U, L) int32 on the device
    mask: Tensor  # (U, L) bool on the device
    lengths: np.ndarray  # (U,) on the host: cutting to the longest needs no wait for the device
    row_of: np.ndarray  # (N,) which of the U each pair has
    packs: bool  # whether the text encoder reads packed captions
    specials: tuple[int, int] = (0, 0)  # tokens before and after the words of every caption
    features: Encoded | None = None  # (U, m, c): then `lengths` counts these

    @classmethod
    def of(cls, table: PairTable, retriever: Retriever, device: torch.device) -> TokenTable:
        first = np.unique(table.caption_codes, return_index=True)[1]
        captions = table.captions
        ids, mask = retriever.tokenize([captions[row] for row in first])
        lengths = mask.sum(1).cpu().numpy()
        encoder = retriever.text_encoder
        specials = encoder.architecture.prefix, encoder.architecture.suffix
        return cls(
            ids.int().to(device), mask.to(device), lengths, table.caption_codes, encoder.packs, specials
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return (self.mask if self.features is None else self.features.mask).shape[1]

    def width(self, captions: np.ndarray) -> int:
        """The longest of the given captions, rounded up."""
        return min(self.longest, rounded(max(1, int(self.lengths[captions].max())), LENGTH_STEP))

    def padded(self, captions: np.ndarray, width: int | None = None) -> Words | Encoded:
        """The given distinct captions (n,), all as long as the longest of them, rounded up."""
        width = width or self.width(captions)
        features = self.features
        index = to_device(captions, (self.ids if features is None else features.mask).device)
        if features is None:
            return Words(self.ids[index, :width].long(), self.mask[index, :width])
        chosen = Encoded(
            features.pooled[index], features.fragments[index, :width], features.mask[index, :width]
        )
        return chosen.to(self.ids.device)

    def packing(self, batches: Sequence[tuple[np.ndarray, np.ndarray]], *, spare: bool = False) -> Packing:
        """Room for any of these batches, of distinct captions (U,) and which of them each pair (T,) has.

        `spare`: and for a few more long captions.
        """
        lengths = [self.lengths[some] for some, _ in batches]
        words = [self.lengths[some[caption_of]] - sum(self.specials) for some, caption_of in batches]
        return Packing.for_batches(lengths, most_longer(words, spare=spare))

    def inputs(self, captions: np.ndarray, packing: Packing | None) -> TextInput:
        """The given distinct captions; padded ones are repeated to a round number or to fill `packing`."""
        if packing is None:
            return self.padded(np.resize(captions, rounded(len(captions), CAPTION_STEP)))
        if self.packs:
            return pack_words(self.ids, captions, self.lengths[captions], self.specials, packing)
        return self.padded(np.resize(captions, packing.captions), min(packing.longest, self.longest))


class BatchLoader:
    """Batches of one training table; every random draw is a function of (seed, step).

    With `same_shapes` all batches of an epoch have the same shape, and those of nearly all epochs, so that a
    captured step can be replayed: captions are padded, and batches with fewer images than others get some
    of the next ones, as negatives only.
    """

    def __init__(
        self,
        table: PairTable,
        images: ImageInputs,
        tokens: TokenTable,
        sampler: PairSampler,
        augmentation: Augmentation,
        seed: int,
        device: torch.device,
        world: World,
        *,
        same_shapes: bool = False,
    ) -> None:
        self.table, self.images, self.tokens, self.sampler = table, images, tokens, sampler
        self.augmentation, self.seed, self.device, self.world = augmentation, seed, device, world
        self.oriented = np.array([names_direction(caption) for caption in table.captions], dtype=bool)
        self.pair_with(None)
        self.same_shapes = same_shapes
        self.most_images = 0  # in any batch of the first two epochs
        self.room: Packing | None = None  # for the captions of any batch so far
        if same_shapes:
            plans = [plan for epoch in (0, 1) for plan in self.plans(epoch)]
            self.most_images = max(len(plan.images) for plan in plans)
            self.room = tokens.packing(self.distinct_captions(plans), spare=True)

    def pair_with(self, image_codes: np.ndarray | None) -> None:
        """Train each row with this image (N,), by default with the labelled one."""
        image_codes = self.table.image_codes if image_codes is None else image_codes
        self.sampler.image_codes = self.image_codes = image_codes
        self.sampler.forget()
        # An image keeps its orientation when any of its captions names a direction.
        self.keep_orientation = np.zeros(len(self.images), dtype=bool)
        np.logical_or.at(self.keep_orientation, image_codes, self.oriented)

    def plans(self, epoch: int) -> list[BatchPlan]:
        """Which pairs and images each batch of the epoch holds."""
        plans = [
            plan_batch(rows, self.image_codes, self.table.caption_codes)
            for rows in self.sampler.batches(epoch, 0)
        ]
        if not self.same_shapes:
            return plans
        least = self.most_images
        if self.sampler.repeats is not None:  # verdicts change a little: most epochs should still be alike
            least = max(least, rounded(max(len(plan.images) for plan in plans), IMAGE_STEP))
        return with_more_images(plans, least)

    def distinct_captions(self, plans: Sequence[BatchPlan]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of this rank's part of each batch: the distinct captions (U,), and which of them each pair has."""
        rows = [plan.rows[self.world.share(len(plan.rows))] for plan in plans]
        return [np.unique(self.tokens.row_of[some], return_inverse=True) for some in rows]

    def batches(self, epoch: int, start: int) -> Iterator[DeviceBatch]:
        """The epoch's batches from number `start` on, as this rank needs them."""
        plans = self.plans(epoch)
        distinct = self.distinct_captions(plans)
        packing = None
        if self.tokens.packs or self.same_shapes:
            spare = self.sampler.repeats is not None
            packing = self.tokens.packing(distinct, spare=spare)  # of the whole epoch: one shape
        if packing is not None and self.room is not None:
            packing = self.room = packing.at_least(self.room)  # kept: every other shape is captured anew
        alone = self.world.size == 1  # of several ranks, each has counted its own pairs only
        longer_than = packing.longer_than if packing is not None and alone else None
        own = [plan.images[self.world.share(len(plan.images))] for plan in plans[start:]]
        offset = epoch * self.sampler.steps_per_epoch
        for number, images in enumerate(self.images.batches(own), start=start):
            some, caption_of = distinct[number]
            texts = self.tokens.inputs(some, packing)
            batch = self._on_device(plans[number], images, texts, caption_of, offset + number)
            yield replace(batch, longer_than=longer_than)

    def _on_device(
        self, plan: BatchPlan, images: ImageInput, texts: TextInput, caption_of: np.ndarray, number: int
    ) -> DeviceBatch:
        if isinstance(images, Tensor):  # features are cached of still images only
            generator = torch.Generator().manual_seed(step_seed(self.seed, number, 1))
            keep = torch.from_numpy(self.keep_orientation[plan.images])
            share = self.world.share(len(plan.images))
            images = augment(images, generator, self.augmentation, keep, share)
        index = (caption_of, plan.image_of, plan.images, plan.caption_keys, plan.rows)
        return DeviceBatch(images, texts, *(to_device(part, self.device) for part in index))


def with_more_images(plans: Sequence[BatchPlan], least: int = 0) -> list[BatchPlan]:
    """The same batches, all with as many images as the fullest, and `least` at least.

    A batch is filled up with images of the batches after it, the first one coming after the last. Where
    the whole set has too few others, batches stay as they are.
    """
    least = max(least, *(len(plan.images) for plan in plans))
    filled = []
    for number, plan in enumerate(plans):
        images, after = plan.images, 1
        while len(images) < least and after < len(plans):
            others = np.setdiff1d(plans[(number + after) % len(plans)].images, images)
            images = np.concatenate([images, others[: least - len(images)]])
            after += 1
        filled.append(replace(plan, images=images))
    return filled


def batch_names(table: PairTable, rows: Sequence[int] | np.ndarray, most: int = 8) -> str:
    """The pair ids of a batch, for an error message."""
    names = [table.arrow["pair_id"][int(row)].as_py() for row in list(rows)[:most]]
    return ", ".join(names) + (" ..." if len(rows) > most else "")
