"""The reference of the command line holds every command and every option of the parsers."""

from __future__ import annotations

import re

from pmpguard.cli.main import VERBS
from pmpguard.cli.options import explanation, verb_options
from pmpguard.cli.reference import anchor, reference_page


def test_every_command_and_option_stands_in_the_reference() -> None:
    page = reference_page()
    for verb, (module, function, line) in VERBS.items():
        start = page.index(f"\n## pmpguard {verb} {{ #{anchor(verb)} }}\n")
        section = page[start : page.find("\n## ", start + 1)]
        assert f"[`{verb}`](#{anchor(verb)}) | {line} |" in page
        actions = verb_options(module, function)
        assert section.count("\n| `") == len(actions), verb
        for action in actions:
            name = f"--{action.dest}" if action.option_strings else action.dest.upper()
            (row,) = [line for line in section.splitlines() if re.match(rf"\| `{name}[ `]", line)]
            assert explanation(action).replace("|", "\\|") in row


def test_a_row_says_what_an_option_takes_and_what_it_is_otherwise() -> None:
    rows = {row.split("`")[1]: row for row in reference_page().splitlines() if row.startswith("| `--")}
    assert rows["--train.epochs N"].endswith(" Default: `12`. |")
    assert rows["--noise.level"].endswith(" One of `caption`, `image`. Default: `caption`. |")
    assert "Default" not in rows["--oracle"] and "Default" not in rows["--judge PATH"]
