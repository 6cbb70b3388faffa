"""A CLIP folder in Hugging Face's form as a retriever without any training: pooled vectors, zero-shot.

`pmpguard convert` writes such folders; one downloaded from the Hub is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmpguard.errors import ModelError
from pmpguard.models.config import CrossGatedConfig, RetrieverConfig

SPECIAL_TOKENS = 2  # begin and end of the text
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
TOKENIZER_FIX = (
    "copy tokenizer.json (or vocab.json and merges.txt) of openai/clip-vit-base-patch32 into the folder; all "
    "CLIPs of this kind share them"
)


def is_hugging_face(stored: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is one of Hugging Face's and not of a retriever."""
    return "format" not in stored and isinstance(stored.get("model_type"), str)


def clip_config(folder: Path, stored: Mapping[str, Any]) -> RetrieverConfig:
    """The retriever that ranks as the CLIP in `folder` does; sizes are those of its own `config.json`."""
    if stored["model_type"] != "clip":
        raise ModelError(
            f"{folder}: a {stored['model_type']!r} model of Hugging Face cannot rank without training",
            fix="give a CLIP folder, or train with --model.vision or --model.text set to this folder",
        )
    if not has_tokenizer(folder):
        raise ModelError(f"{folder}: no tokenizer files", fix=TOKENIZER_FIX)
    vision, text = stored.get("vision_config") or {}, stored.get("text_config") or {}
    return RetrieverConfig(  # sizes left out of the file are those of CLIP ViT-B/32
        vision=str(folder),
        text=str(folder),
        dim=int(stored.get("projection_dim", 512)),
        image_size=int(vision.get("image_size", 224)),
        max_tokens=int(text.get("max_position_embeddings", 77)) - SPECIAL_TOKENS,
        cross_gated=CrossGatedConfig(use=False),
        ranking="pooled",
    )


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds what CLIP's tokenizer is made of."""
    names = {name for name in TOKENIZER_FILES if (folder / name).is_file()}
    return "tokenizer.json" in names or {"vocab.json", "merges.txt"} <= names


def model_summary(stored: Mapping[str, Any]) -> tuple[str, int]:
    """What to call a model and the dimension of its vectors, from the `config.json` of its folder."""
    if is_hugging_face(stored):
        vision = stored.get("vision_config") or {}
        size, patch = vision.get("image_size", 224), vision.get("patch_size", 32)
        return f"CLIP at {size} px in patches of {patch}, ranked by pooled", int(
            stored.get("projection_dim", 512)
        )
    config = stored["retriever"]
    name = f"{config['vision']} + {config['text']}, ranked by {config['ranking']}"
    return name, int(config["dim"])
