"""A CLIP folder in Hugging Face's form as a retriever without any training: pooled vectors, zero-shot.

`pmpguard convert` writes such folders; one downloaded from the Hub is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pmpguard.data.images.framing import Framing, Resample
from pmpguard.errors import ModelError
from pmpguard.files import read_json
from pmpguard.models.config import CrossGatedConfig, RetrieverConfig
from pmpguard.models.encoders.pretrained import MARK, stored_preprocessing

FAMILIES = {"clip": "CLIP", "siglip": "SigLIP"}
SPECIAL_TOKENS = {"clip": 2, "siglip": 1}  # begin and end of the text; the end alone
CONTEXT = {"clip": 77, "siglip": 64}  # tokens, where the file does not say
NOT_OURS = {"siglip2": "a SigLIP 2 of the NaFlex kind, which reads images of any shape,"}
RESAMPLE: dict[int, Resample] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
TOKENIZER_FILES = (
    "tokenizer.json",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
TOKENIZER_FIX = (
    "copy tokenizer.json (or vocab.json and merges.txt) of openai/clip-vit-base-patch32 into the folder; all "
    "CLIPs of this kind share them"
)
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
TORCH_WEIGHTS, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def is_hugging_face(stored: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is one of Hugging Face's and not of a retriever."""
    return "format" not in stored and isinstance(stored.get("model_type"), str)


def what_to_give(folder: Path) -> str:
    """What to do about a folder that holds no model that can be loaded."""
    if (folder / "open_clip_config.json").is_file():
        return f"it is one of OpenCLIP: `pmpguard convert {folder} OUT` makes a model of it"
    inner = next(iter(sorted(folder.glob("*/config.json"))), None) if folder.is_dir() else None
    if inner is not None:
        return f"{inner.parent} may be meant"
    return "give a model directory, such as RUN/model, or the folder of a CLIP"


def clip_config(folder: Path, stored: Mapping[str, Any]) -> RetrieverConfig:
    """The retriever that ranks as the CLIP in `folder` does; sizes are those of its own `config.json`."""
    kind = stored["model_type"]
    if kind not in SPECIAL_TOKENS:
        raise ModelError(
            f"{folder}: {NOT_OURS.get(kind, f'a {kind!r} model')} of Hugging Face cannot rank without "
            "training",
            fix="give the folder of a CLIP or SigLIP, or of a vision model such as DINOv2; or train with "
            "--train.model.vision or --train.model.text set to this one",
        )
    if not has_tokenizer(folder):
        fix = (
            TOKENIZER_FIX
            if kind == "clip"
            else "copy tokenizer.json or spiece.model of the same model into it"
        )
        raise ModelError(f"{folder}: no tokenizer files", fix=fix)
    weight_files(folder)
    try:
        vision, text = stored.get("vision_config") or {}, stored.get("text_config") or {}
        dim, size = shared_dim(stored), int(vision.get("image_size", 224))
        tokens = int(text.get("max_position_embeddings", CONTEXT[kind])) - SPECIAL_TOKENS[kind]
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"{folder}/config.json: not the settings of a {FAMILIES[kind]} ({error})", fix="restore the file"
        ) from error
    return RetrieverConfig(
        vision=str(folder),
        text=str(folder),
        dim=dim,
        image_size=size,
        max_tokens=tokens,
        cross_gated=CrossGatedConfig(use=False),
        ranking="pooled",
    )


def shared_dim(stored: Mapping[str, Any]) -> int:
    """The dimension of a CLIP's or SigLIP's vectors; one left out of the file is that of the base model."""
    if stored["model_type"] == "siglip":
        return int((stored.get("vision_config") or {}).get("hidden_size", 768))
    return int(stored.get("projection_dim", 512))


