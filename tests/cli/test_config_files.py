"""Hostile settings files are our errors, quickly."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmpguard.cli.config_files import check_config_file
from pmpguard.cli.main import main
from pmpguard.errors import ConfigError

LISTS = "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "no text": b"\x80\x81\0\xff",
    "control": b"train: \x07",
    "aliases": f"a: &a [1, 2]\n{LISTS}".encode(),
    "itself": b"a: &a [*a]",
    "deep": b"[" * 1200 + b"]" * 1200,
    "python": b"train: !!python/object/apply:os.system ['id']",
    "large": b"# " + b"x" * (1 << 20),
    "open": b"[" * 800,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name(tmp_path, name, capsys):
    path = tmp_path / "settings.yaml"
    path.write_bytes(HOSTILE[name])
    assert main(["train", "--config", str(path)]) in (1, 2)
    assert main(["corrupt", f"--config={path}"]) in (1, 2)
    shown = capsys.readouterr().err
    assert "Traceback" not in shown and "Fix:" in shown
    if name != "python":  # the parser's own error
        with pytest.raises(ConfigError, match=r"settings\.yaml"):
            check_config_file(path)


def test_ordinary_files_pass(tmp_path):
    recipes = (Path(__file__).parents[2] / "src/pmpguard/experiments/recipes").rglob("*.yaml")
    for path in recipes:
        check_config_file(path)
    (tmp_path / "alias.yaml").write_text("a: &a [1, 2]\nb: [*a, *a]\n")
    check_config_file(tmp_path / "alias.yaml")
    (tmp_path / "empty.yaml").touch()
    check_config_file(tmp_path / "empty.yaml")
    check_config_file(tmp_path / "not there.yaml")
