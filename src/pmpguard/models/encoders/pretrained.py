"""Hugging Face models: from this machine unless asked, safetensors only, clear when one is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pmpguard.errors import ModelError
from pmpguard.models.tokenizer import Tokenizer

ALIASES = {
    "swin-t": "microsoft/swin-tiny-patch4-window7-224",
    "bert-base": "google-bert/bert-base-uncased",
    "clip": "openai/clip-vit-base-patch32",
}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class PretrainedTower:
    """One tower's weights, the settings that rebuild it, and CLIP's projection (dim, width) if it has one."""

    backbone: nn.Module
    settings: dict[str, Any]
    projection: Tensor | None


def load_tower(name: str, tower: str, *, allow_download: bool = False) -> PretrainedTower:
    """The "vision" or "text" model called `name`: a folder, a Hugging Face id or an alias."""
    import transformers

    with _explained(name, "checkpoint", allow_download), _quiet(transformers):
        model, report = transformers.AutoModel.from_pretrained(
            ALIASES.get(name, name),
            local_files_only=not allow_download,
            use_safetensors=True,
            output_loading_info=True,
        )
    lost = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if lost:
        raise ModelError(f"{name}: the checkpoint lacks {lost[0]!r}", fix="download it again")
    projection = None
    if hasattr(model, f"{tower}_model"):  # a CLIP holds both towers
        layer = model.visual_projection if tower == "vision" else model.text_projection
        projection = layer.weight.detach()  # (dim, width)
        model = getattr(model, f"{tower}_model")
    return PretrainedTower(without_pooler(model), plain_settings(model.config.to_dict()), projection)


def build_tower(settings: dict[str, Any]) -> nn.Module:
    """The untrained model that `settings` describe; no file and no network is needed."""
    import transformers

    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**settings))
    return without_pooler(model)


def without_pooler(model: nn.Module) -> nn.Module:
    """Drop BERT's and ViT's pooling layer: nothing reads it, and unused weights stop distributed training."""
    pooler = getattr(model, "pooler", None)
    if isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
        model.pooler = None  # type: ignore[assignment]
    return model


def plain_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without what only describes the file they came from."""
    dropped = {"_name_or_path", "transformers_version", "architectures", "id2label", "label2id"}
    return {key: value for key, value in settings.items() if key not in dropped}


def load_tokenizer(name: str, *, allow_download: bool = False) -> Tokenizer:
    import transformers

    with _explained(name, "tokenizer", allow_download), _quiet(transformers):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            ALIASES.get(name, name), local_files_only=not allow_download, use_fast=True
        )
    rules = getattr(tokenizer, "backend_tokenizer", None)
    if rules is None:
        raise ModelError(f"{name}: its tokenizer has no tokenizer.json form", fix="choose another text model")
    return Tokenizer.from_json(rules.to_str(), str(name), pad_id=tokenizer.pad_token_id)


def image_statistics(name: str, model_type: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation the vision model was trained with: its own file's, else its family's."""
    from pmpguard.files import read_json

    path = Path(name) / "preprocessor_config.json"
    if path.is_file():
        stored = read_json(path)
        if "image_mean" in stored and "image_std" in stored:
            return tuple(stored["image_mean"]), tuple(stored["image_std"])
    if model_type.startswith("clip"):
        return CLIP_MEAN, CLIP_STD
    return IMAGENET_MEAN, IMAGENET_STD


@contextlib.contextmanager
def _explained(name: str, part: str, allow_download: bool) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        source = ALIASES.get(name, name)
        if allow_download:
            fix = "check the name and the network"
        else:
            fix = (
                f"download it once with `hf download {source} --local-dir DIR` and give DIR as the model's "
                "name, or set allow_download=true"
            )
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"no usable {part} {name!r} on this machine: {reason}", fix=fix) from error


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hold back the library's report on tensors left out on purpose; missing ones are checked by us."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
        transformers.utils.logging.enable_progress_bar()
