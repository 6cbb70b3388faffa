"""CLIP weights of OpenCLIP and OpenAI in Hugging Face's terms, with the settings that rebuild the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pmpguard.errors import ModelError
from pmpguard.files import read_json
from pmpguard.models.checkpoints import Weights
from pmpguard.models.encoders.pretrained import CLIP_MEAN, CLIP_STD

Activation = Literal["quick_gelu", "gelu"]
WEIGHT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
# Channels per attention head, by width: ViT-S, ViT-M, ViT-B, ViT-M+, ViT-L, ViT-H, ViT-g, ViT-bigG.
VISION_HEAD_WIDTHS = {384: 64, 512: 64, 768: 64, 896: 64, 1024: 64, 1280: 80, 1408: 88, 1664: 104}
TEXT_HEAD_WIDTHS = {384: 64, 512: 64, 640: 64, 768: 64, 1024: 64, 1280: 64}

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
    activation: Activation | None = None,
    head_width: int | None = None,
    text_head_width: int | None = None,
) -> ConvertedClip:
    """Translate an OpenCLIP or OpenAI state dict of a ViT CLIP.

    The number of heads is not in the weights: it is a tower's width divided by its heads' width, which is
    known for the usual widths. Nor is the activation: OpenAI's weights and those tuned from them use
    `quick_gelu`, OpenCLIP's own `gelu`.
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
    if activation is None:
        raise ModelError(
            "the weights do not tell their activation",
            fix="--activation quick_gelu for OpenAI's weights and those tuned from them (GeoRSCLIP's and "
            "RemoteCLIP's ViT-B-32 and ViT-L-14), gelu for OpenCLIP's own (LAION's, ViT-H)",
        )
    return ConvertedClip(_clip_settings(result, activation, head_width, text_head_width), result)


def _clip_settings(
    weights: Weights, activation: Activation, head_width: int | None, text_head_width: int | None
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
                "num_attention_heads": width // (head or known_head_width(tower, width)),
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


def known_head_width(tower: str, width: int) -> int:
    """Channels per attention head of OpenCLIP's and OpenAI's ViTs, by the tower's width.

    >>> known_head_width("vision", 1280), known_head_width("text", 1280)
    (80, 64)
    """
    known = TEXT_HEAD_WIDTHS if tower == "text" else VISION_HEAD_WIDTHS
    if width not in known:
        option = "--text_head_width" if tower == "text" else "--head_width"
        raise ModelError(
            f"the {tower} tower is {width} wide, which is none of the usual ({', '.join(map(str, known))})",
            fix=f"say how many channels each attention head has: {option}",
        )
    return known[width]


@dataclass(frozen=True)
class OpenClipConfig:
    """What an `open_clip_config.json` tells beyond the weights; None where it does not."""

    activation: Activation | None = None
    head_width: int | None = None
    text_head_width: int | None = None
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD


def read_openclip_config(folder: Path) -> OpenClipConfig:
    """The settings beside the weights, as the Hub stores them; nothing is known where there is no file."""
    path = folder / "open_clip_config.json"
    if not path.is_file():
        return OpenClipConfig()
    stored = read_json(path)
    try:
        model = stored["model_cfg"]
        vision, text = model["vision_cfg"], model["text_cfg"]
        heads = text.get("heads")
        pixels = stored.get("preprocess_cfg", {})
        return OpenClipConfig(
            activation="quick_gelu" if model.get("quick_gelu") else "gelu",
            head_width=int(vision.get("head_width", 64)),
            text_head_width=int(text["width"]) // int(heads) if heads else None,
            mean=tuple(map(float, pixels.get("mean", CLIP_MEAN))),
            std=tuple(map(float, pixels.get("std", CLIP_STD))),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"{path}: not the settings of an OpenCLIP model ({error})", fix="restore it, or move it away"
        ) from error


def weights_file(source: Path) -> Path:
    """The file of weights: the path itself, or the one an OpenCLIP folder of the Hub holds."""
    if not source.is_dir():
        return source
    for name in WEIGHT_FILES:
        if (source / name).is_file():
            return source / name
    raise ModelError(f"{source}: holds none of {', '.join(WEIGHT_FILES)}", fix="give the path of the weights")
