"""Regions that hold earlier stages, for every kind of vision backbone."""

import pytest
import torch
from helpers.vision_checkpoints import SAVERS, save_clip
from torch import nn

from pmpguard.errors import ConfigError
from pmpguard.models.encoders.convnets import MobileNetV2
from pmpguard.models.encoders.image import (
    EncoderOptions,
    ImageArchitecture,
    ImageEncoder,
    pretrained_image_encoder,
)
from pmpguard.models.encoders.multi_scale import earlier_stages, on_grid

WIDTHS = {"tiny": 128 + 64 + 128, "swin": 16 + 16, "vit": 16 + 16, "clip": 16 + 16, "resnet": 16 + 8}


def encoder(name, folder, multi_scale=True, options=None):
    torch.manual_seed(0)
    size = 64
    if name != "tiny":
        size = SAVERS[name](folder)[0]
        torch.manual_seed(0)
    source = name if name == "tiny" else str(folder)
    return pretrained_image_encoder(
        source, 12, size, options or EncoderOptions(), multi_scale=multi_scale
    ).eval()


def pixels(size, count=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("name", WIDTHS)
def test_earlier_stages_come_after_the_last_one(name, tmp_path):
    model = encoder(name, tmp_path)
    plain = ImageEncoder(ImageArchitecture(**{**vars(model.architecture), "multi_scale": False}), 12).eval()
    plain.backbone.load_state_dict(model.backbone.state_dict())
    images = pixels(model.architecture.image_size)
    rich, last = model.tokens(images), plain.tokens(images)
    assert model.width == WIDTHS[name] and model.regions == plain.regions
    assert torch.equal(rich.fragments[..., : plain.width], last.fragments)
    assert torch.equal(rich.pooled[:, : plain.width], last.pooled)
    assert torch.equal(model.tokens(images).fragments, rich.fragments)  # nothing is left over from before
    torch.testing.assert_close(model.tokens(images[1:2]).fragments, rich.fragments[1:2], atol=1e-5, rtol=1e-4)
    earlier = rich.fragments[..., plain.width :]
    torch.testing.assert_close(rich.pooled[:, plain.width :], earlier.mean(1))
    twin = ImageEncoder(model.architecture, 12).eval()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(images).pooled, model(images).pooled)


def test_on_grid_averages_and_normalises():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 5, 4, 4, generator=generator, dtype=torch.float64)
    found = on_grid(features, 2)
    for n in range(2):
        for place in range(4):
            y, x = 2 * (place // 2), 2 * (place % 2)
            mean = features[n, :, y : y + 2, x : x + 2].mean((1, 2))
            expected = (mean - mean.mean()) / (mean.var(unbiased=False) + 1e-5).sqrt()
            torch.testing.assert_close(found[n, place], expected)
    tokens = torch.cat([torch.zeros(2, 1, 5).double(), features.flatten(2).transpose(1, 2)], 1)
    torch.testing.assert_close(on_grid((tokens, None), 2), found)  # with a class token in front


def test_gradients_reach_the_earlier_stages(tmp_path):
    model = encoder("tiny", tmp_path).train()
    first = model.projection.fragments.weight.data
    first[:, :128] = 0  # only earlier stages count
    model(pixels(64)).fragments.square().sum().backward()
    assert model.backbone.mix2.convolution.weight.grad.abs().sum() == 0
    model.zero_grad()
    model(pixels(64)).fragments[:, 0, 0].sum().backward()
    assert model.backbone.down1.convolution.weight.grad.abs().sum() > 0


def test_a_clip_with_stages_starts_with_its_own_embedding(tmp_path):
    save_clip(tmp_path)
    plain, rich = (
        pretrained_image_encoder(str(tmp_path), 12, 32, multi_scale=multi_scale).eval()
        for multi_scale in (False, True)
    )
    torch.testing.assert_close(plain(pixels(32)).pooled, rich(pixels(32)).pooled)


def test_the_stages_of_convolutional_nets_end_before_they_shrink():
    net = MobileNetV2()
    places = [list(net.blocks).index(block) for block in earlier_stages(net)]
    sizes, features = [], net.stem(torch.zeros(1, 3, 64, 64))
    for number, block in enumerate(net.blocks):
        features = block(features)
        if number in places:
            sizes.append(features.shape[-1])
    assert sizes == [16, 8, 4]


def test_unknown_backbones_are_refused():
    with pytest.raises(ConfigError, match="stages of Linear are not known"):
        earlier_stages(nn.Linear(2, 2))
