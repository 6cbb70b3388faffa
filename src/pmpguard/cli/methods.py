"""`pmpguard methods`: the training methods, and what the settings of each mean."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from jsonargparse import ArgumentParser

from pmpguard.cli.options import entry, wrapped
from pmpguard.config import to_dict
from pmpguard.methods.method import Method
from pmpguard.methods.registry import find_method, known_methods


@dataclass(frozen=True)
class MethodList:
    """What `pmpguard methods` prints: name -> what it does in a line."""

    methods: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        return {"methods": self.methods}

    def as_text(self) -> str:
        width = max(map(len, self.methods))
        lines = [f"  {name:<{width}}  {line}" for name, line in self.methods.items()]
        last = "`pmpguard methods NAME` lists a method's settings. Train with --train.method NAME."
        return "\n".join([*lines, "", last])


@dataclass(frozen=True)
class MethodHelp:
    """What `pmpguard methods NAME` prints."""

    name: str
    kind: type[Method]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "about": about(self.kind),
            "settings": to_dict(self.kind.Settings()),
            "presets": self.kind.PRESETS,
        }

    def as_text(self) -> str:
        lines = [*wrapped(about(self.kind)), ""]
        settings = setting_actions(self.kind)
        if not settings:
            return "\n".join([*lines, f"It has no settings. Train with --train.method {self.name}."])
        lines += [line for action in settings for line in entry(action.dest, action)]
        for preset, values in self.kind.PRESETS.items():
            changes = ", ".join(f"{key}={value}" for key, value in values.items())
            lines += ["", *wrapped(f"preset {preset}: {changes or 'the defaults above'}")]
        return "\n".join(
            [*lines, "", f"Set one with --train.settings.NAME VALUE, with --train.method {self.name}."]
        )


def methods(name: str = "", /) -> MethodList | MethodHelp:
    """List the training methods, or the settings of one.

    Args:
        name: a method whose settings to list, or package.module:Class of your own; all methods by default.
    """
    if name:
        return MethodHelp(name, find_method(name))
    return MethodList({each: about(find_method(each)).split("\n")[0] for each in known_methods()})


def about(kind: type[Method]) -> str:
    """What its module says of a method, with its references, then what the class does and what differs."""
    said = inspect.getdoc(importlib.import_module(kind.__module__)), inspect.cleandoc(kind.__doc__ or "")
    return "\n\n".join(filter(None, said)) or kind.name


def setting_actions(kind: type[Method]) -> list[Any]:
    """The settings of a method as options: name, type, default and what it does."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind.Settings, as_group=False)
    return [action for action in parser._actions if getattr(action, "_typehint", None) is not None]
