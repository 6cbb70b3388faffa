"""Hostile settings files are our errors, quickly."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pmpguard.cli.config_files import check_config_file, configs_and_others
from pmpguard.cli.main import main
from pmpguard.errors import ConfigError
from pmpguard.experiments.recipe_names import FOLDER

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


FROZEN = FOLDER / "train" / "frozen-light.yaml"


def test_a_config_may_be_named_as_a_recipe_of_the_package_and_comes_first(capsys):
    words = ["x", "--config", "frozen-light", "--train.epochs", "3", "--config=own.yaml"]
    found = configs_and_others(words, "train")
    assert found == ([f"--config={FROZEN}", "--config=own.yaml"], ["x", "--train.epochs", "3"])
    assert configs_and_others(["--", "--config", "x"], "train") == ([], ["--", "--config", "x"])
    assert configs_and_others(["--config"], "train") == ([], ["--config"])  # the parser says what is missing
    assert main(["train", "run", "--config", "frozen-ligth"]) == 1
    assert "no recipe is called 'frozen-ligth'\nFix: did you mean frozen-light?" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["--train.method=ccl", "--train.method ccl", "--train.method pmpguard"])
@pytest.mark.parametrize("front", [True, False])
def test_settings_of_a_recipe_stay_with_its_method(method, front, capsys):
    parts = ["--config frozen-light", method]
    words = " ".join(["train run", *(parts if front else parts[::-1]), "--train.settings.x 1 --print_config"])
    with pytest.raises(SystemExit):
        main(words.split())
    train = yaml.safe_load(capsys.readouterr().out)["train"]
    own = {"calibration_epochs": 2} if "pmpguard" in method else {}
    assert train["method"] in method and train["settings"] == {**own, "x": 1}
