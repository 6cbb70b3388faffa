"""Wrong usage in three lines: the mistake, what was probably meant, where to look; never a page of help."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from pmpguard.errors import one_of


def unknown_command(words: Sequence[str], verbs: Iterable[str]) -> str:
    """About words that begin with no verb.

    >>> print(unknown_command(["data", "chek", "x"], ["data check", "data stats", "demo"]))
    pmpguard: unknown command 'data chek'
    Did you mean `pmpguard data check`?
    Fix: `pmpguard --help` lists all commands
    >>> print(unknown_command(["chek"], ["data check", "demo"]).splitlines()[1])
    Did you mean `pmpguard data check`?
    >>> print(unknown_command(["data"], ["data check", "data stats", "demo"]).splitlines()[1])
    Known: data check, data stats
    """
    known = list(verbs)
    group = [verb for verb in known if verb.startswith(f"{words[0]} ")]
    typed = " ".join(words[:2]) if group else words[0]
    near = difflib.get_close_matches(typed, group or known, 1, 0.8 if group else 0.6)
    if not near and not group:  # `chek` for `data check`
        by_last_word = {verb.rpartition(" ")[2]: verb for verb in known}
        near = [by_last_word[word] for word in difflib.get_close_matches(typed, by_last_word, 1, 0.75)]
    lines = [f"pmpguard: unknown command {typed!r}"]
    if near and (not group or len(words) > 1):
        lines.append(f"Did you mean `pmpguard {near[0]}`?")
    elif group:
        lines.append(f"Known: {', '.join(group)}")
    return "\n".join([*lines, "Fix: `pmpguard --help` lists all commands"])


def wrong_usage(verb: str, message: str, options: Iterable[str]) -> str:
    """About words that a verb's parser refuses, from its message and the options it knows.

    >>> print(wrong_usage("train", "unrecognized arguments: --epochs 3", ["--train.epochs", "--scenes"]))
    pmpguard train: unknown option --epochs
    Did you mean --train.epochs?
    Fix: `pmpguard train --help` lists its options
    >>> print(wrong_usage("train", 'Parser key "n":\\n  Expected a <class \\'int\\'>. Got value: x', []))
    pmpguard train: --n: Expected a whole number. Got value: x
    Fix: `pmpguard train --help` lists its options
    """
    known = [option for option in options if option.startswith("--")]
    lines, unknown = [f"pmpguard {verb}: {plain_message(message)}"], unknown_option(message)
    if unknown is not None:
        lines[0] = f"pmpguard {verb}: unknown option {unknown}"
        meant = nearest_option(unknown, known)
        lines += [] if meant is None else [f"Did you mean {meant}?"]
    return "\n".join([*lines, f"Fix: `pmpguard {verb} --help` lists its options"])


def unknown_option(message: str) -> str | None:
    """The first option that a parser's message says it does not know."""
    if message.startswith("unrecognized arguments:"):
        found = re.search(r" (--?[^\s=]+)", message)
        return None if found is None else found[1]
    found = re.match(r"Group '([^']+)' does not accept option '([^']+)'", message)
    return None if found is None else f"--{found[1]}.{found[2]}"


def nearest_option(option: str, known: Sequence[str]) -> str | None:
    """The option of the same name inside a group, else the one whose name is nearest.

    >>> nearest_option("--batch_size", ["--train.batch_size"]), nearest_option("--dataste", ["--dataset"])
    ('--train.batch_size', '--dataset')
    """
    leaf = option.lstrip("-").rpartition(".")[2]
    by_leaf = {name.lstrip("-").rpartition(".")[2]: name for name in reversed(known)}
    near = difflib.get_close_matches(option, known, 1, 0.75)
    if leaf in by_leaf:
        return by_leaf[leaf]
    if near:
        return near[0]
    leaves = difflib.get_close_matches(leaf, by_leaf, 1, 0.75)
    return by_leaf[leaves[0]] if leaves else None


KINDS = {"int": "whole number", "float": "number", "bool": "yes or no", "Path": "path", "str": "text"}


def plain_message(message: str) -> str:
    """A parser's message on one line, in plain words.

    >>> plain_message("Expected a Literal['light', 'tiny']. Got value: lihgt")
    "'lihgt' is unknown, did you mean light? known: light, tiny"
    """
    text = re.sub(r'Parser key "([^"]+)":', r"--\1:", " ".join(message.split()))
    text = re.sub(r"Expected a (?:typing\.)?Literal\[([^]]+)\]\. Got value: (\S+)", _unknown_choice, text)
    text = re.sub(r"Expected a <class '(?:\w+\.)*(\w+)'>", _kind_expected, text)
    text = re.sub(
        r"Does not validate against any of the Union .*?Errors: - (.*?) - Expected a .*", r"\1", text
    )
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text).replace("typing.", "")
    text = text.replace("unrecognized arguments:", "too many words:")
    return text if len(text) <= 400 else f"{text[:400]}..."


def _unknown_choice(match: re.Match[str]) -> str:
    choices = re.findall("'([^']*)'", match[1])
    return f"{match[2]!r} is unknown, {one_of(match[2], choices)}"


def _kind_expected(match: re.Match[str]) -> str:
    return f"Expected a {KINDS.get(match[1], match[1])}"
