"""Settings as frozen dataclasses: to plain values and back, unknown keys refused, one fingerprint each."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import types
import typing
from pathlib import Path
from typing import Any, TypeVar, cast

from pmpguard.errors import ConfigError, one_of

T = TypeVar("T")

# Former words of settings and the words for them; the one that a place knows is meant.
RENAMED_SETTINGS: dict[str, tuple[str, ...]] = {
    "accumulate": ("grad_accumulation",),
    "catch_from": ("detect_from_epoch",),
    "clip": ("max_grad_norm",),
    "first_rounds": ("detection_rounds",),
    "graphs": ("cuda_graphs",),
    "max_words": ("max_tokens",),
    "new_lr": ("head_lr",),
    "passes": ("clean_oversampling",),
    "printed_dataset": ("paper_dataset",),
    "printed_table": ("paper_table",),
    "release_at": ("calibration_epochs",),
    "rematch_least": ("rematch_min_probability",),
    "resident": ("cache_images",),
    "resident_gb": ("cache_images_gb",),
    "second_from": ("distill_above_rate",),
    "smoothing": ("probability_ema",),
    "stages": ("multi_scale",),
    "teach": ("distill_weight",),
    "warm_up": ("warmup_ratio", "warmup_epochs"),
    "warm_up_share": ("warmup_share",),
}
RENAMED_RANKINGS = {
    "S": "awareness",
    "S+z": "awareness+gated",
    "pooled+S": "pooled+awareness",
    "z": "gated",
}


def to_dict(value: Any) -> Any:
    """A dataclass as nested plain values that JSON and YAML can hold.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     x: int = 1
    ...     tags: tuple[str, ...] = ("a",)
    >>> to_dict(Point())
    {'x': 1, 'tags': ['a']}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_dict(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def from_dict(kind: type[T], values: Any, where: str = "config") -> T:
    """Build a dataclass from plain values; an unknown key or a wrong type is an error naming the field."""
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a mapping for {kind.__name__}, got {type(values).__name__}")
    hints = typing.get_type_hints(kind)
    known = {field.name for field in dataclasses.fields(cast(Any, kind)) if field.init}
    for key in values:
        if key not in known:
            new = next((word for word in RENAMED_SETTINGS.get(key, ()) if word in known), None)
            if new is not None:
                raise ConfigError(f"{where}.{key}: this setting is called {new}", fix=f"write {new}")
            raise ConfigError(f"{where}.{key}: unknown setting", fix=one_of(key, sorted(known)))
    arguments = {key: _convert(hints[key], value, f"{where}.{key}") for key, value in values.items()}
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Check `value` against the type `hint`, building nested dataclasses and tuples on the way."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else from_dict(hint, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            new = RENAMED_RANKINGS.get(value) if isinstance(value, str) else None
            if new in arguments:
                raise ConfigError(f"{where}: {value!r} is called {new!r}", fix=f"write {new}")
            raise ConfigError(f"{where}: {value!r} is not one of {', '.join(map(repr, arguments))}")
        return value
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            if option is type(None) and value is None:
                return None
        for option in (option for option in arguments if option is not type(None)):
            try:
                return _convert(option, value, where)
            except ConfigError as error:
                last = error
        raise last
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: expected a list, got {value!r}")
        if origin is tuple and arguments[-1:] != (Ellipsis,) and len(arguments) != len(value):
            raise ConfigError(f"{where}: expected {len(arguments)} values, got {len(value)}")
        kinds = (
            arguments if origin is tuple and arguments[-1] is not Ellipsis else [arguments[0]] * len(value)
        )
        return origin(_convert(kind, item, where) for kind, item in zip(kinds, value, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: expected a mapping, got {value!r}")
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ConfigError(f"{where}: expected {hint.__name__}, got {value!r}")
    return value


def renamed_words(message: str) -> list[str]:
    """What a message of the command line's parser calls by a former word, with the word for it.

    >>> renamed_words("unrecognized arguments: --train.optimiser.new_lr 1")
    ['new_lr is called head_lr']
    >>> renamed_words("Group 'train' does not accept option 'model.max_words'")
    ['max_words is called max_tokens']
    """
    keys = [name.rpartition(".")[2] for name in re.findall(r"(?:--|option ')([\w.]+)", message)]
    words = [
        f"{key} is called {' or '.join(RENAMED_SETTINGS[key])}" for key in keys if key in RENAMED_SETTINGS
    ]
    value = re.search(r"Got value: (\S+)", message)
    if value is not None and value[1] in RENAMED_RANKINGS and "ranking" in message:
        words.append(f"{value[1]} is called {RENAMED_RANKINGS[value[1]]}")
    return words


def fingerprint(value: Any) -> str:
    """A short stable hash of a config or of plain values."""
    text = json.dumps(to_dict(value), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def first_difference(old: Any, new: Any, where: str = "") -> str | None:
    """The dotted name of the first setting in which two configs differ, with both values.

    >>> first_difference({"a": {"b": 1}}, {"a": {"b": 2}})
    'a.b: 1 then, 2 now'
    """
    old, new = to_dict(old), to_dict(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = first_difference(old.get(key), new.get(key), f"{where}.{key}" if where else key)
            if inner:
                return inner
        return None
    return None if old == new else f"{where}: {old!r} then, {new!r} now"
