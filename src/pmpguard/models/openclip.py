"""CLIP weights of OpenCLIP and OpenAI in Hugging Face's terms, with the settings that rebuild the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmpguard.errors import ModelError
from pmpguard.models.checkpoints import Weights
from pmpguard.models.openclip_config import Activation, OpenClipConfig

WEIGHT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_HUGGING_FACE = "give its folder in Hugging Face's form where there is one (config.json, model.safetensors)"
# Part of a tensor's name, what such a model is, and what to do.
OTHER_KINDS = (
    ("text_decoder.", "a CoCa", "its captioner has no place here: give a CLIP"),
    ("visual.attn_pool.", "a CLIP with attention pooling, such as a CoCa's,", "give a CLIP with a plain ViT"),
    ("visual.layer1.", "a CLIP with a ResNet (ModifiedResNet: RN50, RN101)", "give one with a ViT"),
    ("visual.trunk.", "a CLIP with a vision tower of timm (SigLIP, MobileCLIP, ConvNeXt)", _HUGGING_FACE),
    ("visual.blocks.", "an EVA-CLIP", _HUGGING_FACE),
    ("image_encoder.model.", "a MobileCLIP in Apple's own form", _HUGGING_FACE),
    ("vision_model.encoder.", "a CLIP in Hugging Face's form", "give the folder of its config.json instead"),
    ("text.transformer.embeddings.", "a CLIP with a text tower of Hugging Face", _HUGGING_FACE),
    ("text.transformer.encoder.", "a CLIP with a text tower of Hugging Face", _HUGGING_FACE),
)
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
_IN_PROJECTION = ("q_proj", "k_proj", "v_proj")
_CLIP_TRANSPOSED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
_CLIP_IGNORED = {"attn_mask", "input_resolution", "context_length", "vocab_size"}


@dataclass(frozen=True)
class ConvertedClip:
    """A CLIP in Hugging Face's terms: the settings of `CLIPConfig` and the weights of `CLIPModel`."""

    settings: dict[str, Any]
    weights: Weights


def convert_openclip(weights: Weights, given: OpenClipConfig) -> ConvertedClip:
    """Translate an OpenCLIP or OpenAI state dict of a ViT CLIP.

    The number of heads is not in the weights: it is a tower's width divided by its heads' width, which is
    known for the usual widths. Nor is the activation: OpenAI's weights and those tuned from them use
    `quick_gelu`, OpenCLIP's own `gelu`. `given` is what stands beside the weights, or was asked for.
    """
    refuse_other_kinds(weights)
    custom = any(name.startswith("text.") for name in weights)  # the text tower under its own name
    named = {name.removeprefix("text."): value for name, value in weights.items()} if custom else weights
    if "visual.conv1.weight" not in named or "visual.proj" not in named:
        raise ModelError(
            "not the weights of a ViT CLIP: no visual.conv1.weight or visual.proj",
            fix="give the state dict of a whole OpenCLIP or OpenAI model with a ViT",
        )
    result: Weights = {}
    for name, tensor in named.items():
        layer = re.fullmatch(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)\.(\w+)", name)
        in_projection = re.fullmatch(r"(visual\.)?transformer\.resblocks\.(\d+)\.attn\.in_proj_(\w+)", name)
        if in_projection:
            tower = "vision_model" if in_projection[1] else "text_model"
            for part, values in zip(_IN_PROJECTION, tensor.chunk(3), strict=True):
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
            raise ModelError(
                f"tensor {name!r} has no place in a ViT CLIP",
                fix="give a CLIP of OpenAI's or OpenCLIP's plain ViTs (B, L, H, g, bigG)",
            )
    if given.activation is None:
        raise ModelError(
            "the weights do not tell their activation",
            fix="--activation quick_gelu for OpenAI's weights and those tuned from them (GeoRSCLIP's and "
            "RemoteCLIP's ViT-B-32 and ViT-L-14), gelu for OpenCLIP's own (LAION's, ViT-H)",
        )
    return ConvertedClip(_clip_settings(result, given.activation, given), result)


def openclip_weights(weights: Mapping[str, Tensor]) -> Weights:
    """The way back: a `CLIPModel`'s tensors under OpenCLIP's names."""
    result: Weights = {}
    for ours, theirs in _CLIP_NAMES.items():
        result[ours] = weights[theirs]
    for ours, theirs in _CLIP_TRANSPOSED.items():
        result[ours] = weights[theirs].T.contiguous()
    for tower, prefix in (("vision_model", "visual."), ("text_model", "")):
        layers = sorted(
            {name.split(".")[3] for name in weights if name.startswith(f"{tower}.encoder.layers.")}
        )
        for layer in layers:
            source, target = f"{tower}.encoder.layers.{layer}", f"{prefix}transformer.resblocks.{layer}"
            for kind in ("weight", "bias"):
                parts = [weights[f"{source}.self_attn.{part}.{kind}"] for part in _IN_PROJECTION]
                result[f"{target}.attn.in_proj_{kind}"] = torch.cat(parts)
                for ours, theirs in _CLIP_LAYER.items():
                    result[f"{target}.{ours}.{kind}"] = weights[f"{source}.{theirs}.{kind}"]
    return result


def refuse_other_kinds(weights: Weights) -> None:
    """Name the kinds of CLIP that Hugging Face's CLIP cannot hold."""
    for mark, kind, fix in OTHER_KINDS:
        found = next((name for name in weights if mark in name), None)
        if found is not None:
            raise ModelError(f"{kind} (tensor {found!r}) is not converted", fix=fix)


def _clip_settings(weights: Weights, activation: Activation, given: OpenClipConfig) -> dict[str, Any]:
    """Read every size off the translated tensors, and hold it against what the settings say."""
    try:
        patches = weights["vision_model.embeddings.patch_embedding.weight"]  # (width, 3, patch, patch)
        places = weights["vision_model.embeddings.position_embedding.weight"].shape[0]
        words = weights["text_model.embeddings.token_embedding.weight"]  # (vocabulary, width)
        length = weights["text_model.embeddings.position_embedding.weight"].shape[0]
        dim = weights["text_projection.weight"].shape[0]
        towers = {}
        for tower, width, head, epsilon in (
            ("vision", patches.shape[0], given.head_width, given.epsilon),
            ("text", words.shape[1], given.text_head_width, given.text_epsilon),
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
                "layer_norm_eps": epsilon,
                "projection_dim": dim,
            }
    except KeyError as error:
        raise ModelError(f"the CLIP weights lack {error}", fix="give the whole model's state dict") from error
    patch = patches.shape[-1]
    size, vocabulary = patch * round((places - 1) ** 0.5), words.shape[0]
    for name, told, held in (
        ("vision_cfg.image_size", given.image_size, size),
        ("text_cfg.context_length", given.context_length, length),
        ("text_cfg.vocab_size", given.vocabulary, vocabulary),
    ):
        if told not in (None, held):
            raise ModelError(
                f"{name} is {told}, but the weights are of {held}", fix="restore the file beside the weights"
            )
    towers["vision"] |= {"patch_size": patch, "image_size": size}
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


def weights_file(source: Path) -> Path:
    """The file of weights: the path itself, or the one an OpenCLIP folder of the Hub holds."""
    if not source.is_dir():
        return source
    for name in WEIGHT_FILES:
        if (source / name).is_file():
            return source / name
    raise ModelError(f"{source}: holds none of {', '.join(WEIGHT_FILES)}", fix="give the path of the weights")
