"""Hugging Face models: from this machine unless asked, safetensors only, clear when one is missing."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pmpguard.errors import ModelError
from pmpguard.files import read_json
from pmpguard.models.spiece_vocabulary import END, spiece_tokenizer
from pmpguard.models.text_cleaning import Cleaning
from pmpguard.models.tokenizer import Tokenizer

ALIASES = {
    "swin-t": "microsoft/swin-tiny-patch4-window7-224",
    "bert-base": "google-bert/bert-base-uncased",
    "clip": "openai/clip-vit-base-patch32",
}
OWN_ENCODERS = ("tiny", "efficientnet-lite0", "mobilenet-v2", "minilm-l6")
ENCODERS = {
    "t5": "T5EncoderModel",
    "mt5": "MT5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "siglip_text_model": "SiglipTextModel",
}
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")  # the second is of transformers 5
OFFLINE = {"local_files_only": True}
MARK = "pmpguard"  # key of a Hugging Face config.json: what its own keys have no words for
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class PretrainedTower:
    """One tower's weights, the settings that rebuild it, and CLIP's projection if it has one."""

    backbone: nn.Module
    settings: dict[str, Any]
    projection: Tensor | None = None  # (dim, width)
    bias: Tensor | None = None  # (dim,)


def load_tower(name: str, tower: str, *, allow_download: bool = False) -> PretrainedTower:
    """The "vision" or "text" model called `name`: a folder, a Hugging Face id or an alias."""
    import transformers

    source, local = ALIASES.get(name, name), {"local_files_only": not allow_download}
    with _explained(name, "checkpoint", allow_download), _quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(source, **local)
        kind = model_class(config.model_type)
        model, report = kind.from_pretrained(
            source,
            config=config,
            **local,
            use_safetensors=True,
            output_loading_info=True,
            dtype=torch.float32,  # whatever the file holds
        )
    lost = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if lost:
        raise ModelError(
            f"{name}: the checkpoint lacks {lost[0]!r}, which {type(model).__name__} needs",
            fix="download it again, or name the folder of the whole model",
        )
    projection, bias = None, None
    if hasattr(model, f"{tower}_model"):  # a CLIP or a SigLIP holds both towers
        projection, bias = shared_space(model, tower)
        model = getattr(model, f"{tower}_model")
    if model.config.model_type == "vit_mae":
        model.config.mask_ratio = 0.0  # in its own training it saw a quarter of the patches
    return PretrainedTower(without_pooler(model), plain_settings(model.config.to_dict()), projection, bias)


def shared_space(model: Any, tower: str) -> tuple[Tensor, Tensor | None]:
    """The last layer (dim, width) of one tower of a CLIP or a SigLIP, and its bias (dim,) if it has one."""
    if model.config.model_type == "siglip":  # images: attention pools into the space itself
        if tower == "text":
            return model.text_model.head.weight.detach(), model.text_model.head.bias.detach()
        return torch.eye(model.config.vision_config.hidden_size), None
    layer = getattr(model, "visual_projection" if tower == "vision" else "text_projection", None)
    if layer is None:
        raise ModelError(
            f"a {model.config.model_type!r} model has no projection that is known here",
            fix="give a CLIP or a SigLIP, or a model of one tower",
        )
    return layer.weight.detach(), None


def model_class(model_type: str) -> Any:
    """The class to load: of families that also write texts the part that reads them, else the usual one."""
    import transformers

    return getattr(transformers, ENCODERS.get(model_type, "AutoModel"))


def build_tower(settings: dict[str, Any]) -> nn.Module:
    """The untrained model that `settings` describe; no file and no network is needed."""
    import transformers

    config = transformers.AutoConfig.for_model(**settings)
    kind = model_class(config.model_type)
    model = kind.from_config(config) if kind is transformers.AutoModel else kind(config)
    return without_pooler(model)


def without_pooler(model: nn.Module) -> nn.Module:
    """Drop BERT's and ViT's pooling layer, and the last one of SigLIP's texts, which is our projection.

    What stands for hidden patches is not trained. Nothing reads them, and unused weights stop distributed training.
    """
    if getattr(getattr(model, "config", None), "model_type", "") == "siglip_text_model":
        model.head = nn.Identity()
    pooler = getattr(model, "pooler", None)
    if isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
        model.pooler = None  # type: ignore[assignment]
    mask_token = getattr(getattr(model, "embeddings", None), "mask_token", None)  # of DINOv2 and v3
    if isinstance(mask_token, nn.Parameter):
        mask_token.requires_grad_(False)
    return model


def plain_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without what only describes the file they came from."""
    dropped = {"_name_or_path", "transformers_version", "architectures", "id2label", "label2id", "dtype"}
    return {key: value for key, value in settings.items() if key not in dropped}


