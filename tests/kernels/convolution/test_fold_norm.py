"""Normalisation folded into weights against convolution then normalisation, in float64."""

from __future__ import annotations

import pytest
import torch
from helpers.kernel_marks import DEVICE, needs_kernels
from torch import Tensor, nn
from torch.nn import functional as F

from pmpguard.kernels.convolution.fold_norm import fold_norm


def example(outputs: int, inputs: int, kernel: int) -> tuple[Tensor, nn.BatchNorm2d]:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(outputs, eps=1e-3).double().eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert tensor is not None
        nn.init.uniform_(tensor, 0.3, 1.5)
    return torch.randn(outputs, inputs, kernel, kernel, dtype=torch.float64), norm


def gradients(weight: Tensor, norm: nn.BatchNorm2d) -> list[Tensor]:
    """The folded weight, the shift, and gradients through both."""
    weight = weight.clone().requires_grad_()
    folded, shift = fold_norm(weight, norm)
    by_folded = torch.randn(folded.shape, generator=torch.Generator().manual_seed(1)).to(folded)
    by_shift = torch.randn(shift.shape, generator=torch.Generator().manual_seed(2)).to(shift)
    inputs = [weight, norm.weight, norm.bias]
    return [folded, shift, *torch.autograd.grad([folded, shift], inputs, [by_folded, by_shift])]


@pytest.mark.parametrize(("outputs", "inputs", "kernel"), [(6, 3, 3), (4, 5, 1)])
def test_equals_convolution_then_normalisation(outputs: int, inputs: int, kernel: int) -> None:
    weight, norm = example(outputs, inputs, kernel)
    features = torch.randn(2, inputs, 6, 5, dtype=torch.float64)
    folded, shift = fold_norm(weight, norm)
    torch.testing.assert_close(F.conv2d(features, folded, shift), norm(F.conv2d(features, weight)))


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(
    ("outputs", "inputs", "kernel"), [(33, 3, 3), (150, 1, 5), (24, 144, 1), (3, 1200, 1), (1, 1, 1)]
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_kernels_equal_the_formula(outputs: int, inputs: int, kernel: int, channels_last: bool) -> None:
    weight, norm = example(outputs, inputs, kernel)
    expected = gradients(weight, norm)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    single = weight.to(DEVICE, torch.float32).contiguous(memory_format=layout)
    found = gradients(single, norm.to(DEVICE, torch.float32))
    assert type(found[0].grad_fn).__name__ == "_FoldNormBackward"
    for tensor, right in zip(found, expected, strict=True):
        torch.testing.assert_close(tensor.double().cpu(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@needs_kernels
def test_a_gradient_in_another_order_and_none_for_the_shift() -> None:
    weight, norm = example(20, 1, 3)
    weight, norm = weight.to(DEVICE, torch.float32).requires_grad_(), norm.to(DEVICE, torch.float32)
    incoming = torch.randn(9, 20, device=DEVICE).T.reshape(20, 1, 3, 3)
    (found,) = torch.autograd.grad(fold_norm(weight, norm)[0], weight, incoming)
    assert norm.running_var is not None
    factor = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    torch.testing.assert_close(found, incoming * factor.view(-1, 1, 1, 1))
