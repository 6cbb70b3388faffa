"""OpenCLIP's weights and settings in Hugging Face's terms, and the folder that `pmpguard convert` writes."""

import json

import pytest
import torch
from helpers.openclip_weights import openclip_names, save_tokenizer, tiny_clip
from torch import nn
from torch.nn import functional as F

import pmpguard
from pmpguard.cli.convert_weights import convert
from pmpguard.errors import ModelError, PmpguardError
from pmpguard.models.checkpoints import load_exactly, write_safetensors
from pmpguard.models.openclip import convert_openclip, known_head_width, weights_file
from pmpguard.models.openclip_config import OpenClipConfig, read_openclip_config
from pmpguard.search.index.model_identity import identify_model, keep_model

WIDTHS = {"activation": "quick_gelu", "head_width": 8, "text_head_width": 4}


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
    clip = convert_openclip(weights, OpenClipConfig(activation, head_width=8, text_head_width=4))
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
    result = convert(tmp_path / "clip.pt", tmp_path / "out", **WIDTHS)
    assert (result.image_size, result.patch_size, result.dim, result.has_tokenizer) == (32, 8, 24, False)
    assert "Tokenizer files are missing" in result.as_text()
    model = CLIPModel.from_pretrained(tmp_path / "out")
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-3, atol=1e-3)
    assert model.config.text_config.eos_token_id == 49


def test_convert_reads_safetensors_and_copies_the_tokenizer(tmp_path):
    write_safetensors(tmp_path / "clip.safetensors", openclip_names(tiny_clip()))
    save_tokenizer(tmp_path / "tokenizer")
    result = convert(
        tmp_path / "clip.safetensors",
        tmp_path / "out",
        **WIDTHS,
        tokenizer=tmp_path / "tokenizer",
    )
    assert result.has_tokenizer and "missing" not in result.as_text()
    words = (tmp_path / "tokenizer" / "tokenizer.json").read_text()
    assert (tmp_path / "out" / "tokenizer.json").read_text() == words
    with pytest.raises(ModelError, match="no tokenizer files"):
        convert(tmp_path / "clip.safetensors", tmp_path / "other", tokenizer=tmp_path / "out" / "nowhere")
    assert not (tmp_path / "other").exists()


def test_a_foreign_tensor_and_a_missing_one_are_named():
    weights = openclip_names(tiny_clip())
    with pytest.raises(ModelError, match=r"visual\.layer1\.0\.conv1\.weight"):
        convert_openclip(weights | {"visual.layer1.0.conv1.weight": torch.zeros(1)}, OpenClipConfig())
    with pytest.raises(ModelError, match=r"'visual\.ln_9\.weight' has no place"):
        convert_openclip(weights | {"visual.ln_9.weight": torch.zeros(1)}, OpenClipConfig())
    with pytest.raises(ModelError, match="not the weights of a ViT CLIP"):
        convert_openclip({"features.0.weight": torch.zeros(1)}, OpenClipConfig())
    del weights["token_embedding.weight"]
    with pytest.raises(ModelError, match="token_embedding"):
        convert_openclip(weights, OpenClipConfig(**WIDTHS))


def test_a_converted_model_embeds_as_its_twin(tmp_path):
    from transformers import CLIPModel

    from pmpguard.models.encoders.image import pretrained_image_encoder

    twin = tiny_clip().eval()
    torch.save(openclip_names(twin), tmp_path / "clip.pt")
    convert(tmp_path / "clip.pt", tmp_path / "out", **WIDTHS)
    encoder = pretrained_image_encoder(str(tmp_path / "out"), dim=24, image_size=32).eval()
    pixels = torch.randn(3, 3, 32, 32)  # normalised already
    with torch.no_grad():
        wanted = twin.get_image_features(pixel_values=pixels)
        wanted = getattr(wanted, "pooler_output", wanted)
        found = encoder(pixels).pooled
    torch.testing.assert_close(found, torch.nn.functional.normalize(wanted, dim=-1), atol=1e-4, rtol=1e-4)
    assert isinstance(twin, CLIPModel)


def converted(tmp_path):
    """A converted CLIP with its tokenizer, and the model it was."""
    twin = tiny_clip()
    torch.save(openclip_names(twin), tmp_path / "clip.pt")
    save_tokenizer(tmp_path / "words")
    convert(tmp_path / "clip.pt", tmp_path / "clip", **WIDTHS, tokenizer=tmp_path / "words")
    return tmp_path / "clip", twin


