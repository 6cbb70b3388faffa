"""The fused awareness score against the plain one in float64.

Tests of the kernels run on CUDA, or anywhere with Triton's interpreter (TRITON_INTERPRET=1); the interpreter
has no bfloat16 products.
"""

from __future__ import annotations

import pytest
import torch
from helpers.kernel_marks import DEVICE, captured, needs_cuda, needs_kernels
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.errors import ConfigError, ModelError
from pmpguard.kernels.awareness import fused as awareness_fused
from pmpguard.kernels.awareness import many_regions
from pmpguard.kernels.awareness.fused import awareness_scores_fused
from pmpguard.kernels.caption_blocks import LongerThan
from pmpguard.models.attention.awareness import awareness_scores

# Tensor cores cut off what a float32 sum cannot hold, where a CPU rounds it. Such errors do not cancel: what
# is allowed grows with the numbers of a vector.
SCORE_ERROR, SCORE_ERROR_PER_NUMBER = 2e-6, 4e-9
GRADIENT_ERROR = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 8e-3}
GRADIENT_ERROR_PER_NUMBER = 3e-8


@pytest.fixture(autouse=True)
def gradients_the_interpreter_can_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(awareness_fused, "HALF_GRADIENT", torch.float16)


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return normalize(drawn, dim=-1).to(DEVICE, dtype)


