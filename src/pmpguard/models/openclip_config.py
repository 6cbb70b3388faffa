"""What an `open_clip_config.json` tells of a CLIP beyond its weights. What has no place here is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pmpguard.data.images.framing import Fit, Framing, Resample
from pmpguard.errors import ModelError
from pmpguard.files import read_json
from pmpguard.models.encoders.pretrained import CLIP_MEAN, CLIP_STD
from pmpguard.models.text_cleaning import Cleaning

Activation = Literal["quick_gelu", "gelu", "gelu_pytorch_tanh"]
EPSILON = 1e-5
CROPPED = Framing("crop")
CLEANING: dict[str, Cleaning] = {"lower": "clip", "whitespace": "whitespace", "canonicalize": "canonical"}
FIT: dict[str, Fit] = {"shortest": "crop", "squash": "squash"}
RESAMPLE: dict[str, Resample] = {"bicubic": "bicubic", "bilinear": "bilinear", "random": "bicubic"}

# Settings that are read here, in the weights, or matter to training alone.
_READ = {
    "vision": {"layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "act_kwargs"}
    | {"norm_kwargs", "patch_dropout", "output_tokens", "attn_pooler_queries", "attn_pooler_heads"},
    "text": {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "act_kwargs"}
    | {"norm_kwargs", "hf_tokenizer_name", "tokenizer_kwargs", "tokenizer_mode", "output_tokens", "pad_id"}
    | {"eos_id", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type", "hf_tokenizer_mode"},
}
# Settings that change what is computed, with the value that Hugging Face's CLIP has.
_PLAIN = {
    "vision": {"pool_type": "tok", "pos_embed_type": "learnable"},
    "text": {"pool_type": "argmax", "proj_type": "linear"},
}


@dataclass(frozen=True)
class OpenClipConfig:
    """What stands beside the weights; None where nothing does and nothing may be assumed."""

    activation: Activation | None = None
    head_width: int | None = None
    text_head_width: int | None = None
    image_size: int | None = None
    context_length: int | None = None
    vocabulary: int | None = None
    epsilon: float = EPSILON
    text_epsilon: float = EPSILON
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    framing: Framing = CROPPED
    cleaning: Cleaning = "clip"
    own_tokenizer: str | None = None


def read_openclip_config(folder: Path, fit: Fit | None = None) -> OpenClipConfig:
    """The settings beside the weights, as the Hub stores them; nothing is known where there is no file.

    Sizes that the file leaves out are the defaults of OpenCLIP, which wrote it. `fit` goes before the file.
    """
    path = folder / "open_clip_config.json"
    if not path.is_file():
        return OpenClipConfig(framing=Framing(fit or "crop"))
    stored = read_json(path)
    try:
        model = stored["model_cfg"]
        vision, text = model["vision_cfg"], model["text_cfg"]
        refuse_other_settings(path, model, vision, text)
        mean, std, framing = pixel_settings(path, stored.get("preprocess_cfg") or {}, fit)
        return OpenClipConfig(
            activation=_activation(path, bool(model.get("quick_gelu")), vision, text),
            head_width=int(vision.get("head_width", 64)),
            text_head_width=int(text.get("width", 512)) // int(text.get("heads", 8)),
            image_size=int(vision.get("image_size", 224)),
            context_length=int(text.get("context_length", 77)),
            vocabulary=int(text.get("vocab_size", 49408)),
            epsilon=float((vision.get("norm_kwargs") or {}).get("eps", EPSILON)),
            text_epsilon=float((text.get("norm_kwargs") or {}).get("eps", EPSILON)),
            mean=mean,
            std=std,
            framing=framing,
            cleaning=_cleaning(path, text),
            own_tokenizer=text.get("hf_tokenizer_name"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"{path}: not the settings of an OpenCLIP model ({error})", fix="restore it, or move it away"
        ) from error


def refuse_other_settings(
    path: Path, model: Mapping[str, Any], vision: Mapping[str, Any], text: Mapping[str, Any]
) -> None:
    """Name what Hugging Face's CLIP would compute differently."""
    kinds = (
        ("a CoCa, whose captioner has no place here", model.get("multimodal_cfg")),
        ("attention pooling, as a CoCa has it", vision.get("attentional_pool")),
        ("a ResNet (ModifiedResNet: RN50, RN101)", isinstance(vision.get("layers"), list)),
        (f"a vision tower of timm, {vision.get('timm_model_name')!r}", vision.get("timm_model_name")),
        (f"a text tower of Hugging Face, {text.get('hf_model_name')!r}", text.get("hf_model_name")),
    )
    for kind, is_so in kinds:
        if is_so:
            raise ModelError(
                f"{path}: {kind}, is not converted",
                fix="give a CLIP with OpenCLIP's plain ViT and texts, or a folder in Hugging Face's form",
            )
    for tower, settings in (("vision", vision), ("text", text)):
        for name, value in settings.items():
            plain = _PLAIN[tower].get(name)
            if name not in _READ[tower] and value not in (None, False, 0, "", plain):
                raise ModelError(
                    f"{path}: {tower}_cfg.{name} is {value!r}, which Hugging Face's CLIP cannot do",
                    fix="use the model with open_clip, or give a plain ViT CLIP",
                )