def test_a_converted_folder_ranks_without_training_as_its_twin(tmp_path):
    folder, twin = converted(tmp_path)
    model = pmpguard.load(folder)
    assert (model.config.ranking, model.config.max_tokens, model.config.image_size) == ("pooled", 10, 32)
    assert model.cross_gated_attention is None and not model.training
    generator = torch.Generator().manual_seed(4)
    pixels = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=generator)
    captions = ["a round pond", "two planes near a farm"]
    ids = torch.tensor([[48, 1, 3, 2, 49, 49, 49], [48, 4, 5, 6, 1, 7, 49]])
    assert model.tokenize(captions)[0].tolist() == ids.tolist()
    with torch.no_grad():
        logits = twin(input_ids=ids, pixel_values=model.normalise(pixels)).logits_per_text
    cosines = logits / twin.logit_scale.detach().exp()
    torch.testing.assert_close(model.score(captions, pixels), cosines, atol=1e-5, rtol=1e-4)


def test_a_converted_folder_is_a_model_to_the_index_and_survives_a_save(tmp_path):
    folder, _ = converted(tmp_path)
    identity = identify_model(folder)
    assert identity.dim == 24 and "32 px in patches of 8" in identity.name
    keep_model(folder, tmp_path / "kept")
    assert identify_model(tmp_path / "kept") == identity
    (folder / "manifest.json").unlink()  # as from the Hub
    assert identify_model(folder) == identity
    model, kept = pmpguard.load(folder), pmpguard.load(tmp_path / "kept")
    model.save(tmp_path / "saved")
    saved = pmpguard.load(tmp_path / "saved")
    expected = model.encode_query("a pond")
    for other in (kept, saved):
        assert torch.equal(other.encode_query("a pond"), expected)


def test_a_changed_file_of_a_converted_folder_is_named(tmp_path):
    folder, _ = converted(tmp_path)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(PmpguardError, match=r"model\.safetensors: content differs"):
        pmpguard.load(folder)


def test_what_cannot_rank_without_training_says_why(tmp_path):
    folder, _ = converted(tmp_path)
    for name in ("tokenizer.json", "manifest.json"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="no tokenizer files") as refused:
        pmpguard.load(folder)
    assert "openai/clip-vit-base-patch32" in refused.value.fix
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="'bert' model of Hugging Face cannot rank without training"):
        pmpguard.load(folder)


def test_settings_beside_the_weights_are_used(tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    twin = tiny_clip("gelu")
    write_safetensors(folder / "open_clip_model.safetensors", openclip_names(twin))
    save_tokenizer(folder)
    settings = {
        "model_cfg": {
            "vision_cfg": {"width": 32, "head_width": 8, "image_size": 32},
            "text_cfg": {"width": 16, "heads": 4, "context_length": 12, "vocab_size": 50},
        },
        "preprocess_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.1, 0.2, 0.3]},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    result = convert(folder, tmp_path / "out")
    assert (result.heads, result.activation, result.max_tokens, result.has_tokenizer) == (4, "gelu", 10, True)
    processor = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert processor["crop_size"] == {"height": 32, "width": 32} and processor["image_mean"] == [
        0.4,
        0.5,
        0.6,
    ]
    images = pmpguard.load(tmp_path / "out").image_encoder
    assert images.architecture.std == (0.1, 0.2, 0.3)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = twin.get_image_features(pixel_values=pixels).pooler_output
    torch.testing.assert_close(images(pixels).pooled, F.normalize(wanted, dim=-1), atol=1e-4, rtol=1e-4)
    settings["model_cfg"]["quick_gelu"] = True
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    assert read_openclip_config(folder).activation == "quick_gelu"
    (folder / "open_clip_config.json").write_text('{"model_cfg": 3}')
    with pytest.raises(ModelError, match="not the settings of an OpenCLIP model"):
        read_openclip_config(folder)


def test_what_neither_weights_nor_settings_tell_is_asked_for():
    weights = openclip_names(tiny_clip())
    with pytest.raises(ModelError, match="do not tell their activation"):
        convert_openclip(weights, OpenClipConfig(head_width=8, text_head_width=4))
    with pytest.raises(ModelError, match="vision tower is 32 wide") as refused:
        convert_openclip(weights, OpenClipConfig("gelu"))
    assert "--head_width" in refused.value.fix
    with pytest.raises(ModelError, match="text tower is 16 wide"):
        convert_openclip(weights, OpenClipConfig("gelu", head_width=8))


def test_heads_of_the_usual_widths():
    """ViT-B/32, ViT-L/14, ViT-H/14, ViT-g/14 and ViT-bigG/14 of OpenCLIP."""
    heads = {768: 12, 1024: 16, 1280: 16, 1408: 16, 1664: 16}
    assert {width: width // known_head_width("vision", width) for width in heads} == heads
    heads = {512: 8, 768: 12, 1024: 16, 1280: 20}
    assert {width: width // known_head_width("text", width) for width in heads} == heads


def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(ModelError, match="holds none of open_clip_model"):
        weights_file(tmp_path)
