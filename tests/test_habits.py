"""What holds for the tests and the project's own files: names, imports, clocks, versions."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
SOURCE = ROOT / "src" / "pmpguard"
TEST_FILES = sorted(TESTS.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

COVERED = tomllib.loads((TESTS / "covered_by.toml").read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


# ---------------------------------------------------------------------------------- a test for every module


def modules() -> list[str]:
    """Modules that hold code, by their path in the package; a package's head where it has functions."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        has_code = any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            for node in tree_of(path).body
        )
        if has_code:
            found.append(path.relative_to(SOURCE).as_posix())
    return found


def mirror_of(module: str) -> Path:
    """tests/a/test_b.py for src/pmpguard/a/b.py, and tests/a/test_a.py for a package's own head."""
    path = Path(module)
    name = path.parent.name if path.name == "__init__.py" else path.stem
    return TESTS / path.parent / f"test_{name or 'public_names'}.py"


@pytest.mark.parametrize("module", modules())
def test_every_module_has_a_test_of_its_name_or_is_listed_with_the_one_that_covers_it(module):
    if mirror_of(module).exists():
        return
    test = COVERED.get(module, COVERED.get(f"{Path(module).parent.as_posix()}/"))
    assert test is not None, (
        f"{module} has no test: write {name_of(mirror_of(module))}, or name the test that covers it in "
        "tests/covered_by.toml"
    )
    assert (TESTS / test).is_file(), f"{test} is said to cover {module} and is not there"


def test_the_list_names_modules_and_folders_that_exist():
    known = modules()
    known += [f"{Path(module).parent.as_posix()}/" for module in known]
    assert not [name for name in COVERED if name not in known]


def test_the_list_leaves_out_what_has_a_test_of_its_name():
    assert not [name for name in COVERED if not name.endswith("/") and mirror_of(name).exists()]


def test_the_mirror_of_a_module():
    assert name_of(mirror_of("detection/combine.py")) == "tests/detection/test_combine.py"
    assert name_of(mirror_of("search/stores/__init__.py")) == "tests/search/stores/test_stores.py"
    assert name_of(mirror_of("__init__.py")) == "tests/test_public_names.py"


# ------------------------------------------------------------------------ no test leans on another or a clock


def imported_tests(tree: ast.AST) -> list[str]:
    """Modules called test_something that are imported, anywhere in a file."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module or ''}.{alias.name}" for alias in node.names]
            names += [node.module or ""]
    return [name for name in names if any(part.startswith("test_") for part in name.split("."))]


@pytest.mark.parametrize("path", TEST_FILES, ids=name_of)
def test_no_test_imports_another(path):
    assert imported_tests(tree_of(path)) == [], "move what is shared to tests/helpers"


@pytest.mark.parametrize(
    "code",
    [
        "import test_a",
        "from data.test_pairs import table",
        "from data import test_pairs",
        "import a.test_b as b",
    ],
)
def test_the_import_test_can_fail(code):
    assert imported_tests(ast.parse(code))


CLOCKS = {"perf_counter", "monotonic", "time", "perf_counter_ns", "monotonic_ns", "time_ns"}


def reads_clock(node: ast.AST, names: frozenset[str] = frozenset()) -> bool:
    """Whether a wall clock, or a name that holds seconds measured by one, is read below a node."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            called = part.func
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                if called.value.id == "time" and called.attr in CLOCKS:
                    return True
            elif isinstance(called, ast.Name) and called.id in CLOCKS - {"time"}:
                return True
        if isinstance(part, ast.Name) and part.id in names:
            return True
    return False


def differences(node: ast.AST) -> Iterator[ast.BinOp]:
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub):
            yield part


def clock_asserts(tree: ast.Module) -> list[int]:
    """Lines of asserts on how long something took. Deadlines of loops that wait are no differences."""
    lines = []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        seconds = frozenset(
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and any(map(reads_clock, differences(node.value)))
            for target in node.targets
            if isinstance(target, ast.Name)
        )
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                taken = any(map(reads_clock, differences(node.test)))
                if taken or any(isinstance(n, ast.Name) and n.id in seconds for n in ast.walk(node.test)):
                    lines.append(node.lineno)
    return sorted(set(lines))


@pytest.mark.parametrize("path", TEST_FILES, ids=name_of)
def test_no_test_asserts_how_long_something_takes(path):
    assert clock_asserts(tree_of(path)) == [], "a busy machine fails it: count work, bytes or calls instead"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("start = time.perf_counter()\n work()\n assert time.perf_counter() - start < 1", [4]),
        ("start = perf_counter()\n taken = perf_counter() - start\n assert taken < 1", [4]),
        ("deadline = time.monotonic() + 5\n while busy():\n  assert time.monotonic() < deadline", []),
        ("assert 3 - 2 == 1", []),
    ],
)
def test_the_clock_test_can_fail(body, found):
    assert clock_asserts(ast.parse(f"def test():\n {body}")) == found


# ------------------------------------------------------------------------------------- versions and changelog


def test_the_version_stands_in_one_place():
    import pmpguard

    assert "version" not in PROJECT and "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", pmpguard.__version__)
    written = re.findall(r"^version:", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert not written, "CITATION.cff: the version stands in src/pmpguard/__init__.py"
    assert f"## {pmpguard.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def lower_bounds() -> list[str]:
    """`name==version` for every package that users install and that pyproject.toml gives a lower bound."""
    extras = PROJECT["optional-dependencies"]
    wanted = [
        *PROJECT["dependencies"],
        *(line for e in sorted(extras) if e not in ("dev", "docs") for line in extras[e]),
    ]
    bounds = {}
    for line in wanted:
        match = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)(?:,.*)?", line)
        if match:
            bounds[match[1].lower()] = match[2]
    return [f"{name}=={version}" for name, version in sorted(bounds.items())]


def test_the_minimum_versions_are_the_lower_bounds_of_the_project():
    lines = (ROOT / "minimum.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == lower_bounds()


# ------------------------------------------------------------------------------------------------- workflows

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_ask_for_no_more_than_they_need(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}, "a job that writes says so itself"
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60, name
        for step in job["steps"]:
            assert "@" in step.get("uses", "@"), f"{name}: an action without a version"
            assert "secrets." not in str(step), f"{name}: nothing here needs a secret"


def test_the_matrix_tests_the_versions_that_the_project_names():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert workflow["jobs"]["matrix"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_kernels_are_run_by_an_interpreter():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    commands = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert "make kernels-interpreted" in commands


@pytest.mark.parametrize(("length", "refused"), [(72, False), (73, True)])
def test_a_long_subject_of_a_commit_is_refused(length, refused):
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = [hook for repo in config["repos"] for hook in repo["hooks"] if hook["id"] == "subject"]
    message = "x" * length + "\n\n" + "a body may have lines of any length, " * 4
    assert bool(re.compile(hook["entry"], re.MULTILINE | re.DOTALL).search(message)) == refused
