"""The fused depthwise convolution against plain operations in float64.

Tests of the kernels run on CUDA, or anywhere with Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import pytest
import torch
from helpers.kernel_marks import DEVICE, captured, needs_cuda, needs_kernels
from torch import Tensor
from torch.nn import functional as F

from pmpguard.kernels.convolution import depthwise
from pmpguard.kernels.convolution.bias_relu6 import channel_block
from pmpguard.kernels.convolution.depthwise import Window, cut, depthwise_relu6, run_backward, taps_of
from pmpguard.models.encoders.convnets import same_padding

ERROR = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, of a rounded result
Padding = int | tuple[int, int, int, int]


def example(shape: tuple[int, ...], kernel: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Features, weight and bias; about a third of the result leaves [0, 6]."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(shape, generator=generator) * 3
    weight = torch.randn(shape[1], 1, kernel, kernel, generator=generator) / kernel
    bias = torch.randn(shape[1], generator=generator) + 2.5
    features = features.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)
    return [features, weight.to(DEVICE), bias.to(DEVICE)]


def exactly(features: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: Padding) -> Tensor:
    """Before the clamp."""
    top, bottom, left, right = (padding,) * 4 if isinstance(padding, int) else padding
    padded = F.pad(features, (left, right, top, bottom))
    return F.conv2d(padded, weight, bias, stride, groups=len(weight))


def compare(inputs: list[Tensor], stride: int, padding: Padding) -> None:
    """The result and all gradients; places where rounding decides about the clamp get no gradient."""
    features = inputs[0]
    own = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    if features.is_contiguous(memory_format=torch.channels_last):
        assert own[0].is_contiguous(memory_format=torch.channels_last)
    found = depthwise_relu6(own[0], own[1], own[2], stride, padding)
    assert type(found.grad_fn).__name__ == "_DepthwiseBackward"
    assert found.dtype == features.dtype and found.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert torch.equal(depthwise_relu6(*inputs, stride, padding), found)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    raw = exactly(*exact, stride, padding)
    expected = raw.clamp(0, 6)
    assert found.shape == expected.shape
    error = ERROR[features.dtype]
    torch.testing.assert_close(found.double(), expected, atol=6 * error, rtol=0)
    clear = (raw.abs() > 6 * error) & ((raw - 6).abs() > 12 * error)
    incoming = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(found) * clear
    gradients = torch.autograd.grad(found, own, incoming)
    wanted = torch.autograd.grad(expected, exact, incoming.double())
    for gradient, right, given in zip(gradients, wanted, inputs, strict=True):
        assert gradient.dtype == given.dtype and gradient.shape == given.shape
        # Only the features' gradient is rounded to their type: sums are float32.
        allowed = error if gradient.dtype == features.dtype else ERROR[torch.float32] * 10
        torch.testing.assert_close(
            gradient.double(), right, atol=allowed * right.abs().max().item(), rtol=allowed
        )


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(2, 16, 7, 6), (1, 3, 9, 10), (1, 144, 4, 4), (3, 33, 2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_plain_operations(
    kernel: int, stride: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    inputs = example(shape, kernel, dtype)
    compare(inputs, stride, kernel // 2)
    rows, columns = (same_padding(size, kernel, stride) for size in shape[2:])
    compare(inputs, stride, (*rows, *columns))


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "padding"),
    [
        (3, 0), (3, (2, 0, 0, 2)), (3, (0, 2, 2, 0)), (3, (0, 1, 1, 0)),
        (5, 0), (5, (4, 0, 1, 3)), (5, (1, 2, 3, 0)), (5, (0, 4, 4, 0)),
    ],
)  # fmt: skip
def test_every_padding(kernel: int, padding: Padding, stride: int) -> None:
    compare(example((2, 8, 8, 7), kernel, torch.float32), stride, padding)


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_strips_and_blocks_meet(kernel: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several strips of rows, lanes that cross images, a last block with few channels."""
    monkeypatch.setattr(depthwise, "PROGRAMS", 1000)
    monkeypatch.setattr(depthwise, "SHORTEST_STRIP", 3)
    compare(example((3, 40, 10, 5), kernel, torch.float32), stride, kernel // 2)
    monkeypatch.setattr(depthwise, "SHORTEST_STRIP", 1)
    compare(example((2, 5, 7, 3), kernel, torch.float32), stride, (kernel // 2, kernel // 2, 0, kernel - 1))


@pytest.mark.gpu
@needs_kernels
def test_any_layout_of_the_features() -> None:
    features, weight, bias = example((2, 12, 6, 9), 3, torch.float32)
    compare([features.contiguous(), weight, bias], 1, 1)
    compare([features.transpose(2, 3), weight, bias], 1, 1)
    compare([features[:, ::2, :, 1:], weight[::2], bias[::2]], 2, 1)


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("stride", [1, 2])
def test_the_clamp_of_the_features_themselves(stride: int) -> None:
    """As if they were a relu6: no gradient where they are 0 or 6, and the sum of the rest."""
    features, weight, bias = example((2, 20, 6, 7), 3, torch.float32)
    features = features.clamp(0, 6)
    window = Window(3, stride, 1, 1, 1, 1)
    result = depthwise_relu6(features, weight, bias, stride, 1)
    incoming = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    whole, sums = run_backward(incoming, result, features, taps_of(weight), window)
    found, clamped_sums = run_backward(incoming, result, features, taps_of(weight), window, clamped=True)
    inner = (features > 0) & (features < 6)
    assert 0 < inner.sum() < inner.numel()
    assert torch.equal(found, whole * inner) and torch.equal(clamped_sums[:-1], sums[:-1])
    torch.testing.assert_close(clamped_sums[-1], found.sum((0, 2, 3)))


@pytest.mark.gpu
@needs_kernels
def test_weights_of_half_precision_get_gradients_of_their_type() -> None:
    features, weight, bias = example((2, 16, 5, 5), 3, torch.float16)
    own = [features.requires_grad_(), weight.half().requires_grad_(), bias.half().requires_grad_()]
    result = depthwise_relu6(own[0], own[1], own[2], 1, 1)
    for gradient, given in zip(torch.autograd.grad(result.sum(), own), own, strict=True):
        assert gradient.dtype == given.dtype and gradient.any()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("tensorflow", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "channels", "size"),
    [
        (3, 1, 32, 112), (3, 2, 96, 112), (3, 1, 144, 56), (3, 2, 144, 56), (3, 1, 192, 28), (3, 1, 576, 14),
        (3, 1, 960, 7), (5, 2, 144, 56), (5, 1, 240, 28), (5, 1, 672, 14), (5, 2, 672, 14), (5, 1, 1152, 7),
    ],
)  # fmt: skip
def test_sizes_of_real_models(kernel: int, stride: int, channels: int, size: int, tensorflow: bool) -> None:
    inputs = example((4, channels, size, size), kernel, torch.bfloat16)
    padding = same_padding(size, kernel, stride)
    compare(inputs, stride, (*padding, *padding) if tensorflow else kernel // 2)


@pytest.mark.gpu
@needs_cuda
def test_more_than_two_to_the_31_numbers() -> None:
    """The last image of a batch too long for 32-bit places."""
    images = 2**31 // (32 * 112 * 112) + 2
    features = torch.zeros(images, 32, 112, 112, device=DEVICE, dtype=torch.bfloat16).contiguous(
        memory_format=torch.channels_last
    )
    last, weight, bias = example((1, 32, 112, 112), 3, torch.bfloat16)
    features[-1:] = last
    features.requires_grad_()
    result = depthwise_relu6(features, weight, bias, 2, 1)
    assert torch.equal(result[-1:], depthwise_relu6(last, weight, bias, 2, 1))
    (gradient,) = torch.autograd.grad(result[-1:].float().sum(), features)
    last.requires_grad_()
    (alone,) = torch.autograd.grad(depthwise_relu6(last, weight, bias, 2, 1).float().sum(), last)
    assert torch.equal(gradient[-1:], alone) and alone.any()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_runs_give_the_same_bits_and_can_be_captured_in_a_graph(kernel: int, stride: int) -> None:
    features, weight, bias = example((8, 144, 28, 28), kernel, torch.bfloat16)
    own = [features.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]

    def step() -> list[Tensor]:
        result = depthwise_relu6(own[0], own[1], own[2], stride, kernel // 2)
        return [result, *torch.autograd.grad(result.float().square().sum(), own)]

    graph, results = captured(step)
    with torch.no_grad():
        features.copy_(features.flip(0))
        weight.copy_(weight.flip(0))
    graph.replay()
    replayed = [tensor.clone() for tensor in results]
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(replayed, step(), strict=True))


@pytest.mark.gpu
@needs_kernels
def test_autocast_rounds_the_features() -> None:
    if DEVICE.type == "cpu":
        pytest.skip("autocast to float16 is for CUDA")
    features, weight, bias = example((2, 16, 5, 5), 3, torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        found = depthwise_relu6(features, weight, bias, 1, 1)
    assert torch.equal(found, depthwise_relu6(features.bfloat16(), weight, bias, 1, 1))


@pytest.mark.parametrize("padding", [1, (0, 1, 1, 0), (2, 2, 2, 2)])
def test_what_kernels_cannot_do_is_the_plain_operations(padding: Padding) -> None:
    """Double precision, on any device."""
    inputs = [tensor.double().requires_grad_() for tensor in example((2, 6, 7, 5), 3, torch.float32)]
    found = depthwise_relu6(inputs[0], inputs[1], inputs[2], 2, padding)
    expected = exactly(*inputs, 2, padding).clamp(0, 6)
    torch.testing.assert_close(found, expected)
    for gradient, right in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(gradient, right)


def test_the_switch_turns_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMPGUARD_KERNELS", "off")
    inputs = [tensor.requires_grad_() for tensor in example((2, 6, 7, 5), 3, torch.float32)]
    found = depthwise_relu6(inputs[0], inputs[1], inputs[2], 1, 1)
    assert "Depthwise" not in type(found.grad_fn).__name__
    torch.testing.assert_close(found, exactly(*inputs, 1, 1).clamp(0, 6))


@pytest.mark.parametrize("channels", [1, 16, 17, 96, 144, 960, 1152])
@pytest.mark.parametrize("rows", [1, 7, 112])
@pytest.mark.parametrize("images", [1, 256])
def test_the_cut_covers_everything_once(images: int, channels: int, rows: int) -> None:
    launch = {"vector": 4, "num_warps": 4}
    grid = cut(images, channels, rows, groups=-(-rows // 2), columns=2, multiple=2, launch=launch)
    assert grid.strip % 2 == 0 and (grid.strips - 1) * grid.strip < rows <= grid.strips * grid.strip
    block = channel_block(channels)
    assert (grid.channel_blocks - 1) * block < channels <= grid.channel_blocks * block
    assert (grid.lane_blocks - 1) * grid.lanes_each < grid.lanes <= grid.lane_blocks * grid.lanes_each
    assert grid.lanes_each * block == 4 * 128
