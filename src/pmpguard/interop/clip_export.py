"""A model whose towers are a CLIP's as a CLIP again: a folder of transformers, or one of OpenCLIP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pmpguard.errors import ModelError
from pmpguard.files import atomic_directory, read_json, write_json
from pmpguard.models.checkpoints import write_safetensors
from pmpguard.models.clip_folder import preprocessing
from pmpguard.models.encoders.pretrained import MARK, PREPROCESSORS
from pmpguard.models.openclip import WEIGHT_FILES, openclip_weights
from pmpguard.models.openclip_config import openclip_settings
from pmpguard.models.retriever import Retriever

TOLERANCE = 1e-4  # of a unit vector's component between the export and the model
NEEDED = {"clip_vision_model": "its image encoder", "clip_text_model": "its text encoder"}
USE_ONNX = "`--to onnx` exports any model"


@dataclass(frozen=True)
class ClipExport:
    """Where the CLIP is, and how far its vectors are from the model's."""

    folder: str
    form: str
    difference: float

    def as_text(self) -> str:
        return f"{self.folder}: a CLIP of {self.form}; its vectors differ by at most {self.difference:.1e}"


def export_transformers(model: Retriever, out: Path) -> ClipExport:
    """`CLIPModel.from_pretrained(out)` and its processor then give this model's vectors."""
    clip, difference = whole_clip(model)
    architecture, tokenizer = model.image_encoder.architecture, model.tokenizer
    marks = {"cleaning": model.text_encoder.architecture.cleaning, "half_pixel": model.framing.half_pixel}
    with atomic_directory(out) as folder:
        clip.save_pretrained(folder, max_shard_size="100GB")
        write_json(folder / "config.json", read_json(folder / "config.json") | {MARK: marks})
        pixels = preprocessing(model.config.input_size, model.framing, architecture.mean, architecture.std)
        write_json(folder / PREPROCESSORS[0], pixels)
        write_tokenizer(tokenizer.to_json(), folder, clip.config.text_config)
    return ClipExport(str(out), "transformers", difference)


def export_openclip(model: Retriever, out: Path) -> ClipExport:
    """`open_clip.create_model_from_pretrained("local-dir:OUT")` then gives this model's vectors."""
    clip, difference = whole_clip(model)
    architecture = model.image_encoder.architecture
    settings = openclip_settings(clip.config, model.framing, architecture.mean, architecture.std)
    tokenizer, size = model.tokenizer, clip.config.text_config.vocab_size
    end = int(tokenizer.encode(["a"], 1)[0][0, -1])
    if tokenizer.suffix != 1 or end != size - 1:
        raise ModelError(
            f"its tokenizer ends texts with id {end}, but OpenCLIP reads them at the largest id, {size - 1}",
            fix="use --to transformers",
        )
    with atomic_directory(out) as folder:
        write_safetensors(folder / WEIGHT_FILES[0], openclip_weights(clip.state_dict()))
        write_json(folder / "open_clip_config.json", settings)
        write_tokenizer(tokenizer.to_json(), folder, clip.config.text_config)
    return ClipExport(str(out), "OpenCLIP", difference)


def write_tokenizer(text: str, folder: Path, config: Any) -> None:
    """tokenizer.json, and the settings with which transformers reads it."""
    import tokenizers

    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    named = tokenizers.Tokenizer.from_str(text).id_to_token
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_position_embeddings,
            "bos_token": named(config.bos_token_id),
            "eos_token": named(config.eos_token_id),
            "pad_token": named(config.pad_token_id) or named(config.eos_token_id),
        },
    )


@torch.no_grad()
def whole_clip(model: Retriever) -> tuple[Any, float]:
    """The model as transformers' `CLIPModel`, and the largest difference of their vectors.

    Our last layers have a bias, CLIP's have none: the norm before them takes it up.
    """
    import transformers

    images, texts = model.image_encoder, model.text_encoder
    for encoder, kind in ((images, "clip_vision_model"), (texts, "clip_text_model")):
        if encoder.model_type != kind:
            raise ModelError(
                f"{NEEDED[kind]} is a {encoder.model_type!r} model and no CLIP's: no CLIP can hold it",
                fix=USE_ONNX,
            )
    if model.head is not None or model.adapters is not None or images.stage_tap is not None:
        raise ModelError("it has a head, adapters or several scales, which no CLIP has", fix=USE_ONNX)
    settings = {"projection_dim": model.config.dim}
    config = transformers.CLIPConfig(
        vision_config=images.architecture.settings | settings,
        text_config=texts.architecture.settings | settings,
        **settings,
    )
    clip = transformers.CLIPModel(config).eval()
    for encoder, tower, norm, projection in (
        (images, clip.vision_model, clip.vision_model.post_layernorm, clip.visual_projection),
        (texts, clip.text_model, clip.text_model.final_layer_norm, clip.text_projection),
    ):
        tower.load_state_dict(encoder.backbone.float().cpu().state_dict())
        last = encoder.projection.pooled
        projection.weight.copy_(last.weight)
        norm.bias.add_(absorbed(last.weight, last.bias))
    clip.logit_scale.fill_(-math.log(model.temperature.item()))
    return clip, largest_difference(model.float().cpu(), clip)


def absorbed(weight: Tensor, bias: Tensor) -> Tensor:
    """The shift (width,) before a layer (dim, width) that does what its bias (dim,) does after it."""
    shift = torch.linalg.lstsq(weight.double().cpu(), bias.double().cpu()[:, None], driver="gelsd").solution
    return shift[:, 0].float()  # type: ignore[no-any-return]


def largest_difference(model: Retriever, clip: nn.Module) -> float:
    """Over random images and the texts of one word each; too far apart is an error."""
    size = model.config.input_size
    draw = torch.Generator().manual_seed(0)
    pixels = model.normalise(torch.randint(0, 256, (4, 3, size, size), generator=draw, dtype=torch.uint8))
    ids, mask = model.tokenize(["a pond", "two planes near a long building", "many green trees"])
    theirs = (
        clip.get_image_features(pixel_values=pixels),  # type: ignore[operator]
        clip.get_text_features(input_ids=ids, attention_mask=mask.long()),  # type: ignore[operator]
    )
    ours = (model.forward_images(pixels).pooled, model.forward_texts(ids, mask).pooled)
    worst = max(
        float((nn.functional.normalize(getattr(a, "pooler_output", a), dim=-1) - b).abs().max())
        for a, b in zip(theirs, ours, strict=True)
    )
    if not worst <= TOLERANCE:
        raise ModelError(
            f"as a CLIP its vectors would differ by {worst:.2g}: its last layer's bias has no place there",
            fix=USE_ONNX,
        )
    return worst
