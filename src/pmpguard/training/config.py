"""Everything a training run is decided by; two runs with equal settings, data and machine are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pmpguard.config import to_dict
from pmpguard.data.images.transforms import Augmentation
from pmpguard.errors import ConfigError
from pmpguard.methods.method import Method
from pmpguard.methods.registry import find_method
from pmpguard.models.config import RetrieverConfig

# Method settings that decide a setting of the model under another name; others share their last word.
DECIDED_BY = {"cross_gated.use": "cga", "head.scenes": "classes", "adapters.width": "adapter_width"}


@dataclass(frozen=True)
class OptimiserConfig:
    """AdamW with two groups.

    Args:
        encoder_lr: learning rate of the pretrained encoders.
        head_lr: learning rate of everything trained from scratch.
        weight_decay: pull of weights towards zero; not applied to biases, norms and temperatures.
        betas: decay of AdamW's running averages.
        warmup_ratio: share of all steps in which the rate rises linearly.
        schedule: how the rate falls to zero afterwards.
        max_grad_norm: gradients of a larger norm are scaled down to it.
        grad_accumulation: batches whose gradients are averaged before a step.
    """

    encoder_lr: float = 1e-4
    head_lr: float = 4e-4
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    warmup_ratio: float = 0.1
    schedule: Literal["linear", "cosine"] = "linear"
    max_grad_norm: float = 1.0
    grad_accumulation: int = 1


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Args:
        method: a known method, or package.module:Class of your own.
        preset: the preset of the method's settings to start from.
        settings: settings of the method that differ from the preset: --train.settings.NAME VALUE.
        model: encoders and modules.
        epochs: passes over the pairs.
        batch_size: captions per step, over all processes.
        captions_per_image: captions of one image that share a batch, so that it is encoded once for them.
        seed: seed of everything random in training.
        precision: number type of the encoders on CUDA; other devices, scores and losses always use float32.
        ema: decay per step of the averaged weights that are evaluated and saved; 0 switches it off.
        optimiser: rates and schedule.
        augmentation: random changes to the images.
        cache_images: hold all images decoded, or what frozen backbones made of them, in memory (auto: when
            they fit in `cache_images_gb`; never: such features go to the cache folder on disk).
        cache_images_gb: how much memory cached images, or features, may take.
        cuda_graphs: replay captured CUDA graphs instead of launching kernels one by one (CUDA only).
        checkpoint_every: steps between checkpoints; 0 saves only at the end of epochs, -1 never.
        keep_checkpoints: how many of the newest checkpoints are kept.
        evaluate_every: epochs between two validations.
        look: what detection reads before an epoch: the training set encoded anew, or vectors that the steps
            of the epoch before made, with only what they left out encoded. Those are in checkpoints, too.
        device: where to train: "auto", "cpu" or "cuda".
    """

    method: str = "pmpguard"
    preset: str = "recommended"
    settings: dict[str, Any] = field(default_factory=dict)
    model: RetrieverConfig = field(default_factory=RetrieverConfig)
    epochs: int = 12
    batch_size: int = 256
    captions_per_image: int = 1
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    ema: float = 0.0
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    augmentation: Augmentation = field(default_factory=Augmentation)
    cache_images: Literal["auto", "always", "never"] = "auto"
    cache_images_gb: float = 4.0
    cuda_graphs: bool = True
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    evaluate_every: int = 1
    look: Literal["anew", "steps"] = "anew"
    device: str = "auto"

    def __post_init__(self) -> None:
        smallest = {"epochs": 1, "batch_size": 2, "captions_per_image": 1, "evaluate_every": 1}
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: {getattr(self, name)} is too small", fix=f"at least {least}")
        if not 0 <= self.ema < 1:
            raise ConfigError(f"ema: {self.ema} is not in [0, 1)")


def resolve(config: TrainConfig, given: Mapping[str, Any] | None = None) -> TrainConfig:
    """The run that a config asks for: every setting of the method, and the model that the method trains.

    A method decides parts of its model (`Method.model_config`). `given` holds the settings of the model that
    were asked for, as nested plain values; by default those that differ from their defaults. One that the
    method decides otherwise is an error. A resolved config resolves to itself.
    """
    kind = find_method(config.method)
    settings = kind.read_settings(config.preset, config.settings)
    model = kind.model_config(config.model, settings).sized()
    if given is None:
        usual = dict(_leaves(to_dict(RetrieverConfig())))
        given = {key: value for key, value in _leaves(to_dict(config.model)) if value != usual.get(key)}
    decided = dict(_leaves(to_dict(model)))
    for key, value in _leaves(given):
        if key in decided and value not in (None, decided[key]):
            raise ConfigError(
                f"train.model.{key}: {value!r} is given, but {config.method} trains with {decided[key]!r}",
                fix=f"remove it{_setting_of(kind, key)}",
            )
    plain = to_dict(settings)
    if plain.get("ranking", model.ranking) != model.ranking:  # it has no score to rank so by
        if "ranking" in config.settings:
            raise ConfigError(
                f"train.settings.ranking: {plain['ranking']!r} cannot be had with the other settings",
                fix=f"remove it, the model ranks by {model.ranking!r}",
            )
        plain["ranking"] = model.ranking
    return replace(config, settings=plain, model=model)


def _setting_of(kind: type[Method], key: str) -> str:
    """Where to set what a method decides of its model."""
    name = DECIDED_BY.get(key, key.rpartition(".")[2])
    return f", or set train.settings.{name}" if hasattr(kind.Settings(), name) else ""


def _leaves(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested settings.

    >>> list(_leaves({"dim": 64, "head": {"name": "none"}}))
    [('dim', 64), ('head.name', 'none')]
    """
    for key, value in values.items():
        name = f"{where}.{key}" if where else key
        if isinstance(value, Mapping):
            yield from _leaves(value, name)
        else:
            yield name, value
