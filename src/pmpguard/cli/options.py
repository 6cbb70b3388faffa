"""What `--help` prints of a verb: its common options in one screen; `--help-all` prints all of them."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

WIDTH = 100
INDENT = 30  # where an option's text begins

# Settings inside groups that stand in a verb's short help; all others need --help-all.
COMMON = {
    "train": (
        "noise.rate", "noise.level", "train.method", "train.preset", "train.settings", "train.model.vision",
        "train.model.text", "train.model.image_size", "train.epochs", "train.batch_size", "train.seed",
        "train.precision", "train.optimiser.encoder_lr", "train.optimiser.head_lr", "train.device",
    ),
    "audit": ("crossfit.encoders", "crossfit.epochs", "crossfit.device"),
}  # fmt: skip
MORE = {
    "train": "`pmpguard methods pmpguard` lists what --train.settings takes.",
    "table": "`pmpguard table --list` lists the recipes.",
}


def verb_options(module: str, function: str) -> list[argparse.Action]:
    """Every positional and option of a verb, from the signature of its function."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    verb = getattr(importlib.import_module(f"pmpguard.cli.{module}"), function)
    parser.add_function_arguments(verb, as_positional=True, sub_configs=True)
    return [action for action in parser._actions if is_option(action)]


def about_verb(module: str, function: str) -> str:
    """What a verb's docstring says before its options."""
    verb = getattr(importlib.import_module(f"pmpguard.cli.{module}"), function)
    return (inspect.getdoc(verb) or "").partition("\nArgs:")[0].strip()


def asks_for_help(words: Sequence[str]) -> str | None:
    """Which help the words of a verb ask for: "short", "all", or none of both.

    >>> asks_for_help(["runs/x", "-h"]), asks_for_help(["--help-all"]), asks_for_help(["--", "-h"])
    ('short', 'all', None)
    """
    options = list(words)[: list(words).index("--")] if "--" in words else list(words)
    if any(word in ("--help-all", "--help_all") for word in options):
        return "all"
    return "short" if any(word in ("-h", "--help") for word in options) else None


def help_text(verb: str, description: str, actions: Iterable[argparse.Action], *, every: bool) -> str:
    """The help of a verb from the actions of its parser."""
    told = [action for action in actions if is_option(action)]
    positional = [action for action in told if not action.option_strings]
    options = [action for action in told if action.option_strings]
    shown = options if every else [each for each in options if is_common(verb, each.dest)]
    names = " ".join(f"[{a.dest.upper()}]" if a.default is not None else a.dest.upper() for a in positional)
    lines = [f"usage: pmpguard {verb}{f' {names}' if names else ''} [options]", ""]
    lines += [*wrapped(description), ""]
    lines += [line for action in positional for line in entry(action.dest.upper(), action)]
    lines += [""] if positional else []
    group = ""
    for action in shown:
        if every and (here := action.dest.rpartition(".")[0]) != group:
            group = here
            lines += ["", f"{group}:"] if group else [""]
        lines += entry(f"--{action.dest}", action)
    lines += ["", "Also: --config FILE.yaml with any of them, --json, --print_config, --allow_outside."]
    if len(shown) < len(options):
        lines.append(f"`pmpguard {verb} --help-all` lists all {len(options)} options.")
    return "\n".join([*lines, *([MORE[verb]] if verb in MORE else [])])


def is_option(action: argparse.Action) -> bool:
    """Whether an action takes a value of the verb's own; groups and the parser's own words do not."""
    own = {"help", "config", "json", "allow_outside", "print_config"}
    asks_for_help = action.dest.endswith(".help")  # jsonargparse's own, one for each group of settings
    return action.dest not in own and not asks_for_help and getattr(action, "_typehint", None) is not None


def is_common(verb: str, name: str) -> bool:
    """Whether an option stands in the short help: those of the verb itself, and chosen ones of its groups."""
    return "." not in name or name in COMMON.get(verb, ())


def entry(name: str, action: argparse.Action) -> list[str]:
    """The lines of one option: name, kind of value, what it does, default."""
    kind = value_kind(getattr(action, "_typehint", None)) if action.option_strings else ""
    head = f"  {name} {kind}".rstrip()
    usual = usual_value(action)
    text = explanation(action) + (f" (default: {usual})" if usual else "")
    lines = textwrap.wrap(text, WIDTH - INDENT) or [""]
    if len(head) >= INDENT:
        return [head, *(" " * INDENT + line for line in lines)]
    return [f"{head:<{INDENT}}{lines[0]}", *(" " * INDENT + line for line in lines[1:])]


def usual_value(action: argparse.Action) -> str:
    """The default of an option, empty where nothing need be said of it."""
    default = action.default
    silent = default in (None, "", argparse.SUPPRESS) or default is False or default in ({}, [], ())
    return "" if silent else str(default)


def explanation(action: argparse.Action) -> str:
    """What an option does, on one line."""
    return " ".join((action.help or "").replace("%%", "%").split())


def value_kind(hint: Any) -> str:
    """A type as a user reads it.

    >>> value_kind(int), value_kind(Path | None), value_kind(Literal["a", "b"]), value_kind(bool)
    ('N', 'PATH', '{a,b}', '')
    >>> value_kind(tuple[str, ...]), value_kind(dict[str, int])
    ('TEXT', 'NAME VALUE')
    """
    kinds = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, kinds)) + "}"
    if get_origin(hint) is dict or hint is dict or dataclasses.is_dataclass(hint):
        return "NAME VALUE"
    if get_origin(hint) in (list, tuple):
        return value_kind(kinds[0])
    if kinds:  # a union
        return value_kind(kinds[0])
    return {int: "N", float: "NUMBER", bool: "", Path: "PATH"}.get(hint, "TEXT")


def wrapped(text: str) -> list[str]:
    """Paragraphs within the width, each point of a list on lines of its own."""
    lines = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        for block in re.split(r"\n(?=\s*\* )", paragraph):
            indent = "  " if block.lstrip().startswith("* ") else ""
            lines += textwrap.wrap(" ".join(block.split()), WIDTH, subsequent_indent=indent)
        lines.append("")
    return lines[:-1]
