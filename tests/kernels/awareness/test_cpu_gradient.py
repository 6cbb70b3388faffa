from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.kernels.awareness import cpu_gradient as cpu_gradient
from pmpguard.kernels.awareness import fused as awareness_fused
from pmpguard.kernels.awareness.cpu_gradient import packed_awareness_with_gradient
from pmpguard.kernels.awareness.fused import awareness_scores_fused
from pmpguard.models.attention.awareness import awareness_scores

Case = tuple[Tensor, Tensor, Tensor, Tensor]  # words, their mask, regions, gradient by scores


def some(captions: int, m: int, images: int, n: int, dim: int = 8, seed: int = 0) -> Case:
    """Ragged captions, some of them empty, some with a gap at the front."""
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> Tensor:
        return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)

    lengths = torch.randint(0, m + 1, (captions,), generator=generator)
    mask = torch.arange(m) < lengths[:, None]
    mask[::3, 0] = False
    incoming = torch.randn(captions, images, generator=generator, dtype=torch.float64)
    return unit(captions, m, dim), mask, unit(images, n, dim), incoming


def gradients(score: object, case: Case, t: float, dtype: torch.dtype) -> list[Tensor]:
    """Scores, and the gradients by words and regions, in double precision."""
    words, mask, regions, incoming = case
    words, regions = (x.to(dtype).clone().requires_grad_() for x in (words, regions))
    scores = score(words, mask, regions, t)  # type: ignore[operator]
    scores.backward(incoming.to(dtype))
    assert words.grad is not None and regions.grad is not None
    return [x.detach().double() for x in (scores, words.grad, regions.grad)]


@settings(max_examples=40, deadline=None)
@given(
    captions=st.integers(1, 12),
    images=st.integers(1, 9),
    m=st.integers(1, 6),
    n=st.integers(1, 9),
    t=st.sampled_from([-3.0, -0.2, 0.0, 0.15, 0.5, 3.0]),
    seed=st.integers(0, 1000),
)
def test_scores_and_gradients_are_those_of_double_precision(
    captions: int, images: int, m: int, n: int, t: float, seed: int
) -> None:
    case = some(captions, m, images, n, seed=seed)
    exact = gradients(awareness_scores, case, t, torch.float64)
    packed = gradients(packed_awareness_with_gradient, case, t, torch.float32)
    assert (packed[0] - exact[0]).abs().max() < 3e-6
    # A cosine next to 0, or contexts that cancel, make gradients steep: the plain version in float32 is off
    # by up to 7e-3 in such cases.
    for found, wanted in zip(packed[1:], exact[1:], strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-2 * max(1.0, wanted.abs().max().item()), rtol=0)


@pytest.mark.parametrize("t", [-0.05, 0.1, 0.3])
def test_gradients_of_a_usual_batch_are_exact_to_rounding(t: float) -> None:
    case = some(48, 14, 12, 49, dim=64, seed=2)
    exact = gradients(awareness_scores, case, t, torch.float64)
    packed = gradients(packed_awareness_with_gradient, case, t, torch.float32)
    for found, wanted in zip(packed, exact, strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-5 * wanted.abs().max().item(), rtol=0)


def test_equal_regions_have_the_gradient_of_one_between_them() -> None:
    """How they share it is up to rounding: a product may give equal regions cosines a bit apart."""
    words, mask, regions, incoming = some(5, 4, 3, 6, seed=3)
    regions = regions[:, :1].expand(-1, 6, -1).contiguous()
    for t in (0.1, 2.0):  # 2: every word is missing, and all regions are equally near
        case = (words, mask, regions, incoming)
        exact = gradients(awareness_scores, case, t, torch.float64)
        packed = gradients(packed_awareness_with_gradient, case, t, torch.float32)
        exact[2], packed[2] = exact[2].sum(1), packed[2].sum(1)
        for found, wanted in zip(packed, exact, strict=True):
            torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)


def test_neither_memory_nor_threads_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    case = some(40, 12, 10, 16, dim=32, seed=5)
    wanted = gradients(packed_awareness_with_gradient, case, 0.1, torch.float32)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            again = gradients(packed_awareness_with_gradient, case, 0.1, torch.float32)
            assert torch.get_num_threads() == threads
            for found, expected in zip(again[:1], wanted[:1], strict=True):
                assert torch.equal(found, expected)
            for found, expected in zip(again, wanted, strict=True):
                torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(cpu_gradient, "MAX_GRADIENT_BYTES", 1)  # one image at a time
    one_by_one = gradients(packed_awareness_with_gradient, case, 0.1, torch.float32)
    for found, expected in zip(one_by_one, wanted, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_run_repeats_bit_by_bit() -> None:
    case = some(60, 14, 12, 49, dim=32, seed=6)
    first = gradients(packed_awareness_with_gradient, case, 0.1, torch.float32)
    for _ in range(3):
        again = gradients(packed_awareness_with_gradient, case, 0.1, torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


def test_training_on_a_cpu_takes_the_blocks_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMPGUARD_KERNELS", "off")
    taken: list[int] = []

    def noting(words: Tensor, mask: Tensor, regions: Tensor, t: float, sharpness: float) -> Tensor:
        taken.append(len(words))
        return packed_awareness_with_gradient(words, mask, regions, t, sharpness)

    monkeypatch.setattr(awareness_fused, "packed_awareness_with_gradient", noting)
    words, mask, regions, _ = some(4, 3, 2, 5)
    whole = torch.ones(2, 5, dtype=torch.bool)
    awareness_scores_fused(words.float(), mask, regions.float(), 0.1, region_mask=whole)
    awareness_scores_fused(words.float(), mask, regions.float(), torch.tensor(0.1))
    assert taken == [4, 4]
    hole = whole.clone()
    hole[0, 0] = False
    awareness_scores_fused(words.float(), mask, regions.float(), 0.1, region_mask=hole)
    awareness_scores_fused(words, mask, regions, 0.1)  # double precision
    awareness_scores_fused(words.float(), mask, regions.float(), 0.1, sharpness=30.0)
    awareness_scores_fused(words.float(), mask, regions.float(), 0.1, direction="both")
    assert taken == [4, 4]
