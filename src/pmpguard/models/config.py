"""The settings of a retriever, and the four pairs of encoders it comes with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from pmpguard.errors import ConfigError
from pmpguard.models.encoders.image import EncoderOptions

Ranking = Literal["awareness", "gated", "awareness+gated", "pooled", "pooled+awareness", "head"]


@dataclass(frozen=True)
class CrossGatedConfig:
    """Cross-gated attention at the start of training. As printed in the paper: scale 1, bias 0.

    A method decides by its settings whether there are gates (`Method.model_config`).
    """

    use: bool = True
    attention_scale: float = 10.0
    gate_bias: float = 2.0


@dataclass(frozen=True)
class AwarenessConfig:
    """Awareness attention and its boundary.

    input: the encoder's fragments (`raw`) or those gated by cross-gated attention.
    direction: words look for regions, or `both` ways.
    at_test: the boundary outside training, `safe` (mu+ - 3 sigma+) or the learned `t_k`.
    mismatched: which other image gives the mismatched samples of the boundary.
    """

    input: Literal["raw", "gated"] = "raw"
    direction: Literal["words", "both"] = "words"
    sharpness: float = 20.0
    at_test: Literal["safe", "t_k"] = "safe"
    alpha: float = 2.0
    mismatched: Literal["easiest", "random", "hardest"] = "easiest"


@dataclass(frozen=True)
class HeadConfig:
    """A step after the encoders that a method asked for; none by default.

    scenes, keep, instructions, cycles: of PIR, see `heads/pir.py`. attention_heads and dropout: of all.
    """

    name: Literal["none", "pir", "swan", "dove"] = "none"
    attention_heads: int = 8
    dropout: float = 0.2
    scenes: int = 32
    keep: float = 0.8
    instructions: int = 2
    cycles: int = 3


@dataclass(frozen=True)
class AdapterConfig:
    """Small layers inside the towers or after them, see `adapters.py`; none by default.

    `gate` is the gates' value at the start, before the sigmoid.
    """

    name: Literal["none", "harma"] = "none"
    width: int = 128
    attention_heads: int = 8
    gate: float = 0.6
    place: Literal["layers", "output"] = "layers"


@dataclass(frozen=True)
class RetrieverConfig:
    """Which encoders, how pairs are scored, and by which score items are ranked.

    vision: `tiny`, `efficientnet-lite0`, `mobilenet-v2`, or a Hugging Face model's id or folder.
    text: `tiny`, `minilm-l6`, or a Hugging Face model's id or folder.
    ranking: `awareness` (S of the paper), `gated` (cross-gated cosine), `pooled` (cosine of pooled vectors)
    or a sum, in which gated or pooled counts `ranking_weight` times; or `head`, the head's own score.
    multi_scale: regions hold what earlier stages of the vision encoder saw there, too.
    dropout: share of the encoders' features that the projections do not see in training.
    """

    vision: str = "tiny"
    text: str = "tiny"
    dim: int = 512
    image_size: int = 64
    max_tokens: int = 48
    cross_gated: CrossGatedConfig = field(default_factory=CrossGatedConfig)
    awareness: AwarenessConfig = field(default_factory=AwarenessConfig)
    ranking: Ranking = "awareness"
    ranking_weight: float = 1.0
    temperature: float = 0.07
    vision_options: EncoderOptions = field(default_factory=EncoderOptions)
    text_options: EncoderOptions = field(default_factory=EncoderOptions)
    multi_scale: bool = False
    dropout: float = 0.0
    head: HeadConfig = field(default_factory=HeadConfig)
    adapters: AdapterConfig = field(default_factory=AdapterConfig)

    def __post_init__(self) -> None:
        for name in ("dim", "image_size", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", fix="give a number above 0")
        if not 0.01 <= self.temperature <= 0.5:
            raise ConfigError(f"temperature is {self.temperature}", fix="give a number between 0.01 and 0.5")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}", fix="give a share from 0 to below 1")
        needs_gates = "gated" in self.ranking or self.awareness.input == "gated"
        if needs_gates and not self.cross_gated.use:
            raise ConfigError(
                f"ranking {self.ranking!r} with {self.awareness.input} input needs cross-gated attention",
                fix="set cross_gated.use=true, or ranking=awareness and awareness.input=raw",
            )
        self._check_head()

    def _check_head(self) -> None:
        if self.ranking == "head" and self.head.name == "none":
            raise ConfigError("ranking 'head' needs a head", fix="set head.name, or rank by pooled")
        if self.head.name != "none" and self.dim % self.head.attention_heads:
            raise ConfigError(
                f"dim {self.dim} cannot be split among {self.head.attention_heads} attention heads",
                fix="choose head.attention_heads so that it divides dim",
            )
        if not 0 < self.head.keep <= 1:
            raise ConfigError(f"head.keep is {self.head.keep}", fix="give a share above 0 and at most 1")
        if self.adapters.name != "none" and self.adapters.width % (2 * self.adapters.attention_heads):
            raise ConfigError(
                f"adapters.width is {self.adapters.width}",
                fix=f"give a multiple of {2 * self.adapters.attention_heads}",
            )


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"vision": "tiny", "text": "tiny", "dim": 128, "image_size": 64, "max_tokens": 32},
    "light": {"vision": "efficientnet-lite0", "text": "minilm-l6", "image_size": 224},
    "swin-bert": {"vision": "swin-t", "text": "bert-base", "image_size": 224},
    "clip": {"vision": "clip", "text": "clip", "image_size": 224},
}


def preset(name: str, **changes: Any) -> RetrieverConfig:
    """A pair of encoders by name, with any setting changed.

    >>> preset("light", vision="mobilenet-v2").text
    'minilm-l6'
    """
    if name not in PRESETS:
        raise ConfigError(f"unknown encoders {name!r}", fix=f"choose one of {', '.join(PRESETS)}")
    return dataclasses.replace(RetrieverConfig(**PRESETS[name]), **changes)
