"""The settings of a retriever, and the four pairs of encoders it comes with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from pmpguard.data.images.framing import Fit, Framing
from pmpguard.errors import ConfigError
from pmpguard.models.encoders.image import EncoderOptions

MAX_DIM, MAX_IMAGE_SIZE, MAX_TOKENS = 65_536, 8_192, 65_536  # so that a stranger's settings take no memory
Ranking = Literal["awareness", "gated", "awareness+gated", "pooled", "pooled+awareness", "head"]


@dataclass(frozen=True)
class CrossGatedConfig:
    """Cross-gated attention at the start of training. As printed in the paper: scale 1, bias 0.

    A method decides by its settings whether there are gates (`Method.model_config`).

    Args:
        use: whether the model has gates at all.
        attention_scale: W_a at the start, as a multiple of the identity.
        gate_bias: bias of the gates at the start; above 0 they begin nearly open.
    """

    use: bool = True
    attention_scale: float = 10.0
    gate_bias: float = 2.0


@dataclass(frozen=True)
class AwarenessConfig:
    """Awareness attention and its boundary.

    Args:
        input: what awareness attention reads: the encoder's fragments (`raw`) or those gated by cross-gated
            attention.
        direction: words look for regions, or `both` ways.
        sharpness: factor of similarities in the softmax over regions.
        at_test: the boundary outside training, `safe` (mu+ - 3 sigma+) or the learned `t_k`.
        alpha: cost of a mismatched fragment above the boundary, in units of a matched one below it.
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

    Args:
        name: whose head scores the pairs; a method chooses it.
        attention_heads: number of heads of its attention layers.
        dropout: share of its activations that are dropped in training.
        scenes: number of scene classes that PIR's instruction vector knows.
        keep: share of the image tokens that PIR keeps.
        instructions: number of PIR's layers that read the instruction vector.
        cycles: number of PIR's passes of attention over the words.
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

    Args:
        name: which adapters; a method chooses them.
        width: number of features that an adapter projects down to.
        attention_heads: number of heads of an adapter's attention.
        gate: value of the gates at the start, before the sigmoid.
        place: inside every layer of the encoders, or once after them.
    """

    name: Literal["none", "harma"] = "none"
    width: int = 128
    attention_heads: int = 8
    gate: float = 0.6
    place: Literal["layers", "output"] = "layers"


@dataclass(frozen=True)
class RetrieverConfig:
    """Which encoders, how pairs are scored, and by which score items are ranked.

    Args:
        vision: vision encoder: `tiny`, `efficientnet-lite0`, `mobilenet-v2`, or a Hugging Face id or folder.
        text: text encoder: `tiny`, `minilm-l6`, or a Hugging Face id or folder.
        dim: dimension of the space that words, regions and pooled vectors share.
        image_size: height and width in pixels that images are brought to; by default 64 for `tiny` and 224
            for all others.
        fit: what to do with an image that is not square, `squash` it or `crop` its middle out. A CLIP that
            ranks without training does what its own files say.
        max_tokens: longest caption in tokens; the rest of a longer one is not read.
        ranking: score that ranks items: `awareness` (S of the paper), `gated` (cross-gated cosine), `pooled`
            (cosine of pooled vectors) or a sum; or `head`, the head's own score.
        ranking_weight: weight of the gated or pooled score in a sum.
        temperature: temperature of the contrastive loss at the start; it is learned.
        multi_scale: regions hold what earlier stages of the vision encoder saw there, too.
        dropout: share of the encoders' features that the projections do not see in training.
    """

    vision: str = "tiny"
    text: str = "tiny"
    dim: int = 512
    image_size: int | None = None
    fit: Fit = "squash"
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
        for name, most in (("dim", MAX_DIM), ("image_size", MAX_IMAGE_SIZE), ("max_tokens", MAX_TOKENS)):
            given = getattr(self, name)
            if given is not None and not 1 <= given <= most:
                raise ConfigError(f"{name} is {given}", fix=f"give a number from 1 to {most:,}")
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

    @property
    def input_size(self) -> int:
        """Height and width in pixels of the images that the vision encoder reads."""
        return self.image_size or (64 if self.vision == "tiny" else 224)

    def sized(self) -> RetrieverConfig:
        """The same with the size of images written out, as records hold it."""
        return dataclasses.replace(self, image_size=self.input_size)

    @property
    def framing(self) -> Framing:
        """How images become squares in training and in what was trained."""
        return Framing(self.fit)

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
    "tiny": {"vision": "tiny", "text": "tiny", "dim": 128, "max_tokens": 32},
    "light": {"vision": "efficientnet-lite0", "text": "minilm-l6"},
    "swin-bert": {"vision": "swin-t", "text": "bert-base"},
    "clip": {"vision": "clip", "text": "clip", "max_tokens": 75},
}


def preset(name: str, **changes: Any) -> RetrieverConfig:
    """A pair of encoders by name, with any setting changed.

    >>> preset("light", vision="mobilenet-v2").text
    'minilm-l6'
    """
    if name not in PRESETS:
        raise ConfigError(f"unknown encoders {name!r}", fix=f"choose one of {', '.join(PRESETS)}")
    return dataclasses.replace(RetrieverConfig(**PRESETS[name]), **changes)
