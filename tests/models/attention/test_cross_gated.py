from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.models.attention.cross_gated import ALIGNED, CrossGatedAttention, masked_softmax


def unit(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(drawn, dim=-1)


def some_mask(rows: int, columns: int, seed: int) -> Tensor:
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) > 0.4
    mask[torch.arange(rows), torch.arange(rows) % columns] = True
    return mask


def trained(dim: int, seed: int = 0) -> CrossGatedAttention:
    """Weights away from where they start, so that no part is the identity by accident."""
    torch.manual_seed(seed)
    attention = CrossGatedAttention(dim).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return attention


def naive_gated(attention: CrossGatedAttention, words: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
    """û and v̂ of one pair, fragment by fragment, gates on concatenated vectors as printed."""
    m, n = len(words), len(regions)
    a = [[(words[i] @ attention.attention @ regions[j]).item() for j in range(n)] for i in range(m)]
    gated_words, gated_regions = [], []
    for i in range(m):
        weights = [math.exp(a[i][j]) for j in range(n)]
        context = sum(w / sum(weights) * regions[j] for j, w in enumerate(weights))
        gate = torch.sigmoid(attention.word_gate(torch.cat([words[i], context])))
        gated_words.append(gate * words[i] + (1 - gate) * context)
    for j in range(n):
        weights = [math.exp(a[i][j]) for i in range(m)]
        context = sum(w / sum(weights) * words[i] for i, w in enumerate(weights))
        gate = torch.sigmoid(attention.region_gate(torch.cat([regions[j], context])))
        gated_regions.append(gate * regions[j] + (1 - gate) * context)
    return torch.stack(gated_words), torch.stack(gated_regions)


@settings(max_examples=25, deadline=None)
@given(
    captions=st.integers(1, 3),
    images=st.integers(1, 3),
    m=st.integers(1, 4),
    n=st.integers(1, 5),
    d=st.integers(2, 6),
    seed=st.integers(0, 10_000),
)
def test_equals_the_naive_loop(captions: int, images: int, m: int, n: int, d: int, seed: int) -> None:
    attention = trained(d, seed)
    words, regions = unit(captions, m, d, seed=seed), unit(images, n, d, seed=seed + 1)
    word_mask, region_mask = some_mask(captions, m, seed), some_mask(images, n, seed + 1)
    with torch.no_grad():
        cosines = attention(words, word_mask, regions, region_mask)
        gated = attention.gate(words, word_mask, regions, region_mask)
        for i in range(captions):
            for j in range(images):
                u, v = naive_gated(attention, words[i][word_mask[i]], regions[j][region_mask[j]])
                expected = torch.cosine_similarity(u.mean(0), v.mean(0), dim=0)
                torch.testing.assert_close(cosines[i, j], expected, atol=1e-10, rtol=0)
                torch.testing.assert_close(gated.words[i, j][word_mask[i]], u, atol=1e-10, rtol=0)
                torch.testing.assert_close(gated.regions[i, j][region_mask[j]], v, atol=1e-10, rtol=0)


def test_aligned_is_the_diagonal() -> None:
    attention = trained(6)
    words, regions = unit(4, 3, 6, seed=1), unit(4, 5, 6, seed=2)
    word_mask, region_mask = some_mask(4, 3, 3), some_mask(4, 5, 4)
    pairs = attention.gate(words, word_mask, regions, region_mask)
    own = attention.gate(words, word_mask, regions, region_mask, ALIGNED)
    rows = torch.arange(4)
    torch.testing.assert_close(own.words, pairs.words[rows, rows])
    torch.testing.assert_close(own.regions, pairs.regions[rows, rows])


def test_padding_has_no_influence_even_when_it_is_nan() -> None:
    attention = trained(8)
    words, regions = unit(3, 4, 8, seed=1), unit(2, 5, 8, seed=2)
    plain = attention(words, torch.ones(3, 4, dtype=torch.bool), regions)
    padded_words = torch.cat([words, torch.full((3, 2, 8), torch.nan)], 1).requires_grad_()
    padded_regions = torch.cat([regions, torch.full((2, 3, 8), torch.nan)], 1).requires_grad_()
    cosines = attention(
        padded_words, torch.arange(6).expand(3, 6) < 4, padded_regions, torch.arange(8).expand(2, 8) < 5
    )
    torch.testing.assert_close(cosines, plain)
    cosines.sum().backward()
    assert padded_words.grad is not None and padded_words.grad.isfinite().all()
    assert padded_regions.grad is not None and padded_regions.grad.isfinite().all()


def test_a_pair_scores_alone_as_in_a_batch_and_order_does_not_matter() -> None:
    attention = trained(8)
    words, regions, mask = unit(4, 5, 8, seed=1), unit(3, 6, 8, seed=2), some_mask(4, 5, 3)
    cosines = attention(words, mask, regions)
    for i in range(4):
        for j in range(3):
            alone = attention(words[i : i + 1], mask[i : i + 1], regions[j : j + 1])
            torch.testing.assert_close(alone[0, 0], cosines[i, j])
    captions, images = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 2, 0])
    places, areas = torch.tensor([4, 2, 0, 1, 3]), torch.tensor([5, 3, 1, 0, 2, 4])
    shuffled = attention(words[captions][:, places], mask[captions][:, places], regions[images][:, areas])
    torch.testing.assert_close(shuffled, cosines[captions][:, images])


