from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.errors import ConfigError, ModelError
from pmpguard.models.attention.awareness import (
    aligned_awareness_scores,
    awareness_parts,
    awareness_scores,
)


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=-1)


def some_mask(rows: int, columns: int, seed: int) -> Tensor:
    """Random, with at least one true per row."""
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) > 0.4
    mask[torch.arange(rows), torch.arange(rows) % columns] = True
    return mask


def naive_pair(words: Tensor, regions: Tensor, t: float, sharpness: float = 20.0) -> float:
    """S of one caption and one image, number by number, with the contexts formed."""
    u, v = words.tolist(), regions.tolist()
    if not u or not v:
        return 0.0
    dot = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in v] for x in u]
    leaky = [[s if s > 0 else 0.1 * s for s in row] for row in dot]
    norm = [math.sqrt(sum(row[j] ** 2 for row in leaky)) for j in range(len(v))]
    total = 0.0
    for i, word in enumerate(u):
        best = max(dot[i]) - t
        if best < 0:
            total += best
        passing = [j for j in range(len(v)) if dot[i][j] > t]
        if passing:
            weights = [math.exp(sharpness * (dot[i][j] - t)) for j in passing]
            context = [
                sum(w * v[j][k] for w, j in zip(weights, passing, strict=True)) / sum(weights)
                for k in range(len(word))
            ]
            size = math.sqrt(sum(c * c for c in context)) * math.sqrt(sum(a * a for a in word))
            total += sum(a * c for a, c in zip(word, context, strict=True)) / size
        relevant = [math.exp(sharpness * leaky[i][j] / norm[j]) for j in range(len(v))]
        total += sum(w * s for w, s in zip(relevant, dot[i], strict=True)) / sum(relevant)
    return total / len(u)


@settings(max_examples=40, deadline=None)
@given(
    captions=st.integers(1, 4),
    images=st.integers(1, 4),
    m=st.integers(1, 5),
    n=st.integers(1, 6),
    d=st.integers(2, 6),
    t=st.sampled_from([-1.5, -0.2, 0.0, 0.1, 0.4, 0.9, 1.5]),
    both=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_equals_the_naive_loop(
    captions: int, images: int, m: int, n: int, d: int, t: float, both: bool, seed: int
) -> None:
    words, regions = unit(captions, m, d, seed=seed), unit(images, n, d, seed=seed + 1)
    word_mask, region_mask = some_mask(captions, m, seed), some_mask(images, n, seed + 1)
    scores = awareness_scores(
        words, word_mask, regions, t, region_mask=region_mask, direction="both" if both else "words"
    )
    for i in range(captions):
        for j in range(images):
            u, v = words[i][word_mask[i]], regions[j][region_mask[j]]
            expected = naive_pair(u, v, t)
            if both:
                expected = (expected + naive_pair(v, u, t)) / 2
            assert scores[i, j].item() == pytest.approx(expected, abs=1e-9)


def test_the_diagonal_is_the_aligned_score_and_the_sum_of_its_parts() -> None:
    words, regions = unit(5, 4, 8, seed=1), unit(5, 6, 8, seed=2)
    word_mask, region_mask = some_mask(5, 4, 3), some_mask(5, 6, 4)
    everything = awareness_scores(words, word_mask, regions, 0.1, region_mask=region_mask)
    aligned = aligned_awareness_scores(words, word_mask, regions, 0.1, region_mask=region_mask)
    torch.testing.assert_close(aligned, everything.diagonal())
    parts = awareness_parts(words, word_mask, regions, 0.1, region_mask=region_mask)
    torch.testing.assert_close(parts.score, aligned)
    per_word = parts.feature + parts.relevance + parts.negative
    torch.testing.assert_close(per_word.sum(1) / word_mask.sum(1), aligned)
    assert (parts.negative <= 0).all()
    assert not per_word[~word_mask].any()
    torch.testing.assert_close(parts.relevance_weights.sum(-1), word_mask.double())
    anything_passes = ((parts.cosines > 0.1) & region_mask[:, None]).any(-1)
    torch.testing.assert_close(parts.feature_weights.sum(-1), anything_passes.double())
    contexts = torch.einsum("pmn,pnd->pmd", parts.feature_weights, regions)
    torch.testing.assert_close(torch.cosine_similarity(words, contexts, dim=-1), parts.feature)


def test_padding_has_no_influence_even_when_it_is_nan() -> None:
    words, regions = unit(3, 4, 8, seed=1), unit(2, 5, 8, seed=2)
    word_mask = torch.ones(3, 4, dtype=torch.bool)
    plain = awareness_scores(words, word_mask, regions, 0.1, direction="both")
    padded_words = torch.cat([words, torch.full((3, 2, 8), torch.nan)], 1).requires_grad_()
    padded_regions = torch.cat([regions, torch.full((2, 3, 8), torch.nan)], 1).requires_grad_()
    region_mask = torch.arange(8).expand(2, 8) < 5
    scores = awareness_scores(
        padded_words,
        torch.arange(6).expand(3, 6) < 4,
        padded_regions,
        0.1,
        region_mask=region_mask,
        direction="both",
    )
    torch.testing.assert_close(scores, plain)
    scores.sum().backward()
    assert padded_words.grad is not None and padded_words.grad.isfinite().all()
    assert padded_regions.grad is not None and padded_regions.grad.isfinite().all()
    assert not padded_words.grad[:, 4:].any() and not padded_regions.grad[:, 5:].any()


def test_a_pair_scores_alone_as_in_a_batch_and_order_does_not_matter() -> None:
    words, regions, mask = unit(4, 5, 8, seed=1), unit(3, 6, 8, seed=2), some_mask(4, 5, 3)
    scores = awareness_scores(words, mask, regions, 0.1)
    for i in range(4):
        for j in range(3):
            alone = awareness_scores(words[i : i + 1], mask[i : i + 1], regions[j : j + 1], 0.1)
            torch.testing.assert_close(alone[0, 0], scores[i, j])
    captions, images = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 2, 0])
    places, areas = torch.tensor([4, 2, 0, 1, 3]), torch.tensor([5, 3, 1, 0, 2, 4])
    shuffled = awareness_scores(
        words[captions][:, places], mask[captions][:, places], regions[images][:, areas], 0.1
    )
    torch.testing.assert_close(shuffled, scores[captions][:, images])


