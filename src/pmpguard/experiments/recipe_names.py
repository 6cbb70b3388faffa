"""The recipes that come with the package, by name: `rsicd-light` is experiments/recipes/rsicd-light.yaml."""

from __future__ import annotations

from pathlib import Path

from pmpguard.errors import ConfigError, one_of

FOLDER = Path(__file__).parent / "recipes"


def find_recipe(name: str, kind: str = "") -> Path:
    """The file of a recipe: a path of one's own, or the name of one that comes with the package.

    `kind` is the folder below `recipes/`: none for tables, "train" for trainings.
    """
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) > 1:
        return path  # a missing file is named by whoever reads it
    known = sorted(file.stem for file in (FOLDER / kind).glob("*.yaml"))
    if name in known:
        return FOLDER / kind / f"{name}.yaml"
    raise ConfigError(f"no recipe is called {name!r}", fix=f"{one_of(name, known)}; or give a YAML file")


def recipe_titles() -> dict[str, str]:
    """What each recipe of a table compares, by its name."""
    import yaml

    found = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        found[file.stem] = str(yaml.safe_load(file.read_text(encoding="utf-8")).get("title", ""))
    return found
