from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmpguard.kernels.caption_blocks import (
    CaptionRows,
    LongerThan,
    block_starts,
    caption_ends,
    packed_rows,
    padded_rows,
    sorted_rows,
)


def masks(captions: int, longest: int, seed: int) -> Tensor:
    """Ragged, with gaps and captions without words."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(captions, 1, generator=generator)
    return torch.rand(captions, longest, generator=generator) < share


def check_rows(rows: CaptionRows, mask: Tensor, block: int) -> None:
    """Every word has one row, in order, and every caption lies in one block."""
    assert len(rows.source) == len(rows.caption) and len(rows.source) % block == 0
    filled = (rows.caption >= 0).nonzero()[:, 0].tolist()
    seen: dict[int, list[tuple[int, int]]] = {}
    for row in filled:
        seen.setdefault(int(rows.caption[row]), []).append((row, int(rows.source[row])))
    for caption in range(len(mask)):
        expected = [caption * mask.shape[1] + place for place in mask[caption].nonzero()[:, 0].tolist()]
        found = seen.get(caption, [])
        assert [source for _, source in found] == expected
        assert len({row // block for row, _ in found}) <= 1


@settings(max_examples=60, deadline=None)
@given(
    captions=st.integers(1, 30), longest=st.integers(1, 16), more=st.integers(0, 20), seed=st.integers(0, 999)
)
@pytest.mark.parametrize("layout", [packed_rows, padded_rows])
def test_every_word_has_a_row_and_every_caption_a_block(layout, captions, longest, more, seed) -> None:
    mask = masks(captions, longest, seed)
    check_rows(layout(mask, longest + more), mask, longest + more)


def bounds_of(mask: Tensor, limits: list[int]) -> LongerThan:
    """How many captions end after so many words."""
    return tuple((limit, int((caption_ends(mask) > limit).sum())) for limit in limits)


@settings(max_examples=60, deadline=None)
@given(
    captions=st.integers(1, 30),
    longest=st.integers(1, 16),
    more=st.integers(0, 20),
    seed=st.integers(0, 999),
    limits=st.lists(st.integers(0, 20), max_size=5),
    spare=st.integers(0, 3),
)
def test_sorted_captions_fit_their_rows(captions, longest, more, seed, limits, spare) -> None:
    mask = masks(captions, longest, seed)
    bounds = tuple((limit, count + spare) for limit, count in bounds_of(mask, limits))
    rows = sorted_rows(mask, longest + more, bounds)
    check_rows(rows, mask, longest + more)
    assert rows.complete is not None and rows.complete
    assert len(rows.source) <= len(padded_rows(mask, longest + more).source)


def test_more_long_captions_than_promised_are_noticed() -> None:
    mask = torch.arange(12) < torch.tensor([3, 9, 8, 1])[:, None]
    gap = mask.clone()
    gap[0, 11] = True  # few words, but a late one
    for given_mask, bounds, complete in (
        (mask, ((8, 1), (4, 2)), True),
        (mask, ((8, 0),), False),
        (mask, ((4, 1),), False),
        (gap, ((8, 1), (4, 3)), False),
        (gap, ((8, 2), (4, 3)), True),
    ):
        assert bool(sorted_rows(given_mask, 16, bounds).complete) is complete


def test_sorting_leaves_few_rows_empty_and_depends_on_the_bounds_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = (11 + 4 * torch.randn(3, 256, generator=generator)).round().clamp(3, 24)
    batches = torch.arange(24) < lengths[..., None]  # (3, 256, 24)
    limits = [6, 8, 10, 12, 14, 16, 20]
    found = [bounds_of(mask, limits) for mask in batches]
    bounds = tuple((limit, max(own[k][1] for own in found)) for k, limit in enumerate(limits))
    rows = [sorted_rows(mask, 64, bounds) for mask in batches]
    assert len({own.source.shape for own in rows}) == 1
    assert all((own.caption >= 0).float().mean() > 0.8 for own in rows)


def test_rows_of_a_caption_are_contiguous_when_packed() -> None:
    rows = packed_rows(masks(40, 12, 3), 32)
    for caption in rows.caption.unique().tolist():
        if caption >= 0:
            places = (rows.caption == caption).nonzero()[:, 0]
            assert int(places[-1] - places[0]) == len(places) - 1


def test_packing_leaves_few_rows_empty() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = (11 + 4 * torch.randn(5000, generator=generator)).round().clamp(3, 24)
    mask = torch.arange(24) < lengths[:, None]
    packed, padded = packed_rows(mask, 64), padded_rows(mask, 64)
    assert (packed.caption >= 0).float().mean() > 0.98
    assert (padded.caption >= 0).float().mean() < 0.4


def test_gather_and_scatter_are_each_others_inverse_and_ignore_masked_words() -> None:
    mask = masks(9, 7, 1)
    words = torch.randn(9, 7, 5)
    spoiled = words.masked_fill(~mask[..., None], torch.nan)
    for rows in (packed_rows(mask, 16), padded_rows(mask, 16)):
        gathered = rows.gather(spoiled)
        assert gathered.isfinite().all() and not gathered[rows.caption < 0].any()
        back = rows.scatter(gathered, words.shape)
        assert torch.equal(back, words.masked_fill(~mask[..., None], 0.0))


def test_gather_leaves_the_words_alone() -> None:
    words, mask = torch.ones(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool)
    padded_rows(mask, 8).gather(words)
    assert (words == 1).all()


def test_no_words_need_no_blocks() -> None:
    rows = packed_rows(torch.zeros(4, 6, dtype=torch.bool), 16)
    assert len(rows.source) == 0
    starts, blocks = block_starts([3, 0, 0], 8)
    assert len(starts) == 0 and blocks == 0


@given(counts=st.lists(st.integers(0, 40), min_size=2, max_size=12), more=st.integers(0, 30))
def test_starts_are_one_per_caption_and_never_overlap(counts: list[int], more: int) -> None:
    block = len(counts) - 1 + more
    starts, blocks = block_starts(counts, block)
    lengths = [length for length, count in enumerate(counts) for _ in range(count) if length]
    assert len(starts) == len(lengths)
    used = [start + k for start, length in zip(starts.tolist(), lengths, strict=True) for k in range(length)]
    assert len(used) == len(set(used)) and max(used, default=-1) < blocks * block
    assert all(s // block == (s + m - 1) // block for s, m in zip(starts.tolist(), lengths, strict=True))
