"""The fused cosines of cross-gated attention against the module in float64.

Tests of the kernels run on CUDA, or anywhere with Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.kernel_marks import DEVICE, captured, needs_cuda, needs_kernels
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.kernels.caption_blocks import LongerThan
from pmpguard.kernels.cross_gated import fused as cross_gated_fused
from pmpguard.kernels.cross_gated.fused import gated_cosines_fused, parts_by_width
from pmpguard.models.attention.cross_gated import CrossGatedAttention


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers that bfloat16 holds, so that no rounding of the inputs hides an error of the kernel."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(drawn, dim=-1).bfloat16().to(DEVICE, dtype)


def some_mask(rows: int, columns: int, seed: int) -> Tensor:
    """Random, with gaps; the first row is empty where there is more than one."""
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) > 0.3
    mask[:, 0] = True
    if rows > 1:
        mask[0] = False
    return mask.to(DEVICE)


def trained(dim: int) -> CrossGatedAttention:
    torch.manual_seed(0)
    attention = CrossGatedAttention(dim)
    with torch.no_grad():
        for weight in attention.parameters():
            weight.add_(torch.randn_like(weight) / (dim**0.5 if weight.ndim > 1 else 2))
    return attention.to(DEVICE)


def compare(
    attention: CrossGatedAttention,
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    region_mask: Tensor | None = None,
) -> None:
    """Cosines with and without gradient, and the gradients of vectors and weights."""
    own = [words.clone().requires_grad_(), regions.clone().requires_grad_()]
    exact = [words.double().requires_grad_(), regions.double().requires_grad_()]
    reference = copy.deepcopy(attention).double()
    fused = gated_cosines_fused(attention, own[0], word_mask, own[1], region_mask)
    expected = reference(exact[0], word_mask, exact[1], region_mask)
    assert "GatedCosines" in type(fused.grad_fn).__name__ and fused.dtype == torch.float32
    torch.testing.assert_close(fused.double(), expected, atol=4e-5, rtol=0)
    with torch.no_grad():
        alone = gated_cosines_fused(attention, words, word_mask, regions, region_mask)
    torch.testing.assert_close(alone.double(), expected.detach(), atol=4e-5, rtol=0)
    # Of the size of a mean over a large batch: float16 alone would lose such gradients.
    incoming = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 1e-6
    found = torch.autograd.grad(fused, [*own, *attention.parameters()], incoming)
    wanted = torch.autograd.grad(expected, [*exact, *reference.parameters()], incoming.double())
    tolerance = 2e-3 if words.dtype == torch.float32 else 6e-3
    for gradient, right in zip(found, wanted, strict=True):
        assert gradient.isfinite().all()
        assert (gradient.double() - right).norm() < tolerance * right.norm() + 1e-15


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(
    ("captions", "m", "images", "n", "d"),
    [(3, 5, 2, 9, 20), (1, 1, 1, 1, 3), (5, 18, 1, 20, 64), (2, 3, 2, 49, 70), (1, 40, 2, 5, 16)],
)
def test_equals_the_module(captions: int, m: int, images: int, n: int, d: int) -> None:
    words, regions = unit(captions, m, d, seed=1), unit(images, n, d, seed=2)
    everything = torch.ones(captions, m, dtype=torch.bool, device=DEVICE)
    if captions > 1:
        compare(trained(d), words, some_mask(captions, m, 5), regions, some_mask(images, n, 6))
    else:
        compare(trained(d), words, everything, regions)


@pytest.mark.gpu
@needs_kernels
def test_gradients_cross_the_seams_between_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_gated_fused, "MAX_GRADIENT_BYTES", 2 * 6 * 4 * 16 * 16)
    monkeypatch.setattr(cross_gated_fused, "GROUP", 2)
    everything = torch.ones(4, 3, dtype=torch.bool, device=DEVICE)
    compare(trained(16), unit(4, 3, 16, seed=1), everything, unit(5, 6, 16, seed=2))


@pytest.mark.gpu
@needs_kernels
def test_gradients_of_any_size_keep_their_accuracy() -> None:
    """From less than float16 can hold to more, and none at all."""
    attention, mask = trained(16), some_mask(3, 5, 1)
    inputs = [unit(3, 5, 16, seed=1).requires_grad_(), unit(2, 6, 16, seed=2).requires_grad_()]
    inputs += list(attention.parameters())
    incoming = torch.randn(3, 2, generator=torch.Generator().manual_seed(4)).to(DEVICE)

    def gradients(scale: float) -> list[Tensor]:
        cosines = gated_cosines_fused(attention, inputs[0], mask, inputs[1])
        return list(torch.autograd.grad(cosines, inputs, incoming * scale))

    usual = gradients(1.0)
    for scale in (2.0**-40, 2.0**30):
        for found, right in zip(gradients(scale), usual, strict=True):
            torch.testing.assert_close(found / scale, right, rtol=1e-5, atol=1e-7)
    assert not any(gradient.any() for gradient in gradients(0.0))


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("longest", "wide"), [(20, 3), (20, 2), (16, 0), (20, 0), (20, 5)])
def test_bounds_on_lengths_change_nothing(longest: int, wide: int) -> None:
    """`wide` captions may have more than 16 words; two have, where that is allowed."""
    attention, regions = trained(24), unit(3, 6, 24, seed=2)
    lengths = torch.tensor([3, 0, 20, 16, 18] if wide else [3, 0, 16, 16, 9], device=DEVICE)
    mask = torch.arange(longest, device=DEVICE) < lengths[:, None]
    mask[2:, 1:14:3] = False
    words = unit(5, longest, 24, seed=1).masked_fill(~mask[..., None], torch.nan)
    incoming = torch.randn(5, 3, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    results = []
    for longer_than in (None, ((8, 4), (16, wide), (32, 0))):
        inputs = [words.clone().requires_grad_(), regions.clone().requires_grad_(), *attention.parameters()]
        cosines = gated_cosines_fused(attention, inputs[0], mask, inputs[1], None, longer_than)
        results.append([cosines, *torch.autograd.grad(cosines, inputs, incoming)])
    assert not results[1][0][1].any()  # no words
    for plain, bounded in zip(*results, strict=True):
        assert bounded.isfinite().all()
        assert (bounded - plain).norm() < 5e-4 * plain.norm()  # gradients by logits are rounded to float16
    torch.testing.assert_close(results[1][0], results[0][0], atol=1e-6, rtol=0)


@pytest.mark.gpu
@needs_kernels
def test_three_widths_of_captions() -> None:
    attention, words, regions = trained(16), unit(6, 40, 16, seed=1), unit(2, 4, 16, seed=2)
    lengths = torch.tensor([5, 40, 20, 0, 16, 33], device=DEVICE)
    mask = torch.arange(40, device=DEVICE) < lengths[:, None]
    results = []
    for longer_than in (None, ((16, 4), (32, 2))):
        own = words.clone().requires_grad_()
        cosines = gated_cosines_fused(attention, own, mask, regions, None, longer_than)
        results.append(
            [cosines, *torch.autograd.grad(cosines.square().sum(), [own, *attention.parameters()])]
        )
    for plain, bounded in zip(*results, strict=True):
        assert (bounded - plain).norm() < 5e-4 * plain.norm()


def test_parts_hold_every_caption_once() -> None:
    assert parts_by_width(9, 20, ()) == ((0, 9, 20),)
    assert parts_by_width(9, 16, ((16, 3),)) == ((0, 9, 16),)
    assert parts_by_width(9, 20, ((8, 9), (16, 0))) == ((0, 9, 16),)
    assert parts_by_width(9, 20, ((16, 12),)) == ((0, 9, 20),)
    assert parts_by_width(9, 60, ((16, 5), (32, 5))) == ((0, 5, 60), (5, 9, 16))


@pytest.mark.gpu
@needs_kernels
def test_wrong_bounds_give_no_cosine() -> None:
    mask = torch.arange(20, device=DEVICE) < torch.tensor([3, 20, 18], device=DEVICE)[:, None]
    words, regions = unit(3, 20, 16, seed=1), unit(2, 4, 16, seed=2)
    assert gated_cosines_fused(trained(16), words, mask, regions, None, ((16, 1),)).mean().isnan()


@pytest.mark.gpu
@needs_kernels
def test_captions_of_all_widths_without_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_gated_fused, "MAX_CAPTIONS_AT_ONCE", 2)
    words, regions, attention = unit(8, 40, 16, seed=1), unit(2, 4, 16, seed=2), trained(16)
    lengths = torch.tensor([3, 0, 16, 17, 40, 32, 5, 33], device=DEVICE)
    mask = torch.arange(40, device=DEVICE) < lengths[:, None]
    with torch.no_grad():
        fused = gated_cosines_fused(attention, words, mask, regions)
        expected = attention.double()(words.double(), mask, regions.double())
    assert not fused[1].any()
    torch.testing.assert_close(fused.double(), expected, atol=4e-5, rtol=0)


@pytest.mark.gpu
@needs_kernels
def test_padding_has_no_influence_even_when_it_is_nan() -> None:
    attention, words, regions = trained(16), unit(4, 5, 16, seed=1), unit(3, 6, 16, seed=2)
    word_mask, region_mask = some_mask(4, 5, 1), some_mask(3, 6, 2)
    plain = gated_cosines_fused(attention, words, word_mask, regions, region_mask)
    words = words.masked_fill(~word_mask[..., None], torch.nan).requires_grad_()
    regions = regions.masked_fill(~region_mask[..., None], torch.nan).requires_grad_()
    spoiled = gated_cosines_fused(attention, words, word_mask, regions, region_mask)
    assert torch.equal(spoiled, plain)
    assert not spoiled[0].any() and not spoiled[:, 0].any()  # no words, no regions
    gradients = torch.autograd.grad(spoiled.sum(), (words, regions, *attention.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    for gradient, mask in zip(gradients, (word_mask, region_mask), strict=False):
        assert not gradient[~mask].any() and gradient[mask].any()


@pytest.mark.gpu
@needs_kernels
def test_runs_give_the_same_bits() -> None:
    attention, words, regions = trained(16), unit(5, 6, 16, seed=1), unit(2, 7, 16, seed=2)
    mask, results = some_mask(5, 6, 1), []
    for _ in range(2):
        own = [words.clone().requires_grad_(), regions.clone().requires_grad_()]
        cosines = gated_cosines_fused(attention, own[0], mask, own[1])
        results.append(
            [cosines, *torch.autograd.grad(cosines.square().sum(), [*own, *attention.parameters()])]
        )
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("shape", [(33, 24, 9, 49, 512), (20, 12, 9, 64, 256), (9, 50, 5, 49, 768)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_of_real_models(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    captions, m, images, n, d = shape
    words, regions = unit(captions, m, d, seed=1, dtype=dtype), unit(images, n, d, seed=2, dtype=dtype)
    compare(trained(d), words, some_mask(captions, m, 1), regions, some_mask(images, n, 2))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("longer_than", [None, ((16, 15),)])
def test_can_be_captured_in_a_graph(longer_than: LongerThan | None) -> None:
    attention = trained(128)
    words, regions = unit(20, 24, 128, seed=1).requires_grad_(), unit(10, 49, 128, seed=2).requires_grad_()
    mask = some_mask(20, 24, 1)
    mask[15:, 16:] = False

    def step() -> list[Tensor]:
        cosines = gated_cosines_fused(attention, words, mask, regions, None, longer_than)
        inputs = [words, regions, *attention.parameters()]
        return [cosines, *torch.autograd.grad(cosines.square().sum(), inputs)]

    graph, results = captured(step)
    with torch.no_grad():
        words.copy_(words.flip(0))
        mask.copy_(mask.flip(0))
    graph.replay()
    replayed = [tensor.clone() for tensor in results]
    for again, plain in zip(replayed, step(), strict=True):
        torch.testing.assert_close(again, plain)


def test_what_kernels_cannot_do_is_the_module() -> None:
    """Double precision, many regions, long captions, on any device."""
    for m, n, dtype in ((5, 9, torch.float64), (5, 197, torch.float32), (70, 9, torch.float32)):
        attention = trained(16).to(dtype)
        words, regions = unit(3, m, 16, seed=1, dtype=dtype), unit(2, n, 16, seed=2, dtype=dtype)
        mask = some_mask(3, m, 1)
        assert torch.equal(
            gated_cosines_fused(attention, words, mask, regions), attention(words, mask, regions)
        )


@pytest.mark.parametrize(("captions", "images"), [(0, 3), (3, 0)])
def test_empty_batches(captions: int, images: int) -> None:
    mask = torch.ones(captions, 5, dtype=torch.bool, device=DEVICE)
    assert gated_cosines_fused(trained(8), unit(captions, 5, 8), mask, unit(images, 9, 8)).shape == (
        captions,
        images,
    )
