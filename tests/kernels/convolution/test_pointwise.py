"""1x1 convolutions and the wide half of an inverted residual against plain operations in float64.

Tests of the kernels run on CUDA, or anywhere with Triton's interpreter (TRITON_INTERPRET=1), which has no
bfloat16 products.
"""

from __future__ import annotations

import pytest
import torch
from helpers.kernel_marks import DEVICE, needs_cuda, needs_kernels
from torch import Tensor
from torch.nn import functional as F

from pmpguard.kernels.convolution import pointwise as pointwise_module
from pmpguard.kernels.convolution.expand_depthwise import expand_depthwise
from pmpguard.kernels.convolution.pointwise import pointwise

ERROR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # relative


@pytest.fixture(params=["kernel", "matmul"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pointwise_module, "PRODUCTS", request.param)
    monkeypatch.setattr(pointwise_module, "WEIGHT_PRODUCTS", request.param)
    return str(request.param)


def drawn(*shape: int, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(DEVICE, dtype)


def example(images: int, inputs: int, outputs: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    """Features, weight (already rounded), bias and residual."""
    features = drawn(images, inputs, size, size + 1, seed=0, dtype=dtype)
    weight = drawn(outputs, inputs, 1, 1, seed=1, scale=2 * inputs**-0.5, dtype=dtype).float()
    residual = drawn(images, outputs, size, size + 1, seed=3, dtype=dtype)
    return [
        features.contiguous(memory_format=torch.channels_last), weight, drawn(outputs, seed=2) + 2,
        residual.contiguous(memory_format=torch.channels_last),
    ]  # fmt: skip


def near(found: Tensor, right: Tensor, error: float) -> None:
    assert found.shape == right.shape
    torch.testing.assert_close(found.double(), right, atol=error * right.abs().max().item(), rtol=error)


def compare(inputs: list[Tensor], *, relu6: bool, added: bool) -> None:
    own = [tensor.detach().clone().requires_grad_() for tensor in (inputs if added else inputs[:3])]
    exact = [tensor.detach().double().requires_grad_() for tensor in own]
    dtype = own[0].dtype
    found = pointwise(own[0], own[1], own[2], relu6=relu6, residual=own[3] if added else None)
    assert type(found.grad_fn).__name__ == "_PointwiseBackward" and found.dtype == dtype
    raw = F.conv2d(exact[0], exact[1], exact[2])
    expected = raw.clamp(0, 6) if relu6 else raw
    expected = expected + exact[3] if added else expected
    near(found, expected, ERROR[dtype])
    clear = (raw.abs() > 0.1) & ((raw - 6).abs() > 0.1) if relu6 else torch.ones_like(raw, dtype=torch.bool)
    incoming = drawn(*expected.shape, seed=5, dtype=dtype) * clear
    gradients = torch.autograd.grad(found, own, incoming)
    for gradient, right, given in zip(
        gradients, torch.autograd.grad(expected, exact, incoming.double()), own, strict=True
    ):
        assert gradient.dtype == given.dtype
        near(gradient, right, ERROR[dtype])


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 96), (24, 40), (3, 7), (144, 24), (40, 200), (1, 1)])
@pytest.mark.parametrize(("relu6", "added"), [(True, False), (False, False), (False, True)])
def test_equals_the_plain_operations(
    inputs: int, outputs: int, relu6: bool, added: bool, products: str
) -> None:
    compare(example(2, inputs, outputs, 9, torch.float16), relu6=relu6, added=added)


@pytest.mark.gpu
@needs_kernels
def test_programs_of_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise_module, "WEIGHT_PROGRAMS", 3)
    compare(example(2, 24, 40, 13, torch.float16), relu6=True, added=False)
    features, weight, bias, residual = example(2, 24, 40, 13, torch.float16)
    compare([features.contiguous(), weight, bias, residual.contiguous()], relu6=False, added=True)


def wide_example(
    size: int, inputs: int, wide: int, kernel: int, dtype: torch.dtype, images: int = 2
) -> list[Tensor]:
    """Features, wide weight, wide bias, weight, bias."""
    features, weight, bias, _ = example(images, inputs, wide, size, dtype)
    taps = drawn(wide, 1, kernel, kernel, seed=7, scale=1 / kernel)
    return [features, weight, bias, taps, drawn(wide, seed=8) + 2]


