from __future__ import annotations

import threading

import pytest
import torch
from helpers.ragged_encodings import awareness, some
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmpguard.kernels.packed_scoring import packed_awareness_scores, packed_gated_cosines
from pmpguard.kernels.pair_scoring import awareness_all_pairs, gated_all_pairs
from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.attention.cross_gated import CrossGatedAttention


@settings(max_examples=30, deadline=None)
@given(
    captions=st.integers(1, 12),
    images=st.integers(1, 40),
    m=st.integers(1, 6),
    n=st.integers(1, 9),
    t=st.sampled_from([-3.0, -0.2, 0.0, 0.15, 0.5, 3.0]),
    seed=st.integers(0, 1000),
)
def test_packed_awareness_equals_the_plain_one(
    captions: int, images: int, m: int, n: int, t: float, seed: int
) -> None:
    texts, pixels = some(captions, m, seed=seed), some(images, n, seed=seed + 1, masked=False)
    exact = awareness_scores(texts.fragments, texts.mask, pixels.fragments, t)
    packed = packed_awareness_scores(texts.fragments, texts.mask, pixels.fragments, t)
    difference = (packed.double() - exact).abs()
    # Where what a word attends to nearly cancels out, its direction is rounding: in float32 the plain way is
    # off by 4e-6 then, the packed one, with lengths from inner products, by 8e-6. Such pairs are rare.
    assert int((difference > 2e-6).sum()) <= max(1, 0.02 * difference.numel())
    assert float(difference.max()) < 5e-5


@settings(max_examples=20, deadline=None)
@given(
    captions=st.integers(1, 12),
    images=st.integers(1, 40),
    m=st.integers(1, 6),
    n=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_packed_gating_equals_the_plain_one(captions: int, images: int, m: int, n: int, seed: int) -> None:
    texts, pixels = some(captions, m, seed=seed), some(images, n, seed=seed + 1, masked=False)
    torch.manual_seed(seed)
    attention = CrossGatedAttention(8)
    packed = packed_gated_cosines(attention, texts.fragments.float(), texts.mask, pixels.fragments.float())
    exact = attention.double()(texts.fragments, texts.mask, pixels.fragments)
    torch.testing.assert_close(packed.double(), exact, atol=2e-6, rtol=0)


def test_many_images_cross_the_seams_of_the_packed_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmpguard.kernels.packed_scoring.MAX_IMAGES_HELD", 10)
    monkeypatch.setattr("pmpguard.kernels.packed_scoring.MAX_BLOCK_WORDS", 6)
    monkeypatch.setattr("pmpguard.kernels.packed_scoring.MAX_BLOCK_COLUMNS", 18)
    monkeypatch.setattr("pmpguard.kernels.packed_scoring.MAX_GATED_BLOCK_WORDS", 5)
    monkeypatch.setattr("pmpguard.kernels.packed_scoring.MAX_GATED_BLOCK_PAIRS", 4)
    monkeypatch.setattr("pmpguard.kernels.packed_scoring.BLOCKS_PER_TASK", 2)
    monkeypatch.setattr("pmpguard.kernels.pair_scoring.MAX_PACKED_CAPTIONS", 4)
    texts, images = some(11, 5, dtype=torch.float32), some(23, 6, seed=1, masked=False, dtype=torch.float32)
    scores = awareness_all_pairs(texts, images, 0.1)
    torch.testing.assert_close(scores, awareness(texts, images), atol=2e-6, rtol=0)
    attention = CrossGatedAttention(8)
    with torch.no_grad():
        expected = attention(texts.fragments, texts.mask, images.fragments)
    torch.testing.assert_close(gated_all_pairs(attention, texts, images), expected, atol=2e-6, rtol=0)


def test_ranks_survive_the_packed_way() -> None:
    """Distinct scores keep their order: no two are closer than the rounding of the packed way."""
    texts, images = (
        some(40, 8, 32, dtype=torch.float32),
        some(30, 9, 32, seed=1, masked=False, dtype=torch.float32),
    )
    packed = awareness_all_pairs(texts, images, 0.1)
    exact = awareness(texts.to(dtype=torch.float64), images.to(dtype=torch.float64))
    agree = (packed.argsort(1) == exact.argsort(1)).float().mean()
    assert agree == 1


def test_packed_scoring_gives_torch_its_threads_back() -> None:
    texts, images = some(6, 5, dtype=torch.float32), some(9, 7, seed=1, masked=False, dtype=torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = awareness_all_pairs(texts, images, 0.1)
        results: list[Tensor] = []
        callers = [
            threading.Thread(target=lambda: results.append(awareness_all_pairs(texts, images, 0.1)))
            for _ in range(4)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert len(results) == 4 and all(torch.equal(result, expected) for result in results)
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError):
            packed_awareness_scores(texts.fragments, texts.mask, images.fragments[..., :5], 0.1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
