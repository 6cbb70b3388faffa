"""The wheel holds everything that the package reads: recipes, pages, reference values, the mark of types."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    out = source / "dist"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*build, "--wheel-dir", out, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "src" / "pmpguard"
    files = {
        f"pmpguard/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files - set(wheel.namelist()) <= {"pmpguard/kernels/README.md"}  # for readers of the source
    assert {"pmpguard/py.typed", "pmpguard/experiments/recipes/rsicd-light.yaml"} <= files


@pytest.mark.slow
def test_the_wheel_asks_for_neither_scipy_nor_scikit_learn(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    asked = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist") or []
    for_users = [line.lower() for line in asked if 'extra == "dev"' not in line]
    assert any(line.startswith("torch") for line in for_users)
    assert not [line for line in for_users if line.startswith(("scipy", "scikit"))]
