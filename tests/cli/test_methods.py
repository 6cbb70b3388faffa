"""`pmpguard methods`: every method in a line, every setting explained."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pmpguard.cli import main as cli
from pmpguard.cli.methods import about
from pmpguard.cli.options import wrapped
from pmpguard.methods.registry import BUILT_IN, find_method


def test_every_method_stands_in_the_list(capsys):
    assert cli.main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(BUILT_IN)]] == list(BUILT_IN)
    assert all(len(line.split()) > 5 for line in lines[: len(BUILT_IN)])


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_setting_is_listed_and_explained(name, capsys):
    assert cli.main(["methods", name]) == 0
    text = capsys.readouterr().out
    kind = find_method(name)
    said = "\n".join(wrapped(about(kind)))
    assert text.startswith(said)
    if kind.__module__.startswith("pmpguard.methods.baselines."):  # published elsewhere, written anew here
        assert "Differs from the original:" in said
    text = text.removeprefix(said)
    for field in dataclasses.fields(find_method(name).Settings):
        line = next(line for line in text.splitlines() if line.startswith(f"  {field.name}"))
        following = text.split(line)[1].splitlines()[1].strip()
        assert line.partition(field.name)[2].strip() or following, f"{name}.{field.name} is not explained"
    for preset in find_method(name).PRESETS:
        assert f"preset {preset}" in text or "It has no settings." in text


def test_a_method_of_ones_own_is_described_by_its_own_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ownmethod.py").write_text(
        "from pmpguard.methods.infonce import InfoNce\nclass Mine(InfoNce):\n    name = 'mine'\n"
    )
    assert cli.main(["methods", "ownmethod:Mine"]) == 0
    assert capsys.readouterr().out.startswith("mine\n")
    assert cli.main(["methods", "ownmethod:Mien"]) == 1
    assert "Fix: did you mean Mine? known: Mine in ownmethod" in capsys.readouterr().err
    assert cli.main(["methods", "ownmehtod:Mine"]) == 1
    assert f"looked for in {tmp_path}" in capsys.readouterr().err


def test_as_json_and_an_unknown_name(capsys):
    assert cli.main(["methods", "l2rm", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["mass"] == 0.1 and "optimal transport" in found["about"]
    assert cli.main(["methods", "l2r"]) == 1
    assert "known: pmpguard" in capsys.readouterr().err
