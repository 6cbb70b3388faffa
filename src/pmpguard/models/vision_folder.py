"""A folder of a vision model of Hugging Face, without a text tower, as a retriever: images find images.

Vectors are those the family itself compares images by: its pooled output where it has one, its class token,
or the mean of its regions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmpguard.data.images.framing import Framing
from pmpguard.errors import ModelError
from pmpguard.files import read_json
from pmpguard.models.config import CrossGatedConfig, RetrieverConfig
from pmpguard.models.encoders.text import NO_TEXTS

FAMILIES = (
    "beit",
    "convnext",
    "convnextv2",
    "data2vec-vision",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "ijepa",
    "resnet",
    "swin",
    "swinv2",
    "vit",
    "vit_mae",
    "vit_msn",
)
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def is_vision_only(stored: Mapping[str, Any]) -> bool:
    """Whether a Hugging Face `config.json` is of a vision model that is known here."""
    return stored.get("model_type") in FAMILIES


def vision_width(stored: Mapping[str, Any]) -> int:
    """The dimension of a vision model's vectors."""
    if "hidden_sizes" in stored:
        return int(stored["hidden_sizes"][-1])
    if "embed_dim" in stored and "depths" in stored:  # windowed: doubled from stage to stage
        return int(stored["embed_dim"]) << (len(stored["depths"]) - 1)
    return int(stored.get("hidden_size", 768))


def vision_summary(stored: Mapping[str, Any]) -> tuple[str, int]:
    """What to call a vision model and the dimension of its vectors, from its `config.json`."""
    return f"{stored['model_type']}, images only", vision_width(stored)


def vision_config(folder: Path, stored: Mapping[str, Any]) -> tuple[RetrieverConfig, Framing]:
    """The retriever of images alone that a folder makes, and how it takes images."""
    size, framing = vision_framing(folder, stored)
    config = RetrieverConfig(
        vision=str(folder),
        text=NO_TEXTS,
        dim=vision_width(stored),
        image_size=size,
        cross_gated=CrossGatedConfig(use=False),
        ranking="pooled",
    )
    return config, framing


def vision_framing(folder: Path, stored: Mapping[str, Any]) -> tuple[int, Framing]:
    """The side in pixels and what `preprocessor_config.json` does; without one images are squashed."""
    path = folder / "preprocessor_config.json"
    pixels = read_json(path) if path.is_file() else {}
    resample = RESAMPLE.get(pixels.get("resample", 3))
    if resample is None or pixels.get("do_resize") is False:
        fix = "restore the file that belongs to this model, or correct it by hand"
        raise ModelError(f"{path}: resample is {pixels.get('resample')}, or nothing is resized", fix=fix)
    wanted = pixels.get("size", stored.get("image_size", 224))
    whole = _edge(wanted)
    if "crop_size" in pixels and pixels.get("do_center_crop", True):
        size = _edge(pixels["crop_size"])
        return size, Framing("crop", resample, 0 if whole == size else whole)  # type: ignore[arg-type]
    if isinstance(wanted, dict) and "shortest_edge" in wanted:
        before = int(whole / pixels.get("crop_pct", 1.0))
        return whole, Framing("crop", resample, 0 if before == whole else before)  # type: ignore[arg-type]
    return whole, Framing("squash", resample)  # type: ignore[arg-type]


def _edge(size: Any) -> int:
    """One side of a size, however it is written."""
    if isinstance(size, dict):
        size = size.get("shortest_edge", size.get("height", 224))
    return int(size[0] if isinstance(size, list) else size)
