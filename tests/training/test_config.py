"""Settings are resolved once: what the method decides of its model, and where to set it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.prepared_squares import prepared_squares
from helpers.small_runs import small_config

from pmpguard.config import to_dict
from pmpguard.errors import ConfigError
from pmpguard.experiments.run import ExperimentConfig, NoiseConfig, run_experiment
from pmpguard.methods.registry import BUILT_IN, find_method
from pmpguard.models.config import CrossGatedConfig, HeadConfig, RetrieverConfig
from pmpguard.training.config import TrainConfig, resolve

ODD = {
    "pmpguard": {"cga": True, "ranking": "awareness+gated", "attention_scale": 3.0, "gate_bias": 0.5},
    "pir": {"attention_heads": 4, "dropout": 0.1, "classes": 5, "keep": 0.5, "cycles": 2},
    "dove": {"attention_heads": 2, "dropout": 0.3},
    "harma": {"adapter_width": 32, "attention_heads": 2, "gate": 0.3},
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ODD)
def test_the_configs_of_run_and_model_agree(method: str, tmp_path: Path) -> None:
    model = replace(small_config().model, dropout=0.1, ranking_weight=0.5, temperature=0.1)
    train = small_config(method=method, settings=ODD[method], model=model, epochs=1, seed=7)
    run_experiment(ExperimentConfig(noise=NoiseConfig(0.3), train=train), tmp_path, prepared_squares())
    of_run = json.loads((tmp_path / "config.json").read_text())
    of_model = json.loads((tmp_path / "model" / "config.json").read_text())["retriever"]
    assert of_run["model"] == of_model
    kind = find_method(method)
    assert of_run["settings"] == to_dict(kind.read_settings("recommended", ODD[method]))
    assert (of_run["model"]["dropout"], of_run["seed"], of_run["optimiser"]["head_lr"]) == (0.1, 7, 2e-3)


def test_the_settings_of_the_method_decide_its_model() -> None:
    model = resolve(small_config(method="pmpguard", settings=ODD["pmpguard"])).model
    assert (model.ranking, model.cross_gated) == ("awareness+gated", CrossGatedConfig(True, 3.0, 0.5))
    assert resolve(TrainConfig()).model.ranking == "pooled+awareness"
    assert resolve(TrainConfig(preset="paper")).settings["form"] == "joint"
    without = resolve(small_config(method="pmpguard", settings={"pnaa": False}))
    assert without.model.ranking == without.settings["ranking"] == "pooled"


@pytest.mark.parametrize(("vision", "size"), [("tiny", 64), ("swin-t", 224), ("efficientnet-lite0", 224)])
def test_images_have_the_size_that_their_encoder_was_made_for(vision: str, size: int) -> None:
    model = RetrieverConfig(vision=vision)
    assert (model.image_size, model.input_size, model.sized().image_size) == (None, size, size)
    resolved = resolve(TrainConfig("infonce", model=model)).model
    stated = resolve(TrainConfig("infonce", model=replace(model, image_size=size))).model
    assert resolved == stated and resolved.image_size == size  # one fingerprint for both
    assert RetrieverConfig(vision=vision, image_size=96).input_size == 96
    moved = replace(RetrieverConfig(), vision=vision)  # as an option changes the default
    assert moved.input_size == size


@pytest.mark.parametrize("method", BUILT_IN)
def test_a_resolved_config_resolves_to_itself(method: str) -> None:
    config = resolve(TrainConfig(method=method, settings=ODD.get(method, {})))
    assert resolve(config) == config


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        (
            "pmpguard",
            {"ranking": "pooled"},
            "ranking: 'pooled' .*'pooled\\+awareness'\nFix: .*settings.ranking$",
        ),
        (
            "pmpguard",
            {"cross_gated": CrossGatedConfig(attention_scale=2.0)},
            r"settings\.(cga|attention_scale)$",
        ),
        ("infonce", {"ranking": "awareness+gated"}, "infonce trains with 'pooled'\nFix: remove it$"),
        ("pir", {"head": HeadConfig("pir", scenes=3)}, "head.scenes: 3 .*\nFix: .*settings.classes$"),
        ("swan", {"multi_scale": False}, "multi_scale: False .*\nFix: .*settings.multi_scale$"),
    ],
)
def test_what_the_method_decides_is_refused_elsewhere(
    method: str, model: dict[str, Any], message: str
) -> None:
    config = TrainConfig(method=method, model=RetrieverConfig(**model))
    given = {name: to_dict(value) for name, value in model.items()}
    with pytest.raises(ConfigError, match=message):
        resolve(config, given)
    if config.model != RetrieverConfig():
        with pytest.raises(ConfigError, match=message):
            resolve(config)


def test_a_given_default_is_told_from_one_that_is_so_by_default() -> None:
    resolve(TrainConfig(method="infonce"))
    with pytest.raises(ConfigError, match="'awareness' is given, but infonce trains with 'pooled'"):
        resolve(TrainConfig(method="infonce"), {"ranking": "awareness"})
    resolve(
        TrainConfig(method="infonce"), {"ranking": "pooled", "dim": 512, "text_options": {"frozen": False}}
    )


def test_a_ranking_without_its_score_is_refused() -> None:
    settings = {"pnaa": False, "ranking": "pooled+awareness"}
    with pytest.raises(
        ConfigError, match=r"settings\.ranking: .*\nFix: remove it, the model ranks by 'pooled'"
    ):
        resolve(TrainConfig(settings=settings))
