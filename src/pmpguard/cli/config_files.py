"""Files given with `--config`, looked at before a parser expands them: they may come from a stranger."""

from __future__ import annotations

from pathlib import Path

import yaml

from pmpguard.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000  # with every alias written out
MAX_DEPTH = 100


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