def pixel_settings(
    path: Path, pixels: Mapping[str, Any], fit: Fit | None = None
) -> tuple[tuple[float, ...], tuple[float, ...], Framing]:
    """Mean, standard deviation and framing; what is left out is as OpenCLIP has it."""
    mode, interpolation = pixels.get("resize_mode", "shortest"), pixels.get("interpolation", "bicubic")
    fit = fit or FIT.get(mode)
    if fit is None or interpolation not in RESAMPLE:
        raise ModelError(
            f"{path}: images are resized by {mode!r} and {interpolation!r}",
            fix="known are shortest and squash, bicubic and bilinear; --fit says which to use instead",
        )
    framing = Framing(fit, RESAMPLE[interpolation])
    return (
        tuple(map(float, pixels.get("mean", CLIP_MEAN))),
        tuple(map(float, pixels.get("std", CLIP_STD))),
        framing,
    )


def _activation(path: Path, is_quick: bool, vision: Mapping[str, Any], text: Mapping[str, Any]) -> Activation:
    kinds = [dict(tower.get("act_kwargs") or {}) for tower in (vision, text)]
    if kinds == [{"approximate": "tanh"}] * 2 and not is_quick:
        return "gelu_pytorch_tanh"
    if kinds != [{}, {}]:
        raise ModelError(f"{path}: act_kwargs are {kinds}", fix="known is {'approximate': 'tanh'} in both")
    return "quick_gelu" if is_quick else "gelu"


def _cleaning(path: Path, text: Mapping[str, Any]) -> Cleaning:
    """OpenCLIP's own tokenizer lowers letters after mending them, others only mend spaces."""
    given = dict(text.get("tokenizer_kwargs") or {})
    cleaning = given.pop("clean", "whitespace" if text.get("hf_tokenizer_name") else "lower")
    if given or cleaning not in CLEANING:
        raise ModelError(
            f"{path}: text_cfg.tokenizer_kwargs are {text.get('tokenizer_kwargs')}",
            fix=f"known is clean, one of {', '.join(CLEANING)}",
        )
    return CLEANING[cleaning]


def openclip_settings(
    config: Any, framing: Framing, mean: tuple[float, ...], std: tuple[float, ...]
) -> dict[str, Any]:
    """The `open_clip_config.json` of a CLIP whose settings are transformers' `CLIPConfig`."""
    vision, text = config.vision_config, config.text_config
    kinds = {vision.hidden_act, text.hidden_act}
    plain = kinds in ({"quick_gelu"}, {"gelu"})
    if not plain or {vision.layer_norm_eps, text.layer_norm_eps} != {EPSILON}:
        raise ModelError(
            f"OpenCLIP's plain towers have no activation {' and '.join(sorted(kinds))} with norms of "
            f"{vision.layer_norm_eps:g}",
            fix="use --to transformers",
        )
    if framing.shorter_side not in (0, vision.image_size):
        raise ModelError("OpenCLIP resizes images to what it crops", fix="use --to transformers")
    towers = {
        name: {
            "width": tower.hidden_size,
            "layers": tower.num_hidden_layers,
            "mlp_ratio": tower.intermediate_size / tower.hidden_size,
        }
        for name, tower in (("vision_cfg", vision), ("text_cfg", text))
    }
    towers["vision_cfg"] |= {
        "image_size": vision.image_size,
        "patch_size": vision.patch_size,
        "head_width": vision.hidden_size // vision.num_attention_heads,
    }
    towers["text_cfg"] |= {
        "context_length": text.max_position_embeddings,
        "vocab_size": text.vocab_size,
        "heads": text.num_attention_heads,
    }
    model = {"embed_dim": config.projection_dim, "quick_gelu": kinds == {"quick_gelu"}, **towers}
    modes = {value: name for name, value in FIT.items()}
    pixels = {"mean": list(mean), "std": list(std), "interpolation": framing.resample}
    return {"model_cfg": model, "preprocess_cfg": pixels | {"resize_mode": modes[framing.fit]}}
