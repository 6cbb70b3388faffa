from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.config import fingerprint, first_difference, from_dict, to_dict
from pmpguard.errors import ConfigError


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
        ({"inner": {"rat": 1}}, "config.inner.rat: unknown setting\nFix: known settings here: kind, rate"),
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
