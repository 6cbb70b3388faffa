"""The commands of docs/first-hour.md, typed as they stand, in miniature."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from pmpguard.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "first-hour.md"
SMALLER = {
    "--count 400 --size 128": "--count 40 --size 64",
    "--train.epochs 5": "--train.epochs 1 --train.batch_size 40 --train.model.image_size 64",
}
SERVES = "pmpguard up world/images"


@pytest.mark.slow
def test_the_first_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = PAGE.read_text(encoding="utf-8")
    assert not [usual for usual in SMALLER if usual not in text]
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for command in "".join(blocks).splitlines():
        for usual, smaller in SMALLER.items():
            command = command.replace(usual, smaller)
        if command.startswith(SERVES):  # its server would not end: embed and index as it does
            command = "pmpguard embed world/images --model runs/first/model --out vectors"
        assert main(shlex.split(command)[1:]) == 0, command
    assert (tmp_path / "report" / "index.html").is_file() and (tmp_path / "runs/first/index.html").is_file()
