"""From rows of the pair table to the tensors of one step, on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from pmpguard.data.batches import BatchLayout, PairSampler, batch_layout
from pmpguard.data.pairs import PairTable
from pmpguard.data.text import names_direction
from pmpguard.data.transforms import Augmentation, augment
from pmpguard.model.retriever import Retriever
from pmpguard.training.distributed import World
from pmpguard.training.pictures import Pictures
from pmpguard.training.schedule import step_seed

# Captions are cut to the batch's longest, rounded up to this, so that few different shapes occur.
_LENGTH_STEP = 8


@dataclass(frozen=True)
class StepTensors:
    """One rank's part of a batch (pixels, words) and the whole batch's layout."""

    pixels: Tensor  # (own I, 3, H, W) float, augmented, in [0, 255]
    token_ids: Tensor  # (own T, L) int64
    token_mask: Tensor  # (own T, L) bool
    image_of: Tensor  # (T,) int64
    image_keys: Tensor  # (I,) int64
    caption_keys: Tensor  # (T,) int64
    rows: Tensor  # (T,) int64

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class TokenTable:
    """Every distinct caption tokenised once."""

    ids: Tensor  # (U, L) int64 on the device
    mask: Tensor  # (U, L) bool on the device
    lengths: np.ndarray  # (U,) on the host: cutting to the longest needs no wait for the device
    row_of: np.ndarray  # (N,) which of the U each pair has

    @classmethod
    def of(cls, table: PairTable, retriever: Retriever, device: torch.device) -> TokenTable:
        first = np.unique(table.caption_codes, return_index=True)[1]
        captions = table.captions
        ids, mask = retriever.tokenize([captions[row] for row in first])
        return cls(ids.to(device), mask.to(device), mask.sum(1).cpu().numpy(), table.caption_codes)

    def width(self, captions: np.ndarray) -> int:
        """The longest of the given captions, rounded up."""
        longest = int(self.lengths[captions].max())
        return min(self.mask.shape[1], max(1, -(-longest // _LENGTH_STEP)) * _LENGTH_STEP)

    def words(self, captions: np.ndarray) -> tuple[Tensor, Tensor]:
        """ids and mask (n, L) of the given distinct captions, L the longest of them rounded up."""
        width = self.width(captions)
        index = torch.from_numpy(captions).to(self.ids.device)
        return self.ids[index, :width], self.mask[index, :width]


class Feeder:
    """Batches of one training table; every random draw is a function of (seed, step)."""

    def __init__(
        self,
        table: PairTable,
        pictures: Pictures,
        tokens: TokenTable,
        sampler: PairSampler,
        augmentation: Augmentation,
        seed: int,
        device: torch.device,
        world: World,
    ) -> None:
        self.table, self.pictures, self.tokens, self.sampler = table, pictures, tokens, sampler
        self.augmentation, self.seed, self.device, self.world = augmentation, seed, device, world
        self.oriented = np.array([names_direction(caption) for caption in table.captions], dtype=bool)
        self.pair_with(table.image_codes)

    def pair_with(self, image_codes: np.ndarray) -> None:
        """Train each row with this picture (N,): the labelled one, or one it was rematched to."""
        self.sampler.image_codes = self.image_codes = image_codes
        self.sampler.forget()
        # A picture keeps its orientation when any of its captions names a direction.
        self.keep_orientation = np.zeros(len(self.pictures), dtype=bool)
        np.logical_or.at(self.keep_orientation, image_codes, self.oriented)

    def layouts(self, epoch: int, start: int) -> list[BatchLayout]:
        """Which pairs and pictures each remaining batch of the epoch holds."""
        return [
            batch_layout(rows, self.image_codes, self.table.caption_codes)
            for rows in self.sampler.batches(epoch, start)
        ]

    def batches(self, epoch: int, start: int) -> Iterator[StepTensors]:
        """The epoch's batches from number `start` on, as this rank needs them."""
        layouts = self.layouts(epoch, start)
        own = [layout.images[self.world.share(len(layout.images))] for layout in layouts]
        offset = epoch * self.sampler.steps_per_epoch + start
        pairs = zip(layouts, self.pictures.batches(own), strict=True)
        for number, (layout, pixels) in enumerate(pairs, start=offset):
            yield self._tensors(layout, pixels, number)

    def _tensors(self, layout: BatchLayout, pixels: Tensor, number: int) -> StepTensors:
        generator = torch.Generator().manual_seed(step_seed(self.seed, number, 1))
        keep = torch.from_numpy(self.keep_orientation[layout.images])
        share = self.world.share(len(layout.images))
        captions = self.tokens.row_of[layout.rows[self.world.share(len(layout.rows))]]
        ids, mask = self.tokens.words(captions)
        return StepTensors(
            augment(pixels, generator, self.augmentation, keep, share),
            ids,
            mask,
            *(
                torch.from_numpy(np.ascontiguousarray(part)).to(self.device, non_blocking=True)
                for part in (layout.image_of, layout.images, layout.caption_keys, layout.rows)
            ),
        )


def batch_names(table: PairTable, rows: Sequence[int] | np.ndarray, most: int = 8) -> str:
    """The pair ids of a batch, for an error message."""
    names = [table.arrow["pair_id"][int(row)].as_py() for row in list(rows)[:most]]
    return ", ".join(names) + (" ..." if len(rows) > most else "")
