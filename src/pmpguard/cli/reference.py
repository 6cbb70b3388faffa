"""The reference of the command line as a page, from the parsers: `python -m pmpguard.cli.reference`."""

from __future__ import annotations

import argparse

from pmpguard.cli.main import VERBS
from pmpguard.cli.options import about_verb, explanation, usual_value, value_kind, verb_options

HEAD = """\
# Command line

Written from the parsers. Every command also takes `--config FILE.yaml` with any of its options, `--json` to
print its result as JSON, `--print_config` to print its settings as YAML, `--allow_outside` to open images
outside the dataset's folder, `--help` and `--help-all`. Dashes and underscores in options are the same.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | an error, explained with its fix; for `data check` a problem in the data |
| 2 | wrong usage |
| 3 | done, but something was left out and named |
| 130, 143 | stopped by Ctrl-C, by SIGTERM; the same command goes on from there |
"""


def reference_page() -> str:
    """The whole page."""
    index = "\n".join(f"| [`{verb}`](#{anchor(verb)}) | {line} |" for verb, (_, _, line) in VERBS.items())
    parts = [HEAD, f"| command | |\n|---|---|\n{index}", *(verb_section(verb) for verb in VERBS)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def verb_section(verb: str) -> str:
    """One command: usage, description, and a table of its options."""
    module, function, _ = VERBS[verb]
    actions = verb_options(module, function)
    words = [a for a in actions if not a.option_strings]
    usage = " ".join(f"[{a.dest.upper()}]" if a.default is not None else a.dest.upper() for a in words)
    rows = [option_row(action) for action in actions]
    table = "\n".join(["| option | |", "|---|---|", *rows]) if rows else ""
    head = f"## pmpguard {verb} {{ #{anchor(verb)} }}"
    code = f"```text\n{' '.join(f'pmpguard {verb} {usage}'.split())} [options]\n```"
    return "\n\n".join(part for part in (head, code, about_verb(module, function), table) if part)


def option_row(action: argparse.Action) -> str:
    """A row of the table: name and kind of value; what it does, the choices, the default."""
    name = f"--{action.dest}" if action.option_strings else action.dest.upper()
    kind, usual = value_kind(getattr(action, "_typehint", None)), usual_value(action)
    told = explanation(action)
    if kind.startswith("{"):
        told += f" One of {', '.join(f'`{choice}`' for choice in kind[1:-1].split(','))}."
    elif kind and action.option_strings:
        name += f" {kind}"
    if usual:
        told += f" Default: `{usual}`."
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{name}`", told)) + " |"


def anchor(verb: str) -> str:
    """
    >>> anchor("data check")
    'data-check'
    """
    return verb.replace(" ", "-")


if __name__ == "__main__":
    print(reference_page(), end="")