def related(captions: int, m: int, images: int, n: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Words near some region, so that some cosines are large."""
    regions = unit(images, n, d, seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    near = torch.randint(images * n, (captions, m), generator=generator).to(DEVICE)
    words = 0.6 * regions.flatten(0, 1)[near] + unit(captions, m, d, seed=3, dtype=torch.float64)
    return normalize(words, dim=-1).to(dtype), regions.to(dtype)


def some_mask(rows: int, columns: int, seed: int) -> Tensor:
    """Random, with gaps; the first row is empty where there is more than one."""
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) > 0.3
    mask[:, 0] = True
    if rows > 1:
        mask[0] = False
    return mask.to(DEVICE)


def compare(words: Tensor, word_mask: Tensor, regions: Tensor, boundary: float, **options) -> None:
    """Scores with and without gradient, and the gradients of both inputs."""
    own = [words.clone().requires_grad_(), regions.clone().requires_grad_()]
    exact = [words.double().requires_grad_(), regions.double().requires_grad_()]
    fused = awareness_scores_fused(own[0], word_mask, own[1], boundary, **options)
    assert "Awareness" in type(fused.grad_fn).__name__ or options.get("direction") == "both"
    expected = awareness_scores(exact[0], word_mask, exact[1], boundary, **options)
    assert fused.dtype == torch.float32
    allowed = SCORE_ERROR + SCORE_ERROR_PER_NUMBER * words.shape[2]
    torch.testing.assert_close(fused.double(), expected, atol=allowed, rtol=0)
    with torch.no_grad():
        packed = awareness_scores_fused(words, word_mask, regions, boundary, **options)
    torch.testing.assert_close(packed.double(), expected.detach(), atol=allowed, rtol=0)
    incoming = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    found = torch.autograd.grad(fused, own, incoming)
    wanted = torch.autograd.grad(expected, exact, incoming.double())
    for gradient, right in zip(found, wanted, strict=True):
        assert gradient.dtype == words.dtype and gradient.isfinite().all()
        error = (gradient.double() - right).norm() / right.norm().clamp(min=1e-12)
        assert error < GRADIENT_ERROR[words.dtype] + GRADIENT_ERROR_PER_NUMBER * words.shape[2]


SHAPES = [  # T, m, I, n, d
    (5, 7, 3, 9, 40),
    (1, 1, 1, 1, 16),
    (1, 1, 1, 1, 3),
    (3, 20, 2, 49, 64),
    (7, 3, 2, 17, 33),
    (2, 70, 2, 20, 32),
    (2, 5, 2, 100, 32),
    (3, 4, 2, 197, 16),  # patches of a ViT-B/16, and of a ViT-L/14, with the class token
    (2, 2, 1, 257, 16),
]


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_plain_score(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    captions, m, images, n, d = shape
    words, regions = related(captions, m, images, n, d, dtype)
    everything = torch.ones(captions, m, dtype=torch.bool, device=DEVICE)
    compare(words, everything, regions, 0.1)
    compare(words, some_mask(captions, m, 5), regions, 0.1, region_mask=some_mask(images, n, 6))


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("boundary", [-2.0, -0.1, 0.0, 0.3, 2.0])
@pytest.mark.parametrize("sharpness", [5.0, 20.0, 40.0])
def test_every_branch_of_the_boundary(boundary: float, sharpness: float) -> None:
    words, regions = related(4, 6, 3, 9, 32, torch.float32)
    compare(words, some_mask(4, 6, 1), regions, boundary, sharpness=sharpness)


LENGTHS = [3, 0, 16, 17, 9, 1, 20, 5, 12, 20, 7]
BOUNDS = ((4, 9), (8, 7), (12, 4), (16, 3))  # a few more than LENGTHS have


def ragged_mask(lengths: list[int], longest: int, gaps: bool) -> Tensor:
    """Captions of these lengths; with gaps, every third word but the last one is missing."""
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    if gaps:
        for caption, length in enumerate(lengths):
            mask[caption, 1 : max(1, length - 1) : 3] = False
    return mask.to(DEVICE)


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_bounds_on_lengths_change_nothing(gaps: bool, dtype: torch.dtype) -> None:
    words, regions = related(len(LENGTHS), 20, 3, 9, 32, dtype)
    mask, results = ragged_mask(LENGTHS, 20, gaps), []
    spoiled = words.masked_fill(~mask[..., None], torch.nan)
    for longer_than in (None, BOUNDS, ()):
        own = [spoiled.clone().requires_grad_(), regions.clone().requires_grad_()]
        scores = awareness_scores_fused(own[0], mask, own[1], 0.1, longer_than=longer_than)
        incoming = torch.randn(scores.shape, generator=torch.Generator().manual_seed(4)).to(DEVICE)
        results.append([scores, *torch.autograd.grad(scores, own, incoming)])
    assert not results[1][0][1].any()  # no words
    tolerance = GRADIENT_ERROR[dtype]
    for plain, bounded, unbounded in zip(*results, strict=True):
        for found in (bounded, unbounded):
            assert found.isfinite().all()
            assert (found - plain).norm() < tolerance * plain.norm()
    torch.testing.assert_close(results[1][0], results[0][0], atol=SCORE_ERROR, rtol=0)
    assert torch.equal(results[1][1][~mask], torch.zeros_like(results[1][1][~mask]))


@pytest.mark.gpu
@needs_kernels
def test_wrong_bounds_give_no_score() -> None:
    words, regions = related(len(LENGTHS), 20, 3, 9, 32, torch.float16)
    mask = ragged_mask(LENGTHS, 20, gaps=True)
    own = words.clone().requires_grad_()
    for longer_than in (((16, 2),), ((4, 1),)):
        scores = awareness_scores_fused(own, mask, regions, 0.1, longer_than=longer_than)
        assert scores.mean().isnan()


@pytest.mark.gpu
@needs_kernels
def test_both_directions() -> None:
    words, regions = related(5, 6, 3, 9, 32, torch.float32)
    compare(words, some_mask(5, 6, 1), regions, 0.1, direction="both", region_mask=some_mask(3, 9, 2))
    compare(words, some_mask(5, 6, 1), regions, 0.1, direction="both")


@pytest.mark.gpu
@needs_kernels
def test_rounding_for_the_kernel_only_keeps_gradients_in_float32() -> None:
    words, regions = related(5, 6, 3, 9, 32, torch.float32)
    mask = some_mask(5, 6, 1)
    own = [words.clone().requires_grad_(), regions.clone().requires_grad_()]
    rounded = [words.half().double().requires_grad_(), regions.half().double().requires_grad_()]
    scores = awareness_scores_fused(own[0], mask, own[1], 0.1, product_dtype=torch.float16)
    expected = awareness_scores(rounded[0], mask, rounded[1], 0.1)
    torch.testing.assert_close(scores.double(), expected, atol=2e-6, rtol=0)
    small = torch.full_like(scores, 1e-9)  # what float16 would lose
    found = torch.autograd.grad(scores, own, small if DEVICE.type == "cuda" else small * 1e9)
    wanted = torch.autograd.grad(expected, rounded, torch.full_like(expected, 1e-9))
    for gradient, right in zip(found, wanted, strict=True):
        right = right if DEVICE.type == "cuda" else right * 1e9
        assert gradient.dtype == torch.float32
        assert (gradient.double() - right).norm() < 6e-3 * right.norm()


@pytest.mark.gpu
@needs_kernels
def test_equal_regions_share_the_gradient_of_the_best_cosine() -> None:
    """Between them they have what one region would have; how they share it is up to rounding.

    A product may give equal regions cosines a bit apart, of which only the highest has negative evidence.
    """
    words, alone = unit(3, 4, 16, seed=2), unit(2, 1, 16, seed=1)
    mask = torch.ones(3, 4, dtype=torch.bool, device=DEVICE)
    for boundary in (0.0, 1.5):  # 1.5: every word is missing
        own = [words.clone().requires_grad_(), alone.expand(2, 5, 16).contiguous().requires_grad_()]
        exact = [words.double().requires_grad_(), alone.double().requires_grad_()]
        fused = awareness_scores_fused(own[0], mask, own[1], boundary)
        plain = awareness_scores(exact[0], mask, exact[1], boundary)
        by_words, by_regions = torch.autograd.grad(fused.square().sum(), own)
        wanted = torch.autograd.grad(plain.square().sum(), exact)
        torch.testing.assert_close(by_words.double(), wanted[0], atol=2e-5, rtol=0)
        torch.testing.assert_close(by_regions.double().sum(1, keepdim=True), wanted[1], atol=2e-5, rtol=0)


@pytest.mark.gpu
@needs_kernels
def test_padding_has_no_influence_even_when_it_is_nan() -> None:
    words, regions = related(4, 5, 3, 9, 32, torch.float32)
    word_mask, region_mask = some_mask(4, 5, 1), some_mask(3, 9, 2)
    plain = awareness_scores_fused(words, word_mask, regions, 0.1, region_mask=region_mask)
    words = words.masked_fill(~word_mask[..., None], torch.nan).requires_grad_()
    regions = regions.masked_fill(~region_mask[..., None], torch.nan).requires_grad_()
    spoiled = awareness_scores_fused(words, word_mask, regions, 0.1, region_mask=region_mask)
    torch.testing.assert_close(spoiled, plain, atol=1e-6, rtol=0)
    assert not spoiled[0].any() and not spoiled[:, 0].any()  # no words, no regions
    for tensor, mask in zip(
        torch.autograd.grad(spoiled.sum(), (words, regions)), (word_mask, region_mask), strict=True
    ):
        assert tensor.isfinite().all() and not tensor[~mask].any() and tensor[mask].any()


@pytest.mark.gpu
@needs_kernels
def test_gradients_cross_the_seams_between_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awareness_fused, "MAX_GRADIENT_BYTES", 2 * 64 * 16 * 4)
    monkeypatch.setattr(awareness_fused, "PROGRAMS", 2)
    monkeypatch.setattr(awareness_fused, "GROUP", 2)
    words, regions = related(20, 12, 5, 9, 32, torch.float32)
    compare(words, some_mask(20, 12, 1), regions, 0.1)
    monkeypatch.setattr(many_regions, "MAX_COSINE_BYTES", 2 * 64 * 192 * 4)  # two of three images
    words, regions = related(4, 5, 3, 130, 16, torch.float32)
    compare(words, some_mask(4, 5, 1), regions, 0.1, region_mask=some_mask(3, 130, 2))


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("launch", [{"images": 2}, {"rows": 128, "warps": 8, "images": 2}, {"images": 3}])
@pytest.mark.parametrize("images", [1, 4, 5])
def test_several_images_per_program(
    monkeypatch: pytest.MonkeyPatch, launch: dict[str, int], images: int
) -> None:
    """Also where the last program has fewer images than others."""
    monkeypatch.setattr(awareness_fused, "FORWARD_LAUNCH", launch)
    monkeypatch.setattr(awareness_fused, "GROUP", 2)
    words, regions = related(14, 20, images, 49, 64, torch.float16)
    mask = some_mask(14, 20, 1)
    with torch.no_grad():
        scores = awareness_scores_fused(words, mask, regions, 0.1)
    expected = awareness_scores(words.double(), mask, regions.double(), 0.1)
    torch.testing.assert_close(scores.double(), expected, atol=2e-6, rtol=0)


@pytest.mark.gpu
@needs_kernels
def test_runs_give_the_same_bits() -> None:
    words, regions = related(6, 8, 4, 12, 32, torch.float16)
    mask, results = some_mask(6, 8, 1), []
    for _ in range(2):
        own = [words.clone().requires_grad_(), regions.clone().requires_grad_()]
        scores = awareness_scores_fused(own[0], mask, own[1], 0.1)
        results.append([scores, *torch.autograd.grad(scores.square().sum(), own)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    "shape",
    [
        (33, 24, 9, 49, 512),
        (64, 12, 50, 64, 256),
        (9, 77, 5, 49, 768),
        (9, 20, 5, 100, 1024),
        (9, 24, 5, 257, 512),
        (9, 77, 5, 197, 768),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sizes_of_real_models(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    captions, m, images, n, d = shape
    words, regions = related(captions, m, images, n, d, dtype)
    compare(words, some_mask(captions, m, 1), regions, 0.15)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("longer_than", [None, ((8, 19), (12, 19), (20, 15))])
def test_can_be_captured_in_a_graph(longer_than: LongerThan | None) -> None:
    """A boundary and inputs that change between replays; nothing in between waits for the device."""
    words, regions = related(20, 24, 10, 49, 128, torch.bfloat16)
    mask, boundary = some_mask(20, 24, 1), torch.tensor(0.1, device="cuda")
    mask[15:, 20:] = False
    words, regions = words.requires_grad_(), regions.requires_grad_()

    def step() -> list[Tensor]:
        scores = awareness_scores_fused(words, mask, regions, boundary, longer_than=longer_than)
        return [scores, *torch.autograd.grad(scores.square().sum(), (words, regions))]

    graph, results = captured(step)
    with torch.no_grad():
        boundary.fill_(0.25)
        words.copy_(words.flip(0))
        mask.copy_(mask.flip(0))
    graph.replay()
    replayed = [tensor.clone() for tensor in results]
    assert all(torch.equal(a, b) for a, b in zip(replayed, step(), strict=True))


def test_what_kernels_cannot_do_is_the_plain_score() -> None:
    """Double precision, boundaries that want a gradient, and high sharpness, on any device."""
    words, regions = related(4, 5, 3, 9, 16, torch.float64)
    mask = some_mask(4, 5, 1)
    plain = awareness_scores(words, mask, regions, 0.1)
    assert torch.equal(awareness_scores_fused(words, mask, regions, 0.1), plain)
    words, regions = words.float(), regions.float()
    sharp = awareness_scores_fused(words, mask, regions, 0.1, sharpness=90.0)
    assert torch.equal(sharp, awareness_scores(words, mask, regions, 0.1, sharpness=90.0))
    boundary = torch.tensor(0.9, device=DEVICE, requires_grad=True)  # higher than most cosines
    awareness_scores_fused(words, mask, regions, boundary).sum().backward()
    assert boundary.grad is not None and boundary.grad != 0


@pytest.mark.parametrize("empty", [(0, 5, 3, 9), (4, 5, 0, 9)])
def test_empty_batches(empty: tuple[int, int, int, int]) -> None:
    captions, m, images, n = empty
    mask = torch.ones(captions, m, dtype=torch.bool, device=DEVICE)
    scores = awareness_scores_fused(unit(captions, m, 8), mask, unit(images, n, 8), 0.1)
    assert scores.shape == (captions, images)


def test_wrong_shapes_and_directions_are_refused() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool, device=DEVICE)
    with pytest.raises(ConfigError, match="direction"):
        awareness_scores_fused(unit(2, 3, 4), mask, unit(2, 5, 4), 0.1, direction="regions")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="shapes do not agree"):
        awareness_scores_fused(
            unit(2, 3, 4), torch.ones(2, 2, dtype=torch.bool, device=DEVICE), unit(2, 5, 4), 0.1
        )