@pytest.mark.parametrize("direction", ["words", "both"])
@pytest.mark.parametrize("boundary", [-2.0, 0.1, 2.0])
def test_nothing_to_look_at_scores_zero_without_nan(direction: str, boundary: float) -> None:
    words, regions = unit(2, 3, 4, seed=1).requires_grad_(), unit(2, 5, 4, seed=2).requires_grad_()
    word_mask = torch.tensor([[True, True, False], [False, False, False]])
    region_mask = torch.tensor([[True] * 5, [False] * 5])
    scores = awareness_scores(
        words,
        word_mask,
        regions,
        boundary,
        region_mask=region_mask,
        direction=direction,  # type: ignore[arg-type]
    )
    assert scores[0, 0] != 0
    assert scores[0, 1] == scores[1, 0] == scores[1, 1] == 0
    scores.sum().backward()
    assert words.grad is not None and words.grad.isfinite().all() and words.grad[0, :2].any()
    assert regions.grad is not None and regions.grad.isfinite().all()
    parts = awareness_parts(words, word_mask, regions, boundary, region_mask=region_mask)
    assert all(value.isfinite().all() for value in vars(parts).values())


def test_when_nothing_passes_only_the_feature_part_is_missing() -> None:
    words, regions = unit(1, 3, 4, seed=1).requires_grad_(), unit(1, 5, 4, seed=2)
    mask = torch.ones(1, 3, dtype=torch.bool)
    parts = awareness_parts(words, mask, regions, 1.5)
    assert not parts.feature.any() and not parts.feature_weights.any()
    assert (parts.negative < -0.5).all() and parts.relevance.any()
    parts.score.sum().backward()
    assert words.grad is not None and words.grad.isfinite().all() and words.grad.any()


def test_regions_that_cancel_have_no_direction() -> None:
    """Opposite regions at right angles to the word, both above a negative boundary: the context is 0."""
    words = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    regions = torch.tensor([[[0.0, 1.0], [0.0, -1.0]]], dtype=torch.float64)
    parts = awareness_parts(words, torch.ones(1, 1, dtype=torch.bool), regions, -0.5)
    assert parts.feature.item() == 0
    parts.score.sum().backward()
    assert words.grad is not None and words.grad.isfinite().all()


@pytest.mark.parametrize("direction", ["words", "both"])
def test_gradients(direction: str) -> None:
    words, regions = unit(2, 3, 4, seed=5).requires_grad_(), unit(2, 4, 4, seed=6).requires_grad_()
    word_mask, region_mask = some_mask(2, 3, 7), some_mask(2, 4, 8)

    def score(u: Tensor, v: Tensor) -> Tensor:
        return awareness_scores(
            u,
            word_mask,
            v,
            0.13,
            region_mask=region_mask,
            direction=direction,  # type: ignore[arg-type]
        )

    assert torch.autograd.gradcheck(score, (words, regions))


def test_the_boundary_may_be_a_tensor() -> None:
    words, regions, mask = unit(2, 3, 4, seed=1), unit(2, 5, 4, seed=2), some_mask(2, 3, 3)
    as_float = awareness_scores(words.float(), mask, regions.float(), 0.2)
    as_tensor = awareness_scores(words.float(), mask, regions.float(), torch.tensor(0.2, dtype=torch.float64))
    assert as_tensor.dtype == torch.float32
    torch.testing.assert_close(as_tensor, as_float)


def test_half_precision_is_summed_in_float32() -> None:
    words, regions, mask = unit(3, 6, 64, seed=1), unit(3, 49, 64, seed=2), some_mask(3, 6, 3)
    exact = awareness_scores(words, mask, regions, 0.1)
    half = awareness_scores(words.bfloat16(), mask, regions.bfloat16(), 0.1)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), exact, atol=0.03, rtol=0)


def test_wrong_shapes_and_directions_are_refused() -> None:
    words, regions, mask = unit(2, 3, 4), unit(3, 5, 4), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ModelError, match=r"regions \[3, 5, 3\]"):
        awareness_scores(words, mask, regions[..., :3], 0.1)
    with pytest.raises(ModelError, match="shapes do not agree"):
        awareness_scores(words, mask[:, :2], regions, 0.1)
    with pytest.raises(ModelError, match="as many captions as images"):
        aligned_awareness_scores(words, mask, regions, 0.1)
    with pytest.raises(ConfigError, match="direction"):
        awareness_scores(words, mask, regions, 0.1, direction="regions")  # type: ignore[arg-type]
