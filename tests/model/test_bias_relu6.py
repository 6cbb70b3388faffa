"""relu6(x + bias): the plain operations against loops, the fused kernel against the plain operations."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from pmpguard.model.bias_relu6 import bias_relu6


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


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="needs CUDA and Triton",
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (3, 96, 17, 13)])  # less than one block, many blocks
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_fused_kernel_equals_the_plain_operations(dtype, tolerance, shape, channels_last):
    features, bias = example(shape, dtype, "cuda")
    layout = torch.channels_last if channels_last else torch.contiguous_format
    fused = bias_relu6(features.contiguous(memory_format=layout), bias)
    assert type(fused.grad_fn).__name__ == "_BiasRelu6Backward" and fused.dtype == dtype
    incoming = torch.randn_like(fused)
    found = torch.autograd.grad(fused, (features, bias), incoming)
    exact = [tensor.detach().double().cpu().requires_grad_() for tensor in (features, bias)]
    plain = bias_relu6(*exact)
    expected = torch.autograd.grad(plain, exact, incoming.double().cpu())
    torch.testing.assert_close(fused.double().cpu(), plain, atol=tolerance, rtol=tolerance)
    raw = exact[0] + exact[1].view(-1, 1, 1)
    clear = (raw.abs() > tolerance) & ((raw - 6).abs() > tolerance)  # at the ends rounding may decide
    assert clear.double().mean() > 0.95 and (expected[0][clear] == 0).any()
    passed = found[0].double().cpu()
    assert torch.equal(passed[clear], expected[0][clear])
    torch.testing.assert_close(found[1].double().cpu(), passed.sum((0, 2, 3)), atol=1e-3, rtol=tolerance)