def test_nothing_to_look_at_gives_zero_without_nan() -> None:
    attention = trained(4)
    words, regions = unit(2, 3, 4, seed=1).requires_grad_(), unit(2, 5, 4, seed=2).requires_grad_()
    word_mask = torch.tensor([[True, True, False], [False, False, False]])
    region_mask = torch.tensor([[True] * 5, [False] * 5])
    cosines = attention(words, word_mask, regions, region_mask)
    assert cosines[0, 0] != 0
    assert cosines[0, 1] == cosines[1, 0] == cosines[1, 1] == 0
    cosines.sum().backward()
    assert words.grad is not None and words.grad.isfinite().all()
    assert regions.grad is not None and regions.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attention.parameters())


def test_gradients() -> None:
    attention = trained(4)
    words, regions = unit(2, 3, 4, seed=5).requires_grad_(), unit(2, 4, 4, seed=6).requires_grad_()
    word_mask, region_mask = some_mask(2, 3, 7), some_mask(2, 4, 8)

    def score(u: Tensor, v: Tensor, *weights: Tensor) -> Tensor:
        names = [name for name, _ in attention.named_parameters()]
        return torch.func.functional_call(
            attention, dict(zip(names, weights, strict=True)), (u, word_mask, v, region_mask)
        )

    assert torch.autograd.gradcheck(score, (words, regions, *attention.parameters()))


@pytest.mark.parametrize(("scale", "bias", "leak"), [(1.0, 0.0, 0.95), (10.0, 2.0, 0.2)])
def test_independent_modalities_retrieve_at_chance(scale: float, bias: float, leak: float) -> None:
    """Untrained weights cannot match random captions and images, unless each side has seen the other."""
    count, attention = 200, CrossGatedAttention(64, scale, bias)
    words, regions = unit(count, 6, 64, seed=1).float(), unit(count, 9, 64, seed=2).float()
    mask = torch.ones(count, 6, dtype=torch.bool)
    own = torch.arange(count)
    with torch.no_grad():
        cosines = torch.cat(
            [attention(words[i : i + 20], mask[i : i + 20], regions) for i in range(0, count, 20)]
        )
        # At chance, hits are binomial with mean 1 and deviation 1: more than 6 have probability 1e-4.
        assert (cosines.argmax(1) == own).sum() <= 6
        assert (cosines.argmax(0) == own).sum() <= 6
        # The misuse: gate labelled pairs only, then compare every pooled caption with every pooled image.
        gated = attention.gate(words, mask, regions, axes=ALIGNED)
        leaked = normalize(gated.words.mean(1), dim=-1) @ normalize(gated.regions.mean(1), dim=-1).T
        assert (leaked.argmax(1) == own).float().mean() > leak


def test_starting_weights_and_the_printed_ones() -> None:
    ours, printed = CrossGatedAttention(5), CrossGatedAttention(5, attention_scale=1.0, gate_bias=0.0)
    assert torch.equal(ours.attention, 10 * torch.eye(5)) and torch.equal(printed.attention, torch.eye(5))
    assert (ours.word_gate.bias == 2).all() and (ours.region_gate.bias == 2).all()
    assert not printed.word_gate.bias.any() and not printed.region_gate.bias.any()


def test_open_gates_keep_matched_and_mismatched_apart() -> None:
    """With the printed start both sides become one mixture: even mismatched pairs have cosines near 1."""
    words, regions, mask = (
        unit(8, 10, 64, seed=1),
        unit(8, 49, 64, seed=2),
        torch.ones(8, 10, dtype=torch.bool),
    )
    torch.manual_seed(0)
    ours = CrossGatedAttention(64).double()
    printed = CrossGatedAttention(64, attention_scale=1.0, gate_bias=0.0).double()
    with torch.no_grad():
        assert printed(words, mask, regions).min() > 0.9
        assert ours(words, mask, regions).max() < 0.8


def test_half_precision() -> None:
    attention = CrossGatedAttention(32)
    words, regions, mask = unit(3, 5, 32, seed=1), unit(3, 9, 32, seed=2), some_mask(3, 5, 3)
    with torch.no_grad():
        exact = attention(words.float(), mask, regions.float())
        half = attention(words.bfloat16(), mask, regions.bfloat16())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, atol=0.03, rtol=0)


@pytest.mark.parametrize("dim", [0, 1])
def test_masked_softmax(dim: int) -> None:
    logits, mask = torch.randn(3, 4, dtype=torch.float64), some_mask(3, 4, 1)
    mask[0] = False
    mask[:, 1] = False
    weights = masked_softmax(logits, mask, dim)
    assert not weights[~mask].any()
    torch.testing.assert_close(weights.sum(dim), mask.any(dim).double())
    kept = logits.exp() * mask
    expected = kept / kept.sum(dim, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(weights, expected)
