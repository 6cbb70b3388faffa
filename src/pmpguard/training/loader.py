"""From rows of the pair table to the tensors of one step, on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from torch import Tensor

from pmpguard.data.images.sources import ImageSource
from pmpguard.data.images.transforms import Augmentation, augment
from pmpguard.data.pairs import PairTable
from pmpguard.data.text import names_direction
from pmpguard.device import to_device
from pmpguard.kernels.caption_blocks import LongerThan
from pmpguard.models.retriever import Retriever
from pmpguard.training.batch_sampler import BatchLayout, PairSampler, batch_layout
from pmpguard.training.distributed import World
from pmpguard.training.packing import (
    CAPTION_STEP,
    IMAGE_STEP,
    LENGTH_STEP,
    Packing,
    PaddedWords,
    Words,
    most_longer,
    pack_words,
    rounded,
    word_tensors,
)
from pmpguard.training.schedule import step_seed


@dataclass(frozen=True)
class DeviceBatch:
    """One rank's part of a batch (pixels, words) and the whole batch's layout."""

    pixels: Tensor  # (own I, 3, H, W) float, augmented, in [0, 255]
    words: Words  # of U distinct captions
    caption_of: Tensor  # (own T,) int64: which of the U each pair has
    image_of: Tensor  # (T,) int64
    image_keys: Tensor  # (I,) int64
    caption_keys: Tensor  # (T,) int64
    rows: Tensor  # (T,) int64
    # (words, most captions of the T with more); None where unknown
    longer_than: LongerThan | None = field(default=None, kw_only=True)

    def tensors(self) -> list[Tensor]:
        return [*self._own_tensors().values(), *word_tensors(self.words)]

    def _own_tensors(self) -> dict[str, Tensor]:
        names = [own.name for own in fields(self) if own.name not in ("words", "longer_than")]
        return {name: getattr(self, name) for name in names}

    @property
    def kind(self) -> tuple[object, ...]:
        """Steps of equal kinds can replay one another: all that is fixed when a step is captured."""
        return self.longer_than, *(tuple(tensor.shape) for tensor in self.tensors())

    def cloned(self) -> DeviceBatch:
        """The same values in memory of their own."""
        words = type(self.words)(*(tensor.clone() for tensor in word_tensors(self.words)))
        others = {name: tensor.clone() for name, tensor in self._own_tensors().items()}
        return DeviceBatch(words=words, longer_than=self.longer_than, **others)


@dataclass(frozen=True)
class TokenTable:
    """Every distinct caption tokenised once."""

    ids: Tensor  # (U, L) int64 on the device
    mask: Tensor  # (U, L) bool on the device
    lengths: np.ndarray  # (U,) on the host: cutting to the longest needs no wait for the device
    row_of: np.ndarray  # (N,) which of the U each pair has
    packs: bool  # whether the text encoder reads packed captions
    specials: tuple[int, int] = (0, 0)  # tokens before and after the words of every caption

    @classmethod
    def of(cls, table: PairTable, retriever: Retriever, device: torch.device) -> TokenTable:
        first = np.unique(table.caption_codes, return_index=True)[1]
        captions = table.captions
        ids, mask = retriever.tokenize([captions[row] for row in first])
        lengths = mask.sum(1).cpu().numpy()
        encoder = retriever.text_encoder
        specials = encoder.architecture.prefix, encoder.architecture.suffix
        return cls(ids.to(device), mask.to(device), lengths, table.caption_codes, encoder.packs, specials)

    def width(self, captions: np.ndarray) -> int:
        """The longest of the given captions, rounded up."""
        return min(self.mask.shape[1], rounded(max(1, int(self.lengths[captions].max())), LENGTH_STEP))

    def padded(self, captions: np.ndarray, width: int | None = None) -> PaddedWords:
        """ids and mask (n, L) of the given distinct captions, L the longest of them rounded up."""
        width = width or self.width(captions)
        index = to_device(captions, self.ids.device)
        return PaddedWords(self.ids[index, :width], self.mask[index, :width])

    def packing(self, batches: Sequence[tuple[np.ndarray, np.ndarray]], *, spare: bool = False) -> Packing:
        """Room for any of these batches, of distinct captions (U,) and which of them each pair (T,) has.

        `spare`: and for a few more long captions.
        """
        lengths = [self.lengths[some] for some, _ in batches]
        words = [self.lengths[some[caption_of]] - sum(self.specials) for some, caption_of in batches]
        return Packing.for_batches(lengths, most_longer(words, spare=spare))

    def words(self, captions: np.ndarray, packing: Packing | None) -> Words:
        """The given distinct captions; padded ones are repeated to a round number or to fill `packing`."""
        if packing is None:
            return self.padded(np.resize(captions, rounded(len(captions), CAPTION_STEP)))
        if self.packs:
            return pack_words(self.ids, captions, self.lengths[captions], self.specials, packing)
        return self.padded(np.resize(captions, packing.captions), min(packing.longest, self.mask.shape[1]))


class BatchLoader:
    """Batches of one training table; every random draw is a function of (seed, step).

    With `same_shapes` all batches of an epoch have the same shape, and those of nearly all epochs, so that a
    captured step can be replayed: captions are padded, and batches with fewer images than others get some
    of the next ones, as negatives only.
    """

    def __init__(
        self,
        table: PairTable,
        images: ImageSource,
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
        self.pair_with(table.image_codes)
        self.same_shapes = same_shapes
        self.most_images = 0  # in any batch of the first two epochs
        self.room: Packing | None = None  # for the captions of any batch so far
        if same_shapes:
            layouts = [layout for epoch in (0, 1) for layout in self.layouts(epoch)]
            self.most_images = max(len(layout.images) for layout in layouts)
            self.room = tokens.packing(self.distinct_captions(layouts), spare=True)

    def pair_with(self, image_codes: np.ndarray) -> None:
        """Train each row with this image (N,): the labelled one, or one it was rematched to."""
        self.sampler.image_codes = self.image_codes = image_codes
        self.sampler.forget()
        # A image keeps its orientation when any of its captions names a direction.
        self.keep_orientation = np.zeros(len(self.images), dtype=bool)
        np.logical_or.at(self.keep_orientation, image_codes, self.oriented)

    def layouts(self, epoch: int) -> list[BatchLayout]:
        """Which pairs and images each batch of the epoch holds."""
        layouts = [
            batch_layout(rows, self.image_codes, self.table.caption_codes)
            for rows in self.sampler.batches(epoch, 0)
        ]
        if not self.same_shapes:
            return layouts
        least = self.most_images
        if self.sampler.repeats is not None:  # verdicts change a little: most epochs should still be alike
            least = max(least, rounded(max(len(layout.images) for layout in layouts), IMAGE_STEP))
        return with_more_images(layouts, least)

    def distinct_captions(self, layouts: Sequence[BatchLayout]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of this rank's part of each batch: the distinct captions (U,), and which of them each pair has."""
        rows = [layout.rows[self.world.share(len(layout.rows))] for layout in layouts]
        return [np.unique(self.tokens.row_of[some], return_inverse=True) for some in rows]

    def batches(self, epoch: int, start: int) -> Iterator[DeviceBatch]:
        """The epoch's batches from number `start` on, as this rank needs them."""
        layouts = self.layouts(epoch)
        distinct = self.distinct_captions(layouts)
        packing = None
        if self.tokens.packs or self.same_shapes:
            spare = self.sampler.repeats is not None
            packing = self.tokens.packing(distinct, spare=spare)  # of the whole epoch: one shape
        if packing is not None and self.room is not None:
            packing = self.room = packing.at_least(self.room)  # kept: every other shape is captured anew
        alone = self.world.size == 1  # of several ranks, each has counted its own pairs only
        longer_than = packing.longer_than if packing is not None and alone else None
        own = [layout.images[self.world.share(len(layout.images))] for layout in layouts[start:]]
        offset = epoch * self.sampler.steps_per_epoch
        for number, pixels in enumerate(self.images.batches(own), start=start):
            some, caption_of = distinct[number]
            words = self.tokens.words(some, packing)
            batch = self._tensors(layouts[number], pixels, words, caption_of, offset + number)
            yield replace(batch, longer_than=longer_than)

    def _tensors(
        self, layout: BatchLayout, pixels: Tensor, words: Words, caption_of: np.ndarray, number: int
    ) -> DeviceBatch:
        generator = torch.Generator().manual_seed(step_seed(self.seed, number, 1))
        keep = torch.from_numpy(self.keep_orientation[layout.images])
        share = self.world.share(len(layout.images))
        return DeviceBatch(
            augment(pixels, generator, self.augmentation, keep, share),
            words,
            *(
                to_device(part, self.device)
                for part in (caption_of, layout.image_of, layout.images, layout.caption_keys, layout.rows)
            ),
        )


def with_more_images(layouts: Sequence[BatchLayout], least: int = 0) -> list[BatchLayout]:
    """The same batches, all with as many images as the fullest, and `least` at least.

    A batch is filled up with images of the batches after it, the first one coming after the last. Where
    the whole set has too few others, batches stay as they are.
    """
    least = max(least, *(len(layout.images) for layout in layouts))
    filled = []
    for number, layout in enumerate(layouts):
        images, after = layout.images, 1
        while len(images) < least and after < len(layouts):
            others = np.setdiff1d(layouts[(number + after) % len(layouts)].images, images)
            images = np.concatenate([images, others[: least - len(images)]])
            after += 1
        filled.append(replace(layout, images=images))
    return filled


def batch_names(table: PairTable, rows: Sequence[int] | np.ndarray, most: int = 8) -> str:
    """The pair ids of a batch, for an error message."""
    names = [table.arrow["pair_id"][int(row)].as_py() for row in list(rows)[:most]]
    return ", ".join(names) + (" ..." if len(rows) > most else "")
