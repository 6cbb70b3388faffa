from __future__ import annotations

import pytest
import torch
from helpers.ragged_encodings import awareness, some
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import pmpguard.kernels
from pmpguard.errors import ConfigError
from pmpguard.kernels.pair_scoring import (
    all_pairs,
    all_pairs_with_gradient,
    awareness_all_pairs,
    chunk_sizes,
    gated_all_pairs,
    gated_awareness_scores,
    trimmed,
)
from pmpguard.models.attention.awareness import Direction, awareness_scores
from pmpguard.models.attention.cross_gated import CrossGatedAttention
from pmpguard.models.encoded import Encoded


@settings(max_examples=30, deadline=None)
@given(
    captions=st.integers(1, 9),
    images=st.integers(1, 7),
    text_chunk=st.integers(1, 10),
    image_chunk=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_chunks_do_not_change_the_scores(
    captions: int, images: int, text_chunk: int, image_chunk: int, seed: int
) -> None:
    texts, pixels = some(captions, 5, seed=seed), some(images, 6, seed=seed + 1)
    expected = awareness(texts, pixels)
    chunks = {"text_chunk": text_chunk, "image_chunk": image_chunk}
    scores = all_pairs(awareness, texts, pixels, dtype=torch.float64, **chunks)
    torch.testing.assert_close(scores, expected, atol=1e-12, rtol=0)
    scores = all_pairs_with_gradient(awareness, texts, pixels, **chunks)
    torch.testing.assert_close(scores, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("budget", [1, 10_000, 1 << 28])
def test_budgets_do_not_change_the_scores(budget: int) -> None:
    texts, images = some(9, 5), some(7, 6, seed=1)
    torch.testing.assert_close(
        awareness_all_pairs(texts, images, 0.1, budget_bytes=budget), awareness(texts, images)
    )


def test_chunks_stay_within_the_budget() -> None:
    for pairs in (0, 1, 7, 100, 5000):
        for given_text, given_image in ((None, None), (3, None), (None, 3)):
            rows, columns = chunk_sizes(1000, 50, given_text, given_image, pairs)
            assert 1 <= rows <= 1000 and 1 <= columns <= 50
            assert rows * columns <= max(pairs, rows if given_text else 1, columns if given_image else 1)


def test_the_largest_block_is_as_large_as_asked() -> None:
    seen: list[tuple[int, int]] = []

    def spy(texts: Encoded, images: Encoded) -> Tensor:
        seen.append((len(texts), len(images)))
        return torch.zeros(len(texts), len(images))

    all_pairs(spy, some(10, 4), some(9, 4), budget_bytes=4 * 12, floats_per_pair=1)
    assert max(rows * columns for rows, columns in seen) <= 12
    assert sum(rows * columns for rows, columns in seen) == 90


def test_recomputed_gradients_equal_plain_ones() -> None:
    texts, images = some(5, 4), some(4, 6, seed=1)
    attention = CrossGatedAttention(8).double()
    gradients = []
    for chunked in (False, True):
        words, regions = texts.fragments.clone().requires_grad_(), images.fragments.clone().requires_grad_()
        attention.zero_grad()

        def score(some_texts: Encoded, some_images: Encoded) -> Tensor:
            return gated_awareness_scores(attention, some_texts, some_images, 0.1)

        inputs = Encoded(texts.pooled, words, texts.mask), Encoded(images.pooled, regions, images.mask)
        scores = (
            all_pairs_with_gradient(score, *inputs, text_chunk=2, image_chunk=3)
            if chunked
            else score(*inputs)
        )
        (scores * torch.arange(20.0).view(5, 4)).sum().backward()
        gradients.append([words.grad, regions.grad, *(p.grad for p in attention.parameters())])
    for plain, recomputed in zip(*gradients, strict=True):
        assert plain is not None and plain.any()
        torch.testing.assert_close(recomputed, plain)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_fastest_way_agrees_with_the_plain_one(masked: bool, dtype: torch.dtype) -> None:
    texts, images = some(6, 5, dtype=dtype), some(9, 7, seed=1, masked=masked, dtype=dtype)
    wide = texts.to(dtype=torch.float64), images.to(dtype=torch.float64)
    directions: tuple[Direction, ...] = ("words", "both")
    for direction in directions:
        scores = awareness_all_pairs(texts, images, torch.tensor(0.1), direction=direction)
        expected = awareness_scores(
            wide[0].fragments,
            wide[0].mask,
            wide[1].fragments,
            0.1,
            region_mask=wide[1].mask,
            direction=direction,
        )
        torch.testing.assert_close(scores.double(), expected, atol=2e-6, rtol=0)
    attention = CrossGatedAttention(8).to(torch.float64 if dtype == torch.float64 else torch.float32)
    cosines = gated_all_pairs(attention, texts, images)
    attention.double()
    with torch.no_grad():
        expected = attention(wide[0].fragments, wide[0].mask, wide[1].fragments, wide[1].mask)
    torch.testing.assert_close(cosines.double(), expected, atol=2e-6, rtol=0)


def test_the_public_name_is_the_definition_to_rounding() -> None:
    """In float32, captions of many lengths, against float64."""
    texts, images = some(40, 12, 32, dtype=torch.float32), some(30, 49, 32, 1, False, torch.float32)
    scores = pmpguard.kernels.awareness_all_pairs(texts, images, 0.1)
    exact = awareness_scores(texts.fragments.double(), texts.mask, images.fragments.double(), 0.1)
    assert scores.shape == (40, 30) and scores.dtype == torch.float32
    assert (scores - exact).abs().max() < 1e-4


def test_no_captions_or_images() -> None:
    texts, images = some(3, 4, dtype=torch.float32), some(2, 5, seed=1, masked=False, dtype=torch.float32)
    assert awareness_all_pairs(texts[:0], images, 0.1).shape == (0, 2)
    assert awareness_all_pairs(texts, images[:0], 0.1).shape == (3, 0)
    attention = CrossGatedAttention(8)
    assert gated_all_pairs(attention, texts[:0], images).shape == (0, 2)
    assert gated_all_pairs(attention, texts, images[:0]).shape == (3, 0)
    assert all_pairs(awareness, texts[:0], images).shape == (0, 2)


def test_gated_awareness_equals_pair_by_pair() -> None:
    texts, images = some(4, 5), some(3, 6, seed=1)
    attention = CrossGatedAttention(8).double()
    scores = gated_awareness_scores(attention, texts, images, 0.1)
    for i in range(4):
        for j in range(3):
            gated = attention.gate(
                texts.fragments[i : i + 1],
                texts.mask[i : i + 1],
                images.fragments[j : j + 1],
                images.mask[j : j + 1],
            )
            words = normalize(gated.words[0, 0][texts.mask[i]], dim=-1)
            regions = normalize(gated.regions[0, 0][images.mask[j]], dim=-1)
            alone = awareness_scores(
                words[None], torch.ones(1, len(words), dtype=torch.bool), regions[None], 0.1
            )
            torch.testing.assert_close(scores[i, j], alone[0, 0])


def test_trimming_keeps_every_real_fragment() -> None:
    items = some(3, 5)
    items = Encoded(
        items.pooled,
        items.fragments,
        torch.tensor([[0, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]).bool(),
    )
    assert trimmed(items).mask.tolist() == items.mask[:, :3].tolist()
    assert trimmed(items[2:]).fragments.shape == (1, 1, 8)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="text_chunk is 0"):
        all_pairs(awareness, some(2, 3), some(2, 3), text_chunk=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_agrees_with_the_cpu(dtype: torch.dtype) -> None:
    texts, images = some(20, 6, 32), some(15, 9, 32, seed=1)
    attention = CrossGatedAttention(32)
    on_gpu = texts.to("cuda", dtype), images.to("cuda", dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    with torch.no_grad():
        expected = attention.double()(texts.fragments, texts.mask, images.fragments, images.mask)
    cosines = gated_all_pairs(attention.to("cuda", torch.float32), *on_gpu)
    torch.testing.assert_close(cosines.cpu().double(), expected, atol=tolerance, rtol=0)
    # Without half precision's rounding at the boundary itself: one far below every cosine.
    scores = awareness_all_pairs(*on_gpu, torch.tensor(-1.5, device="cuda"))
    expected = awareness_scores(texts.fragments, texts.mask, images.fragments, -1.5, region_mask=images.mask)
    torch.testing.assert_close(scores.cpu().double(), expected, atol=tolerance, rtol=0)