def clip_framing(folder: Path, stored: Mapping[str, Any], size: int) -> Framing:
    """What the folder's `preprocessor_config.json` does to images; without one, what the family does."""
    name, pixels = stored_preprocessing(str(folder))
    path = folder / name
    half_pixel = stored.get(MARK, {}).get("half_pixel", "down")
    if not pixels:
        return Framing("crop" if stored["model_type"] == "clip" else "squash", half_pixel=half_pixel)
    resample, wanted = pixels.get("resample", 3), pixels.get("size", {"shortest_edge": size})
    crops = pixels.get("do_center_crop", stored["model_type"] == "clip")
    crop = pixels.get("crop_size", size)
    shorter = wanted.get("shortest_edge") if isinstance(wanted, dict) else wanted
    shape = crop if crops else wanted
    square = {shape.get("height"), shape.get("width")} if isinstance(shape, dict) else {shape}
    if crops and shorter is None:
        square |= {wanted.get("height"), wanted.get("width")}
    problem = (
        f"resample is {resample}" if resample not in RESAMPLE
        else "do_resize is false" if pixels.get("do_resize") is False
        else f"images become {shape}, but the model reads {size} pixels" if square != {size}
        else ""
    )  # fmt: skip
    if problem:
        raise ModelError(
            f"{path}: {problem}", fix="restore the file that belongs to this model, or correct it by hand"
        )
    if not crops or shorter is None:  # both sides are resized, and a crop would cut nothing
        return Framing("squash", RESAMPLE[resample])
    return Framing("crop", RESAMPLE[resample], 0 if shorter == size else int(shorter), half_pixel)


def preprocessing(size: int, framing: Framing, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    """`preprocessor_config.json` as CLIP's own: the shorter side to `size`, then the centre; or squashed."""
    square, crops = {"height": size, "width": size}, framing.fit == "crop"
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": framing.shorter_side or size} if crops else square,
        "resample": {"bilinear": 2, "bicubic": 3}[framing.resample],
        "do_center_crop": crops,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
        "do_convert_rgb": True,
    }


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds what CLIP's or SigLIP's tokenizer is made of."""
    names = {name for name in TOKENIZER_FILES if (folder / name).is_file()}
    return bool({"tokenizer.json", "spiece.model"} & names) or {"vocab.json", "merges.txt"} <= names


def weight_files(folder: Path) -> list[str]:
    """The names of a folder's weights: one file, or an index and the parts it lists.

    Weights in torch's own form can hold code; `pmpguard convert` reads their tensors alone.
    """
    for name in (WEIGHTS, WEIGHTS_INDEX):
        if (folder / name).is_file():
            return [name] if name == WEIGHTS else [name, *parts_of(folder / name)]
    if any((folder / name).is_file() for name in (TORCH_WEIGHTS, TORCH_INDEX)):
        fix = f"`pmpguard convert {folder} OUT` makes a model of it"
        raise ModelError(f"{folder}: its weights are a file of torch, which is not opened here", fix=fix)
    raise ModelError(f"{folder}: no {WEIGHTS}", fix="restore it, or download the model again")


def parts_of(index: Path) -> list[str]:
    """The files in the same folder that an index of weights lists."""
    listed = read_json(index).get("weight_map")
    parts = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    lost = next(
        (name for name in parts if Path(name).name != name or not (index.parent / name).is_file()), ""
    )
    if lost or not parts:
        raise ModelError(f"{index}: lists {lost or 'nothing'}, which is not there", fix="download all parts")
    return parts


def model_summary(stored: Mapping[str, Any]) -> tuple[str, int]:
    """What to call a model and the dimension of its vectors, from the `config.json` of its folder."""
    if is_hugging_face(stored):
        vision = stored.get("vision_config") or {}
        size, patch = vision.get("image_size", 224), vision.get("patch_size", 32)
        family = FAMILIES.get(stored["model_type"], "CLIP")
        return f"{family} at {size} px in patches of {patch}, ranked by pooled", shared_dim(stored)
    config = stored["retriever"]
    name = f"{config['vision']} + {config['text']}, ranked by {config['ranking']}"
    return name, int(config["dim"])
