"""Recipes of the package are found by name; files of one's own go first."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pmpguard.config import from_dict
from pmpguard.errors import ConfigError
from pmpguard.experiments.recipe_names import FOLDER, find_recipe, recipe_titles
from pmpguard.training.config import TrainConfig, resolve


def test_names_paths_and_own_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("scenes") == FOLDER / "scenes.yaml"
    assert find_recipe("frozen-light", "train") == FOLDER / "train" / "frozen-light.yaml"
    assert find_recipe("own.yaml") == Path("own.yaml")  # whoever reads it says that it is not there
    (tmp_path / "scenes").write_text("title: mine")
    assert find_recipe("scenes") == Path("scenes")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="'rsicd-ligth'") as flagged:
        find_recipe("rsicd-ligth")
    assert "did you mean rsicd-light?" in flagged.value.fix and "table1" in flagged.value.fix
    with pytest.raises(ConfigError) as flagged:
        find_recipe("frozen-light", "evaluate")
    assert "known: none" in flagged.value.fix


def test_every_recipe_has_a_title_of_its_own():
    titles = recipe_titles()
    assert set(titles) == {path.stem for path in FOLDER.glob("*.yaml")}
    assert all(titles.values()) and len(set(titles.values())) == len(titles)


@pytest.mark.parametrize("name", ["frozen-light", "light", "swin-bert"])
def test_every_recipe_of_a_training_starts_from_pretrained_encoders(name):
    assert {path.stem for path in (FOLDER / "train").glob("*.yaml")} == {"frozen-light", "light", "swin-bert"}
    plain = yaml.safe_load((FOLDER / "train" / f"{name}.yaml").read_text())
    assert set(plain) == {"train"}
    model = resolve(from_dict(TrainConfig, plain["train"], name)).model
    assert model.image_size == 224 and "tiny" not in (model.vision, model.text)