def compare_wide(inputs: list[Tensor], stride: int, padding: tuple[int, int, int, int]) -> None:
    """Errors by norm: where rounding decides about a clamp single gradients may differ."""
    own = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    exact = [tensor.detach().double().requires_grad_() for tensor in own]
    dtype = own[0].dtype
    found = expand_depthwise(own[0], own[1], own[2], own[3], own[4], stride, padding)
    assert type(found.grad_fn).__name__ == "_ExpandDepthwiseBackward" and found.dtype == dtype
    top, bottom, left, right_side = padding
    hidden = F.conv2d(exact[0], exact[1], exact[2]).clamp(0, 6)
    expected = F.conv2d(
        F.pad(hidden, (left, right_side, top, bottom)), exact[3], exact[4], stride, groups=len(exact[3])
    ).clamp(0, 6)
    near(found, expected, ERROR[dtype])
    incoming = drawn(*expected.shape, seed=9, dtype=dtype)
    gradients = torch.autograd.grad(found, own, incoming)
    for gradient, right, given in zip(
        gradients, torch.autograd.grad(expected, exact, incoming.double()), own, strict=True
    ):
        assert gradient.dtype == given.dtype and gradient.shape == given.shape
        assert (gradient.double() - right).norm() < 4 * ERROR[dtype] * right.norm()


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("stride", [1, 2])
def test_the_wide_half(stride: int, products: str) -> None:
    compare_wide(wide_example(6, 24, 40, 3, torch.float16), stride, (1, 1, 1, 1))
    compare_wide(wide_example(5, 8, 16, 5, torch.float16), stride, (1, 2, 1, 2))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("inputs", "outputs", "size"),
    [
        (16, 96, 112),
        (24, 144, 56),
        (144, 24, 56),
        (64, 384, 14),
        (576, 160, 7),
        (320, 1280, 7),
        (40, 240, 28),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sizes_of_real_models(
    inputs: int, outputs: int, size: int, dtype: torch.dtype, products: str
) -> None:
    tensors = example(4, inputs, outputs, size, dtype)
    compare(tensors, relu6=True, added=False)
    compare(tensors, relu6=False, added=True)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("inputs", "wide", "size", "kernel", "stride"),
    [
        (16, 96, 112, 3, 2),
        (24, 144, 56, 5, 2),
        (64, 384, 14, 3, 1),
        (160, 960, 7, 3, 1),
        (192, 1152, 7, 5, 1),
    ],
)
def test_wide_halves_of_real_models(inputs: int, wide: int, size: int, kernel: int, stride: int) -> None:
    tensors = wide_example(size, inputs, wide, kernel, torch.bfloat16, images=4)
    compare_wide(tensors, stride, (kernel // 2,) * 4)
    results = []
    for _ in range(2):
        own = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        result = expand_depthwise(own[0], own[1], own[2], own[3], own[4], stride, (kernel // 2,) * 4)
        results.append([result, *torch.autograd.grad(result.float().square().sum(), own)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("relu6", [False, True])
def test_what_kernels_cannot_do_is_the_plain_operations(relu6: bool, added: bool) -> None:
    """Double precision, on any device."""
    features, weight, bias, residual = (tensor.double() for tensor in example(2, 5, 6, 4, torch.float32))
    found = pointwise(features, weight, bias, relu6=relu6, residual=residual if added else None)
    expected = torch.einsum("nchw,dc->ndhw", features, weight[:, :, 0, 0]) + bias.view(-1, 1, 1)
    expected = expected.clamp(0, 6) if relu6 else expected
    torch.testing.assert_close(found, expected + residual if added else expected)
    taps = drawn(6, 1, 3, 3, seed=1).double()
    wide = expand_depthwise(features, weight, bias, taps, bias, 2, (0, 1, 1, 0))
    hidden = F.pad(F.conv2d(features, weight, bias).clamp(0, 6), (1, 0, 0, 1))
    torch.testing.assert_close(wide, F.conv2d(hidden, taps, bias, 2, groups=6).clamp(0, 6))


def test_products_can_be_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise_module, "PRODUCTS", "plain")
    features, weight, bias, _ = example(1, 5, 6, 4, torch.float32)
    found = pointwise(features.requires_grad_(), weight, bias, relu6=False)
    assert "Pointwise" not in type(found.grad_fn).__name__
