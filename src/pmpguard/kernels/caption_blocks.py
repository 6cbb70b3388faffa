"""Captions laid out in blocks of rows for kernels that take one block at a time.

A block is a fixed number of rows, one word each; no caption straddles two blocks. `packed_rows` fills the
blocks almost completely, but has to see the lengths, which makes the host wait for the device. `padded_rows`
gives every caption as many rows as the longest one has: nothing depends on the data, so it can be captured in
a CUDA graph. So can `sorted_rows`, which is told how many long captions there are at most: it sorts captions
on the device and gives the shorter ones fewer rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# (words, captions): at most so many captions of a batch have more words. Those after the first so many
# captions, longest first, then have at most so many words.
LongerThan = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CaptionRows:
    """Which word of which caption lies in each of R rows, a whole number of blocks."""

    source: Tensor  # (R,) int64, place among the T * m words; 0 in empty rows
    caption: Tensor  # (R,) int32, -1 in empty rows
    complete: Tensor | None = None  # () bool: whether every word found a row; None where it always does

    def gather(self, words: Tensor) -> Tensor:
        """(T, m, d) -> (R, d), zeros in empty rows whatever the masked words hold."""
        rows = words.flatten(0, 1)[self.source]  # (R, d)
        return rows.masked_fill_(self.caption[:, None] < 0, 0.0)

    def scatter(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """(R, d) -> (T, m, d), zeros for words in no row. No word has two rows, so nothing is summed."""
        captions, longest, dim = shape
        spare = captions * longest  # where empty rows go
        place = torch.where(self.caption >= 0, self.source, spare)  # (R,)
        words = rows.new_zeros(spare + 1, dim)
        words[place] = rows
        return words[:spare].view(captions, longest, dim)


def padded_rows(word_mask: Tensor, block: int) -> CaptionRows:
    """As many captions per block as fit when all are as long as the longest could be: word_mask (T, m)."""
    captions, longest = word_mask.shape
    per_block = block // longest
    rows = -(-captions // per_block) * block  # R
    row = torch.arange(rows, device=word_mask.device)  # (R,)
    within = row % block
    caption = row // block * per_block + within // longest
    inside = (within < per_block * longest) & (caption < captions)
    source = torch.where(inside, caption * longest + within % longest, 0)
    filled = inside & word_mask.flatten()[source]
    return CaptionRows(source, torch.where(filled, caption, -1).int())


def sorted_rows(word_mask: Tensor, block: int, longer_than: LongerThan) -> CaptionRows:
    """Longest captions first, each with as many rows as it may need: word_mask (T, m).

    Where the tables of a new layout would have to be copied to the device while a graph is captured, captions
    are padded.
    """
    captions, longest = word_mask.shape
    key = word_mask.shape, block, longer_than, word_mask.device
    if key not in _TABLES:
        if word_mask.is_cuda and torch.cuda.is_current_stream_capturing():
            return padded_rows(word_mask, block)
        tables = sorted_places(captions, longest, block, longer_than)
        _TABLES[key] = tuple(torch.from_numpy(table).to(word_mask.device) for table in tables)
    rank, within, room = _TABLES[key]
    ends, order = caption_ends(word_mask).sort(descending=True, stable=True)  # (T,), (T,)
    caption = order[rank]  # (R,), any in empty rows
    source = caption * longest + within.clamp(min=0)
    filled = (within >= 0) & word_mask.flatten()[source]
    source = torch.where(filled, source, 0)
    return CaptionRows(source, torch.where(filled, caption, -1).int(), (ends <= room).all())


# Kept for good, a few kilobytes each: captured graphs read them.
_TABLES: dict[tuple[object, ...], tuple[Tensor, ...]] = {}


def caption_ends(word_mask: Tensor) -> Tensor:
    """How many places each caption takes up to its last word: (T, m) -> (T,), 0 without words."""
    places = torch.arange(1, word_mask.shape[1] + 1, device=word_mask.device)
    return (word_mask * places).amax(1)


def sorted_places(
    captions: int, longest: int, block: int, longer_than: LongerThan
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which caption by rank (R,) and which of its places (R,) each row has, and the rows of each rank (T,).

    Place -1 marks empty rows.

    >>> sorted_places(3, 3, 4, ((1, 1),))  # one caption of up to 3 words, two of one
    (array([0, 0, 0, 2, 1, 0, 0, 0]), array([ 0,  1,  2,  0,  0, -1, -1, -1]), array([3, 1, 1]))
    """
    room = np.full(captions, longest)
    for words, count in longer_than:
        room[count:] = np.minimum(room[count:], words)
    starts, blocks = block_starts(np.bincount(room, minlength=longest + 1).tolist(), block)
    own = np.repeat(np.arange(captions), room)  # (all rows that may be filled,)
    ahead = np.arange(len(own)) - np.repeat(room.cumsum() - room, room)
    row = np.repeat(starts[::-1], room[: len(starts)]) + ahead  # starts come shortest first
    rank, within = np.zeros(blocks * block, dtype=np.int64), np.full(blocks * block, -1)
    rank[row], within[row] = own, ahead
    return rank, within, room


def packed_rows(word_mask: Tensor, block: int) -> CaptionRows:
    """Captions of different lengths share blocks, so that few rows stay empty: word_mask (T, m)."""
    captions, longest = word_mask.shape
    device = word_mask.device
    lengths = word_mask.sum(1)  # (T,)
    counts = torch.bincount(lengths, minlength=longest + 1).tolist()
    starts, blocks = block_starts(counts, block)
    order = lengths.argsort(stable=True)[counts[0] :]  # captions with words, short ones first
    start = torch.zeros(captions, dtype=torch.long, device=device)
    start[order] = torch.from_numpy(starts).to(device)

    word = torch.nonzero(word_mask.flatten())[:, 0]  # (W,) caption by caption
    caption = word // longest  # (W,)
    first = lengths.cumsum(0) - lengths  # (T,) of a caption's words among the W
    row = start[caption] + torch.arange(len(word), device=device) - first[caption]  # (W,)
    source = torch.zeros(blocks * block, dtype=torch.long, device=device)
    source[row] = word
    owner = torch.full((blocks * block,), -1, dtype=torch.int32, device=device)
    owner[row] = caption.int()
    return CaptionRows(source, owner)


def block_starts(counts: list[int], block: int) -> tuple[np.ndarray, int]:
    """The first row of every caption, by length, and the number of blocks: counts[m] captions have m words.

    Each block takes the longest captions left that still fit. As long as enough are left, the next blocks are
    filled in the same way, so that the work depends on the number of lengths, not of captions.

    >>> block_starts([1, 0, 2, 1], 4)  # two captions of 2 words, one of 3, one of none
    (array([4, 6, 0]), 2)
    """
    left = list(counts)
    left[0] = 0
    starts: list[list[np.ndarray]] = [[] for _ in left]
    blocks = 0
    while any(left):
        room, taken = block, {}
        for length in range(min(len(left) - 1, block), 0, -1):
            number = min(room // length, left[length])
            if number:
                taken[length] = number
                room -= number * length
        times = min(left[length] // number for length, number in taken.items())
        first = np.arange(blocks, blocks + times)[:, None] * block  # of each block filled this way
        for length, number in taken.items():
            starts[length].append((first + length * np.arange(number)).ravel())
            first = first + length * number
            left[length] -= times * number
        blocks += times
    parts = [part for per_length in starts for part in per_length]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64), blocks
