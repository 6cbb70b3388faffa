"""Files given with `--config`: found by name, and looked at before a parser expands them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from pmpguard.errors import ConfigError
from pmpguard.experiments.recipe_names import find_recipe

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000  # with every alias written out
MAX_DEPTH = 100


def configs_and_others(words: Sequence[str], verb: str) -> tuple[list[str], list[str]]:
    """`--config` with each file of the words, or recipe of that name, and all other words.

    Parsers let the later word win. Files go first, so that an option overrides them wherever it stands.
    """
    files: list[Path] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        option, equals, value = rest[0].partition("=")
        if option == "--":
            others += rest
            break
        if option == "--config" and (value if equals else len(rest) > 1):
            files.append(find_recipe(value if equals else rest.pop(1), verb))
        else:
            others.append(rest[0])
        del rest[0]
    for path in files:
        check_config_file(path)
    configs = [f"--config={path}" for path in files]
    if any(_settings_of_another_method(path, others) for path in files):
        configs.append("--train.settings={}")
    return configs, others


def _settings_of_another_method(path: Path, words: Sequence[str]) -> bool:
    """Whether a file sets what its training method knows, and the words ask for another method."""
    asked = [word.partition("=")[2] for word in words if word.startswith("--train.method=")]
    asked += [value for word, value in pairwise(words) if word == "--train.method"]
    if not asked or not path.is_file():
        return False
    root: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    train = root.get("train") if isinstance(root, dict) else None
    return isinstance(train, dict) and bool(train.get("settings")) and train.get("method") != asked[-1]


def check_config_file(path: Path) -> None:
    """Refuse what is no text or no YAML, is nested without end, or grows when its aliases are followed.

    A tenth of a kilobyte of aliases of lists of aliases stands for billions of values.
    """
    if not path.is_file():
        return  # the parser says so
    fix = "give a YAML file of options, as --print_config writes it"
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(f"{path}: over {MAX_BYTES:,} bytes", fix=fix)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8 (byte {error.start})", fix=fix) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{path}: not readable as YAML ({why})", fix=fix) from error
    if root is not None and _values(root, {}, 0) > MAX_VALUES:
        raise ConfigError(f"{path}: over {MAX_VALUES:,} values with its aliases written out", fix=fix)


def _values(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """How many values a node stands for; a node that holds itself, or lies too deep, counts as too many."""
    if depth > MAX_DEPTH:
        return MAX_VALUES + 1
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1  # until it is known
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        known[id(node)] = 1 + sum(_values(child, known, depth + 1) for child in children)
    return known[id(node)]
