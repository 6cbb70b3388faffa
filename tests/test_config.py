from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.config import (
    RENAMED_RANKINGS,
    RENAMED_SETTINGS,
    fingerprint,
    first_difference,
    from_dict,
    renamed_words,
    to_dict,
)
from pmpguard.errors import ConfigError
from pmpguard.experiments.grid import GridConfig
from pmpguard.methods.baselines.bicro import BiCroSettings
from pmpguard.methods.baselines.dove import DoveSettings
from pmpguard.methods.baselines.swan import SwanSettings
from pmpguard.methods.baselines.vse import VseSettings
from pmpguard.methods.pmpguard_settings import PmpGuardSettings
from pmpguard.models.config import RetrieverConfig
from pmpguard.training.config import OptimiserConfig, TrainConfig


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    count: int
    inner: Inner = field(default_factory=Inner)
    names: tuple[str, ...] = ()
    size: tuple[int, int] = (1, 2)
    where: Path | None = None
    limits: dict[str, float] = field(default_factory=dict)
    flag: bool = False
    inners: tuple[Inner, ...] = ()
    anything: Any = None
    either: int | str = 0


FULL = Outer(
    3,
    Inner(0.5, "b"),
    ("x", "y"),
    (4, 5),
    Path("some/where"),
    {"a": 1.0},
    True,
    (Inner(), Inner(1.0)),
    [1, {"k": None}],
    "text",
)


def test_there_and_back():
    plain = to_dict(FULL)
    assert json.loads(json.dumps(plain)) == plain
    assert from_dict(Outer, plain) == FULL
    assert from_dict(Outer, {"count": 3, "inner": {"rate": 1}}).inner == Inner(1.0)


@given(
    st.builds(
        Outer,
        st.integers(),
        st.builds(Inner, st.floats(allow_nan=False), st.sampled_from(["a", "b"])),
        st.lists(st.text()).map(tuple),
        st.tuples(st.integers(), st.integers()),
        st.none() | st.just(Path("p")),
        st.dictionaries(st.text(), st.floats(allow_nan=False)),
        st.booleans(),
    )
)
def test_any_settings_survive_json(settings):
    assert from_dict(Outer, json.loads(json.dumps(to_dict(settings)))) == settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cuont": 1}, "config.cuont: unknown setting"),
        (
            {"inner": {"rat": 1}},
            "config.inner.rat: unknown setting\nFix: did you mean rate? known: kind",
        ),
        ({"inner": 3}, "config.inner: expected a mapping for Inner, got int"),
        ({"inner": {"kind": "c"}}, "config.inner.kind: 'c' is not one of 'a', 'b'"),
        ({"count": "3"}, "config.count: expected int, got '3'"),
        ({"count": True}, "config.count: expected int, got True"),
        ({"count": 3.0}, "config.count: expected int, got 3.0"),
        ({"inner": {"rate": "much"}}, "config.inner.rate: expected float, got 'much'"),
        ({"inner": {"rate": True}}, "config.inner.rate: expected float, got True"),
        ({"names": "xy"}, "config.names: expected a list, got 'xy'"),
        ({"size": [1, 2, 3]}, "config.size: expected 2 values, got 3"),
        ({"where": 3}, "config.where: expected Path, got 3"),
        ({"limits": {"a": "b"}}, "config.limits.a: expected float, got 'b'"),
        ({"limits": [1]}, "config.limits: expected a mapping, got [1]"),
        ({"flag": 1}, "config.flag: expected bool, got 1"),
        ({"either": 1.5}, "config.either: expected str, got 1.5"),
    ],
)
def test_wrong_settings_are_named(change, message):
    with pytest.raises(ConfigError) as flagged:
        from_dict(Outer, {"count": 1, **change})
    assert str(flagged.value).startswith(message)


FORMER = [
    (RetrieverConfig, "max_words", "max_tokens"),
    (RetrieverConfig, "stages", "multi_scale"),
    (SwanSettings, "stages", "multi_scale"),
    (DoveSettings, "stages", "multi_scale"),
    (OptimiserConfig, "new_lr", "head_lr"),
    (OptimiserConfig, "accumulate", "grad_accumulation"),
    (OptimiserConfig, "clip", "max_grad_norm"),
    (OptimiserConfig, "warm_up", "warmup_ratio"),
    (VseSettings, "warm_up", "warmup_epochs"),
    (BiCroSettings, "warm_up_share", "warmup_share"),
    (TrainConfig, "resident", "cache_images"),
    (TrainConfig, "resident_gb", "cache_images_gb"),
    (TrainConfig, "graphs", "cuda_graphs"),
    (PmpGuardSettings, "warm_up", "warmup_epochs"),
    (PmpGuardSettings, "release_at", "calibration_epochs"),
    (PmpGuardSettings, "catch_from", "detect_from_epoch"),
    (PmpGuardSettings, "passes", "clean_oversampling"),
    (PmpGuardSettings, "smoothing", "probability_ema"),
    (PmpGuardSettings, "rematch_least", "rematch_min_probability"),
    (PmpGuardSettings, "first_rounds", "detection_rounds"),
    (PmpGuardSettings, "second_from", "distill_above_rate"),
    (PmpGuardSettings, "teach", "distill_weight"),
    (GridConfig, "printed_table", "paper_table"),
    (GridConfig, "printed_dataset", "paper_dataset"),
]


@pytest.mark.parametrize(("kind", "former", "word"), FORMER)
def test_a_former_word_of_a_setting_is_refused_with_its_new_one(kind, former, word):
    with pytest.raises(
        ConfigError, match=rf"^config\.{former}: this setting is called {word}\nFix: write {word}"
    ):
        from_dict(kind, {former: 1})
    assert word in renamed_words(f"unrecognized arguments: --train.{former} 1")[0]


def test_every_renamed_setting_has_its_case():
    assert {former for _, former, _ in FORMER} == set(RENAMED_SETTINGS)
    assert {(former, word) for _, former, word in FORMER} == {
        (former, word) for former, words in RENAMED_SETTINGS.items() for word in words
    }


@pytest.mark.parametrize(("former", "word"), RENAMED_RANKINGS.items())
def test_a_former_ranking_is_refused_with_its_new_word(former, word):
    for kind in (RetrieverConfig, PmpGuardSettings):
        with pytest.raises(ConfigError) as refused:
            from_dict(kind, {"ranking": former})
        assert str(refused.value) == f"config.ranking: {former!r} is called {word!r}\nFix: write {word}"
    told = f'Parser key "train.model.ranking":\n  Expected a Literal. Got value: {former}'
    assert renamed_words(told) == [f"{former} is called {word}"]
    assert renamed_words(f'Parser key "name": Got value: {former}') == []


def test_a_missing_setting_is_named():
    with pytest.raises(ConfigError, match="'count'"):
        from_dict(Outer, {})
    with pytest.raises(ConfigError, match="run: expected a mapping for Outer, got list"):
        from_dict(Outer, [], "run")


def test_fingerprint_depends_on_values_only():
    assert fingerprint(FULL) == fingerprint(to_dict(FULL)) == fingerprint(from_dict(Outer, to_dict(FULL)))
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(Outer(1)) != fingerprint(Outer(2))
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(Inner()))


def test_first_difference_names_the_setting():
    assert first_difference(FULL, FULL) is None
    assert first_difference(Outer(1, Inner(0.5)), Outer(1, Inner(0.7))) == "inner.rate: 0.5 then, 0.7 now"
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == "b: None then, 2 now"
    assert first_difference({"a": [1, 2]}, {"a": [1, 3]}) == "a: [1, 2] then, [1, 3] now"
