"""relu6(x + bias): the plain operations against loops, the fused kernel against the plain operations."""

from __future__ import annotations

import pytest
import torch
from helpers.kernel_marks import DEVICE, needs_cuda, needs_kernels

from pmpguard.kernels.convolution import bias_relu6 as bias_relu6_module
from pmpguard.kernels.convolution.bias_relu6 import bias_relu6


def example(shape=(2, 5, 3, 4), dtype=torch.float64, device="cpu"):
    """Features spread over both ends of the clamp, and one bias per channel."""
    torch.manual_seed(0)
    features = (torch.rand(shape, dtype=torch.float64) * 12 - 3).to(device, dtype)
    bias = torch.randn(shape[1], dtype=torch.float64).to(device, dtype)
    return features.requires_grad_(), bias.requires_grad_()


def test_equals_the_formula_number_by_number():
    features, bias = example()
    found = bias_relu6(features, bias)
    clamped = 0
    for n, c, y, x in torch.cartesian_prod(*map(torch.arange, features.shape)).tolist():
        value = features[n, c, y, x].item() + bias[c].item()
        assert found[n, c, y, x].item() == min(max(value, 0.0), 6.0)
        clamped += not 0 < value < 6
    assert 0 < clamped < features.numel()


def test_gradients():
    assert torch.autograd.gradcheck(bias_relu6, example())


def test_a_bias_of_another_number_type_takes_the_features_type():
    features, bias = example()
    found = bias_relu6(features.to(torch.bfloat16), bias)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), bias_relu6(features, bias), atol=0.05, rtol=0)


def test_no_features_give_no_features():
    features, bias = example((0, 5, 3, 4))
    assert bias_relu6(features, bias).shape == (0, 5, 3, 4)


def compare_with_plain(features, bias, tolerance):
    """The kernels against the plain operations in float64."""
    fused = bias_relu6(features, bias)
    assert type(fused.grad_fn).__name__ == "_BiasRelu6Backward" and fused.dtype == features.dtype
    incoming = torch.randn(fused.shape, generator=torch.Generator().manual_seed(1)).to(fused)
    found = torch.autograd.grad(fused, (features, bias), incoming)
    exact = [tensor.detach().double().cpu().requires_grad_() for tensor in (features, bias)]
    raw = exact[0] + exact[1].view(-1, 1, 1)
    plain = raw.clamp(0, 6)
    expected = torch.autograd.grad(plain, exact, incoming.double().cpu())
    torch.testing.assert_close(fused.double().cpu(), plain, atol=tolerance, rtol=tolerance)
    clear = (raw.abs() > tolerance) & ((raw - 6).abs() > tolerance)  # at the ends rounding may decide
    assert clear.double().mean() > 0.9 and (expected[0][clear] == 0).any()
    passed = found[0].double().cpu()
    assert torch.equal(passed[clear], expected[0][clear])
    assert found[1].dtype == bias.dtype
    torch.testing.assert_close(found[1].double().cpu(), passed.sum((0, 2, 3)), atol=1e-3, rtol=tolerance)


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 0.006)])
@pytest.mark.parametrize(
    "shape", [(2, 5, 3, 4), (1, 1, 1, 7), (3, 96, 11, 7), (2, 144, 5, 3), (2, 200, 1, 1)]
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_fused_kernel_equals_the_plain_operations(dtype, tolerance, shape, channels_last):
    features, bias = example(shape, dtype, DEVICE)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    compare_with_plain(features.contiguous(memory_format=layout), bias, tolerance)


@pytest.mark.gpu
@needs_kernels
def test_programs_of_several_steps(monkeypatch):
    monkeypatch.setattr(bias_relu6_module, "PROGRAMS", 5)
    features, bias = example((3, 40, 12, 11), torch.float32, DEVICE)
    compare_with_plain(features, bias, 1e-5)
    compare_with_plain(features.transpose(2, 3)[:, :, 1:], bias, 1e-5)


@pytest.mark.gpu
@needs_kernels
def test_the_result_may_be_the_features():
    features, bias = (tensor.detach() for tensor in example((2, 40, 5, 5), torch.float32, DEVICE))
    features = features.contiguous(memory_format=torch.channels_last)
    expected = bias_relu6(features, bias)
    bias_relu6_module.run_forward(features, bias, features)
    assert torch.equal(features, expected)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("shape", [(8, 32, 112, 112), (8, 144, 28, 28), (16, 1280, 7, 7)])
def test_real_sizes_in_bfloat16_give_the_same_bits_twice(shape):
    features, bias = example(shape, torch.bfloat16, DEVICE)
    features = features.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    compare_with_plain(features, bias.detach().float().requires_grad_(), 0.05)
    results = []
    for _ in range(2):
        result = bias_relu6(features, bias)
        results.append([result, *torch.autograd.grad(result.float().square().sum(), (features, bias))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_switch_turns_kernels_off(monkeypatch):
    monkeypatch.setenv("PMPGUARD_KERNELS", "off")
    assert "BiasRelu6" not in type(bias_relu6(*example(dtype=torch.float32)).grad_fn).__name__
