"""The captions of one step, each distinct one once, in the form its text encoder reads fastest.

Captions of very different lengths padded to the longest are mostly padding: of RSICD's, two thirds. Encoders
that take a ready-made attention mask read them packed instead, many captions in one row, none of which sees
another (`TextEncoder.packed_tokens`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from pmpguard.device import to_device
from pmpguard.kernels.caption_blocks import LongerThan
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever

# Counts are rounded up to these, so that few different shapes occur and captured steps can be replayed.
LENGTH_STEP, CAPTION_STEP, ROW_STEP, IMAGE_STEP = 8, 32, 8, 32
ROW_LENGTH = 128
# For each of these numbers of words, a step is told how many captions may have more.
WORD_STEPS = (6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96)
LONGER_SHARE = 32  # such counts are rounded up to a whole number of this part of the batch


@dataclass(frozen=True)
class Words:
    """The token ids of U captions: side by side, all as long as the longest, or packed into R rows."""

    ids: Tensor  # (U, L) int64; packed (R, W)
    mask: Tensor  # (U, L) bool: which tokens there are; packed (U, m): which words
    # Of packed captions alone:
    owner: Tensor | None = None  # (R, W) int64: which caption a place belongs to, -1 at empty places
    position: Tensor | None = None  # (R, W) int64: within the caption
    place: Tensor | None = None  # (U, m) int64: where each word lies among the R * W

    def features(self, retriever: Retriever) -> Encoded:
        """What the text encoder makes of them, up to its last linear layer."""
        if self.owner is None or self.position is None or self.place is None:
            return retriever.text_tokens(self.ids, self.mask)
        return retriever.text_encoder.packed_tokens(
            self.ids, self.owner, self.position, self.place, self.mask
        )


@dataclass(frozen=True)
class Packing:
    """How many rows, captions and words the batches of an epoch need at most, rounded up."""

    rows: int
    captions: int
    longest: int
    longer_than: LongerThan | None = None  # pairs of a batch by words, special tokens not counted

    @classmethod
    def for_batches(cls, lengths: Sequence[np.ndarray], longer_than: LongerThan | None = None) -> Packing:
        """Token counts (U,) of each batch's captions."""
        return cls(
            rounded(max(rows_needed(batch) for batch in lengths), ROW_STEP),
            rounded(max(map(len, lengths)), CAPTION_STEP),
            rounded(max(int(batch.max()) for batch in lengths), LENGTH_STEP),
            longer_than,
        )

    def at_least(self, other: Packing) -> Packing:
        """Room for what fits either."""
        longer_than = None
        if self.longer_than is not None and other.longer_than is not None:
            both = zip(self.longer_than, other.longer_than, strict=True)
            longer_than = tuple(max(own, given) for own, given in both)  # for the same numbers of words
        return Packing(
            max(self.rows, other.rows),
            max(self.captions, other.captions),
            max(self.longest, other.longest),
            longer_than,
        )


def most_longer(words: Sequence[np.ndarray], *, spare: bool = False) -> LongerThan:
    """At most how many pairs of a batch have more than so many words: word counts (T,) of each batch's pairs.

    `spare` leaves room for other batches of the same set: as much as such a count commonly varies by.

    >>> most_longer([np.array([3, 7, 7]), np.array([9, 15, 2])])[:3]
    ((6, 2), (8, 2), (10, 1))
    """
    pairs = max(map(len, words))
    bounds = []
    for limit in WORD_STEPS:
        count = max(int((batch > limit).sum()) for batch in words)
        count += math.ceil(math.sqrt(count)) if spare else 0
        bounds.append((limit, min(pairs, rounded(count, max(1, pairs // LONGER_SHARE)))))
    return tuple(bounds)


def rounded(count: int, step: int) -> int:
    """
    >>> rounded(17, 8), rounded(16, 8)
    (24, 16)
    """
    return -(-count // step) * step


def row_starts(lengths: np.ndarray) -> np.ndarray:
    """(U,) the first place of each caption among the rows; longest first, a row is left when the next one
    does not fit.

    >>> row_starts(np.array([100, 20, 60])).tolist()
    [0, 188, 128]
    """
    starts = np.empty(len(lengths), dtype=np.int64)
    place = 0
    for caption in np.argsort(-lengths, kind="stable"):
        length = int(lengths[caption])
        if place % ROW_LENGTH + length > ROW_LENGTH:
            place = rounded(place, ROW_LENGTH)
        starts[caption] = place
        place += length
    return starts


def rows_needed(lengths: np.ndarray) -> int:
    return int((row_starts(lengths) + lengths).max(initial=0) - 1) // ROW_LENGTH + 1


def pack_words(
    ids: Tensor, captions: np.ndarray, lengths: np.ndarray, specials: tuple[int, int], packing: Packing
) -> Words:
    """The captions `captions` (U,), of `lengths` (U,) tokens, out of all `ids` (C, L) on the device.

    `specials` are how many tokens before and after its words each caption has.
    """
    device, size = ids.device, packing.rows * ROW_LENGTH
    starts = row_starts(lengths)
    within = np.concatenate([np.arange(length) for length in lengths])  # (all tokens,)
    number = np.repeat(np.arange(len(lengths)), lengths)  # (all tokens,)
    place = starts[number] + within
    owner, position, source = np.full(size, -1), np.zeros(size, np.int64), np.zeros(size, np.int64)
    owner[place], position[place], source[place] = number, within, captions[number]
    longest = packing.longest - sum(specials)
    first = np.zeros(packing.captions, dtype=np.int64)
    first[: len(starts)] = starts + specials[0]
    words = np.zeros(packing.captions, dtype=np.int64)
    words[: len(starts)] = lengths - sum(specials)
    ahead = np.arange(longest)
    # Beyond a caption's end lies some other caption: the mask says so, and reading spread out places keeps
    # the sum of their (zero) gradients from piling up on one.
    places = (first[:, None] + ahead) % size  # (U, m)
    at = to_device(position, device)
    return Words(
        ids[to_device(source, device), at].long().view(packing.rows, ROW_LENGTH),
        to_device(ahead < words[:, None], device),
        to_device(owner, device).view(packing.rows, ROW_LENGTH),
        at.view(packing.rows, ROW_LENGTH),
        to_device(places, device),
    )
