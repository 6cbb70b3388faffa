"""README's examples run, the commands of all pages parse, and what pages link to is there."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.page_commands import blocks, commands
from helpers.search_examples import SCENES, make_own_folder

from pmpguard.cli.main import VERBS, arranged, main
from pmpguard.experiments.downloads import DOWNLOADS
from pmpguard.methods.registry import BUILT_IN

ROOT = Path(__file__).resolve().parents[1]
WRITTEN_WITH_THE_SITE = {ROOT / "docs" / name for name in ("cli.md", "leaderboard.md")}
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")

# What makes README's examples small.
SMALLER = {
    "epochs=4": "epochs=1",
    "scenes=2000": "scenes=100",
}
TINY = (
    "--train.model.vision tiny --train.model.text tiny --train.model.dim 32 --train.model.image_size 64 "
    "--train.epochs 1 --train.batch_size 40 --train.device cpu"
)
OWN_METHOD = (
    "pmpguard train runs/mine --dataset my-dataset/ --config frozen-light --train.method mymethods:Mine"
)
# README's commands that are run, in this order, with further words that make them small.
RUN = {
    "pmpguard audit my-dataset/ --quick --out report/": "",
    "pmpguard clean report/ --policy drop --out cleaned.parquet": "",
    "pmpguard evaluate runs/first/model --dataset my-dataset/ --split test": "",
    OWN_METHOD: TINY,
    'pmpguard search images/.pmpguard/index "planes beside a long building" -k 10 --explain': "",
}


# ------------------------------------------------------------------------------------------ README, in small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what README's examples start from: a dataset, a model, an index."""
    here = tmp_path_factory.mktemp("readme")
    make_own_folder(here)
    with contextlib.chdir(here), contextlib.redirect_stdout(io.StringIO()):
        assert main(["embed", "my-dataset", "--model", "runs/first/model", "--out", "vectors"]) == 0
        assert main(["index", "build", "images/.pmpguard/index", "--embeddings", "vectors"]) == 0
    example = next(code for code in blocks(README, "python") if "class Mine" in code)
    (here / "mymethods.py").write_text(example)
    return here


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_python_of_the_readme(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = blocks(README, "python")[number]
    for usual, smaller in SMALLER.items():
        code = code.replace(usual, smaller)
    monkeypatch.chdir(folder)
    (folder / f"block_{number}.py").write_text(code)
    runpy.run_path(str(folder / f"block_{number}.py"))


@pytest.mark.slow
def test_commands_of_the_readme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    written = commands(README)
    for command, more in RUN.items():
        assert command in written, f"README no longer shows {command!r}"
        words = shlex.split(f"{command} {more}")[1:]
        assert main(words) == 0, command


@pytest.mark.slow
def test_a_method_written_as_in_the_readme_learns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pmpguard.experiments.run import ExperimentConfig, run_experiment
    from pmpguard.models.config import preset
    from pmpguard.training.config import OptimiserConfig, TrainConfig

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
    train = TrainConfig(
        "mymethods:Mine",
        model=preset("tiny"),
        epochs=6,
        device="cpu",
        optimiser=OptimiserConfig(head_lr=2e-3),
    )
    result = run_experiment(ExperimentConfig(scenes=300, train=train), folder / "runs" / "learns")
    chance = 100 * sum(min(1, k / 30) for k in (1, 5, 10)) / 3  # of 30 test images
    assert result.test.recall.mr > 1.5 * chance


def test_what_makes_examples_small_stands_in_the_readme() -> None:
    assert not [usual for usual in SMALLER if usual not in README]
    assert SCENES >= 30  # fewer say nothing


# --------------------------------------------------------------------------------- every page, nothing is run


def pages_commands() -> list[tuple[str, str]]:
    return [
        (page.relative_to(ROOT).as_posix(), command)
        for page in PAGES
        for command in dict.fromkeys(commands(page.read_text(encoding="utf-8")))
    ]


def parser_of(verb: str) -> tuple[Any, Callable[..., Any]]:
    """The parser that the verb's command builds from its function."""
    from jsonargparse import ArgumentParser

    module, name, _ = VERBS[verb]
    function = getattr(importlib.import_module(f"pmpguard.cli.{module}"), name)
    parser = ArgumentParser(prog=f"pmpguard {verb}", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--json", action="store_true")
    parser.add_function_arguments(function, as_positional=True, sub_configs=True)
    return parser, function


def problem_of(command: str) -> str | None:
    """Why a written command would be refused before it reads anything."""
    words = shlex.split(command)[1:]
    if words in (["--help"], ["--version"]):
        return None
    verb = " ".join(words[:2]) if " ".join(words[:2]) in VERBS else words[0]
    if verb not in VERBS:
        return f"no command {verb!r}"
    words = words[len(verb.split()) :]
    if not words:  # the name of a command alone
        return None
    if "--config" in words:  # a file or a recipe's name: other tests read those
        place = words.index("--config")
        del words[place : place + 2]
    parser, function = parser_of(verb)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(arranged(words, function))
    except SystemExit as stop:
        return f"exit {stop.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize(("page", "command"), pages_commands())
def test_commands_of_pages_parse(page: str, command: str) -> None:
    assert problem_of(command) is None


@pytest.mark.parametrize(
    "command", ["pmpguard chek data", "pmpguard audit data --quik", "pmpguard search index a -k many"]
)
def test_the_parsing_test_can_fail(command: str) -> None:
    assert problem_of(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    found = [page.parent / target for target in local]
    assert not [path for path in found if not path.exists() and path.resolve() not in WRITTEN_WITH_THE_SITE]


def imported_names(code: str) -> list[tuple[str, str]]:
    return [
        (module, name.split(" as ")[0].strip())
        for module, names in re.findall(r"^from (pmpguard[\w.]*) import (.+)$", code, re.MULTILINE)
        for name in names.split(",")
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_of_pages_is_python_and_imports_what_exists(page: Path) -> None:
    for code in blocks(page.read_text(encoding="utf-8"), "python"):
        compile(code, str(page), "exec")
        for module, name in imported_names(code):
            try:
                found = importlib.import_module(module)
            except ModuleNotFoundError as missing:  # of an extra that is not installed here
                assert missing.name and not missing.name.startswith("pmpguard"), module
                continue
            assert hasattr(found, name), f"{module} has no {name}"


def test_every_verb_stands_on_a_page() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not [verb for verb in VERBS if f"pmpguard {verb}" not in text]
    assert all(inspect.getdoc(parser_of(verb)[1]) for verb in VERBS)


def test_the_readme_names_every_method() -> None:
    assert not [name for name in BUILT_IN if f"`{name}`" not in README]


def test_the_page_on_installing_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert set(rows) == set(project["optional-dependencies"]) - {"dev", "docs"}


def test_the_page_on_training_says_where_datasets_are_offered() -> None:
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    for download in DOWNLOADS.values():
        assert download.title.split(" (")[0] in page and download.source.partition(",")[0] in page
        assert all(part.split("  ")[0] in page for part in download.holds)


def test_make_has_the_targets_that_pages_name() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert {"demo", "check", "test"} <= named <= targets