@dataclass(frozen=True)
class PretrainedTokenizer:
    """A checkpoint's tokenizer, how texts are cleaned for it, and on which side its family pads."""

    tokenizer: Tokenizer
    cleaning: Cleaning = "none"
    padding_side: Literal["left", "right"] = "right"


def load_tokenizer(name: str, *, allow_download: bool = False) -> PretrainedTokenizer:
    """The tokenizer of a folder or a Hugging Face id; it cleans texts as the checkpoint's own code does."""
    import transformers

    source, local = ALIASES.get(name, name), {"local_files_only": not allow_download}
    with _explained(name, "tokenizer", allow_download), _quiet(transformers):
        config, settings = (
            {} if path is None else read_json(path)
            for path in (
                stored_file(source, each, local) for each in ("config.json", "tokenizer_config.json")
            )
        )
        kind = str(settings.get("tokenizer_class"))
        is_siglip = kind == "SiglipTokenizer"  # whose class knows no tokenizer.json
        spiece = stored_file(source, "spiece.model", local) if is_siglip else None
        if spiece is None:
            loader = transformers.PreTrainedTokenizerFast if is_siglip else transformers.AutoTokenizer
            tokenizer = loader.from_pretrained(source, **local, use_fast=True)
    if spiece is not None:
        rules, pad = spiece_tokenizer(spiece), settings.get("pad_token", END)
        pad_id = rules.token_to_id(pad["content"] if isinstance(pad, dict) else pad)
        found = Tokenizer.from_json(rules.to_str(), name, pad_id, "siglip")
        return PretrainedTokenizer(found, "siglip")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{name}: its tokenizer has no tokenizer.json form", fix="choose another text model")
    is_siglip2 = config.get("model_type") == "siglip" and kind.startswith("Gemma")
    cleaning = config.get(MARK, {}).get("cleaning", "lower" if is_siglip2 else "none")
    found = Tokenizer.from_json(backend.to_str(), str(name), tokenizer.pad_token_id, cleaning)
    return PretrainedTokenizer(found, cleaning, tokenizer.padding_side)


def stored_file(source: str, name: str, local: dict[str, bool]) -> Path | None:
    """A file of a folder or of the Hub's cache; None where there is none."""
    import transformers

    missing = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    path = transformers.utils.cached_file(source, name, **local, **missing)
    return None if path is None else Path(path)


def stored_preprocessing(source: str, local: dict[str, bool] = OFFLINE) -> tuple[str, dict[str, Any]]:
    """What a checkpoint's files say of its images, and the file's name; empty where they say nothing."""
    for name in PREPROCESSORS:
        path = stored_file(source, name, local)
        settings = {} if path is None else read_json(path)
        settings = settings.get("image_processor") if name == PREPROCESSORS[1] else settings
        if settings:
            return name, dict(settings)
    return PREPROCESSORS[0], {}


def image_statistics(
    name: str, model_type: str, allow_download: bool = False
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation the vision model was trained with: its own file's, else its family's."""
    stored = stored_preprocessing(ALIASES.get(name, name), {"local_files_only": not allow_download})[1]
    if stored.get("do_normalize") is False:
        return (0.0,) * 3, (1.0,) * 3
    if "image_mean" in stored and "image_std" in stored:
        return tuple(stored["image_mean"]), tuple(stored["image_std"])
    if model_type.startswith("clip"):
        return CLIP_MEAN, CLIP_STD
    if model_type.startswith("siglip"):
        return (0.5,) * 3, (0.5,) * 3
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
            near = difflib.get_close_matches(name, [*OWN_ENCODERS, *ALIASES], 1)
            meant = f"did you mean {near[0]}? or " if near and near[0] != name else ""
            fix = f"{meant}download it once with `hf download {source}`, or give the folder of a copy"
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
