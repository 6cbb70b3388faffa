"""Help of every verb: one screen of common options, all of them on demand, every option explained."""

from __future__ import annotations

import importlib

import pytest
from jsonargparse import ArgumentParser

from pmpguard.cli import main as cli
from pmpguard.cli.options import COMMON, WIDTH, is_option


def options_of(verb: str) -> dict[str, str]:
    """Every option of a verb with its explanation, by a parser of its own."""
    module, name, _ = cli.VERBS[verb]
    parser = ArgumentParser(exit_on_error=False)
    function = getattr(importlib.import_module(f"pmpguard.cli.{module}"), name)
    parser.add_function_arguments(function, as_positional=True, sub_configs=True)
    return {action.dest: action.help or "" for action in parser._actions if is_option(action)}


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_help_fits_a_screen_and_every_option_is_explained(verb, capsys):
    assert cli.main([*verb.split(), "--help"]) == 0
    short = capsys.readouterr().out
    assert cli.main([*verb.split(), "--help-all"]) == 0
    whole = capsys.readouterr().out
    assert len(short.splitlines()) < 80
    assert max(map(len, whole.splitlines())) <= WIDTH + 2
    for option, text in options_of(verb).items():
        assert len(text.split()) >= 4, f"{verb} --{option}: {text!r} is no phrase"
        assert text.endswith("."), f"{verb} --{option}: {text!r} does not end"
        assert option in whole or option.upper() in whole
    hidden = [option for option in options_of(verb) if f"--{option} " not in f"{short} "]
    assert all("." in option or option.upper() in short for option in hidden)


def test_common_options_exist():
    for verb, names in COMMON.items():
        assert set(names) <= set(options_of(verb))


def test_short_help_says_how_many_more_there_are(capsys):
    cli.main(["train", "--help"])
    short = capsys.readouterr().out
    assert f"lists all {len(options_of('train')) - 1} options" in short  # the run's folder is no option
    assert "--train.optimiser.betas" not in short and "pmpguard methods" in short


def test_an_option_shows_its_kind_of_value_and_its_default(capsys):
    cli.main(["train", "-h"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--train.epochs N passes over the pairs. (default: 12)" in text
    assert "--noise.level {caption,image}" in text and "usage: pmpguard train RUN [options]" in text
