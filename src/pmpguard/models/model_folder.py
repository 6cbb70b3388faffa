"""A retriever on disk: a directory with its weights, settings, tokenizer and card.

A model over frozen pretrained encoders can be written as its head alone: everything but the backbones and
the tokenizer, which are found by name again and must be the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmpguard.config import from_dict, to_dict
from pmpguard.errors import ModelError, damage_named
from pmpguard.files import (
    MANIFEST,
    atomic_directory,
    read_json,
    recover_directory,
    verify_manifest,
    write_json,
)
from pmpguard.models.checkpoints import (
    Weights,
    check_size,
    load_exactly,
    read_safetensors,
    weights_fingerprint,
    write_safetensors,
)
from pmpguard.models.clip_folder import clip_config, clip_framing, is_hugging_face, what_to_give
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.encoders.image import ImageArchitecture, ImageEncoder
from pmpguard.models.encoders.text import TextArchitecture, TextEncoder, require_vocabulary
from pmpguard.models.hub import local_folder
from pmpguard.models.model_card import model_card
from pmpguard.models.tokenizer import Tokenizer
from pmpguard.models.vision_folder import is_vision_only, vision_config

if TYPE_CHECKING:
    from pmpguard.models.retriever import Retriever

FORMAT = 1  # of a saved model's directory
ENCODERS = "encoders"  # key of config.json: fingerprints of what a head alone is used with
BACKBONES = ("image_encoder.backbone.", "text_encoder.backbone.")


def save(model: Retriever, path: str | Path, notes: str = "", *, head_only: bool = False) -> None:
    """Write the model directory in one step; `notes` (Markdown) end the model card.

    With `head_only` the backbones and the tokenizer are left out, and fetched by their names when loading.
    """
    stored: dict[str, Any] = {
        "format": FORMAT,
        "retriever": to_dict(model.config),
        "image_encoder": to_dict(model.image_encoder.architecture),
        "text_encoder": to_dict(model.text_encoder.architecture),
    }
    weights: Weights = model.state_dict()
    if head_only:
        stored[ENCODERS] = encoder_fingerprints(model)
        weights = {
            name: value.half() if value.is_floating_point() and value.ndim > 1 else value
            for name, value in weights.items()
            if not name.startswith(BACKBONES)
        }
    with atomic_directory(Path(path)) as folder:
        write_safetensors(folder / "model.safetensors", weights)
        write_json(folder / "config.json", stored)
        if not head_only:
            (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
        (folder / "README.md").write_text(model_card(model, notes), encoding="utf-8")


def load(kind: type[Retriever], path: str | Path) -> Retriever:
    """Read a model directory, a CLIP's folder, or one of the Hub, in evaluation mode."""
    folder = local_folder(path)
    recover_directory(folder)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no model here", fix=what_to_give(folder))
    with damage_named(folder, "restore it from a copy", ModelError):
        stored = read_json(folder / "config.json")
        if not (is_hugging_face(stored) or "format" in stored or (folder / MANIFEST).is_file()):
            raise ModelError(f"{folder}: no model here", fix=what_to_give(folder))
        return read_folder(kind, folder, stored)


def read_folder(kind: type[Retriever], folder: Path, stored: Any) -> Retriever:
    """The model in a folder whose `config.json` has been read."""
    foreign = is_hugging_face(stored)
    if not foreign or (folder / MANIFEST).is_file():
        verify_manifest(folder)
    if foreign and is_vision_only(stored):
        config, framing = vision_config(folder, stored)
        return kind.create(config, framing=framing).eval()
    if foreign:
        config = clip_config(folder, stored)
        return kind.create(config, framing=clip_framing(folder, stored, config.input_size)).eval()
    if stored.get("format") != FORMAT:
        raise ModelError(
            f"{folder}/config.json: format {stored.get('format')!r}, expected {FORMAT}",
            fix="load it with the version of pmpguard that wrote it",
        )
    config = from_dict(RetrieverConfig, stored.get("retriever"), f"{folder}/config.json retriever")
    if ENCODERS in stored:
        return load_head(kind, folder, config, stored[ENCODERS])
    images = from_dict(ImageArchitecture, stored.get("image_encoder"), f"{folder}/config.json image_encoder")
    texts = from_dict(TextArchitecture, stored.get("text_encoder"), f"{folder}/config.json text_encoder")
    tokenizer = Tokenizer.load(folder / "tokenizer.json", texts.cleaning)

    def build() -> Retriever:
        return kind(
            config,
            ImageEncoder(images, config.dim, config.vision_options),
            TextEncoder(texts, config.dim, config.text_options),
            tokenizer,
        )

    check_size(folder / "model.safetensors", build)
    model = build()
    require_vocabulary(model.tokenizer, model.text_encoder, f"{folder}/tokenizer.json")
    load_exactly(model, read_safetensors(folder / "model.safetensors"), f"{folder}/model.safetensors")
    return model.eval()


def load_head(kind: type[Retriever], folder: Path, config: RetrieverConfig, encoders: Any) -> Retriever:
    """A model that is written as its head alone, with the encoders it was trained on."""
    model = kind.create(config)
    present = encoder_fingerprints(model)
    changed = [name for name, mark in present.items() if dict(encoders).get(name) != mark]
    if changed:
        raise ModelError(
            f"{folder}: the {changed[0]} on this machine is not the one it was trained with",
            fix="install the versions of the extra 'weights' that this release of pmpguard was made with",
        )
    weights = model.state_dict()
    kept = {name: value for name, value in weights.items() if name.startswith(BACKBONES)}
    head = read_safetensors(folder / "model.safetensors")
    load_exactly(model, kept | head, f"{folder}/model.safetensors")
    return model.eval()


def encoder_fingerprints(model: Retriever) -> dict[str, str]:
    """What a head alone must find again: both backbones and the tokenizer."""
    return {
        "vision encoder": weights_fingerprint(model.image_encoder.backbone),
        "text encoder": weights_fingerprint(model.text_encoder.backbone),
        "tokenizer": hashlib.sha256(model.tokenizer.to_json().encode()).hexdigest(),
    }
