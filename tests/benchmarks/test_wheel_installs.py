"""The benchmark that tries the wheel: what it runs in an environment, and what it makes of failures."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def benchmark(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("wheel_installs")


def test_a_command_is_timed_or_says_why_it_failed(benchmark: ModuleType, tmp_path: Path) -> None:
    tried = benchmark.Environment(tmp_path, sys.executable, None)
    assert tried.run("fine", sys.executable, "-c", "")
    assert not tried.run("silent", sys.executable, "-c", "exit(3)")
    assert not tried.run("wrong", sys.executable, "-c", "raise ValueError('no torch')")
    assert set(tried.seconds) == {"fine"}
    assert tried.failed == {"silent": "exit code 3", "wrong": "ValueError: no torch"}


def test_an_environment_runs_its_own_programs_and_lends_none_of_ours(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    own = tmp_path / "env" / "bin" / "pmpguard"
    own.parent.mkdir(parents=True)
    own.write_text('#!/bin/sh\nprintf "%s" "$1 $PYTHONPATH" > told\n')
    own.chmod(0o755)
    tried = benchmark.Environment(tmp_path, sys.executable, None)
    tried.check((benchmark.VERSION,))
    assert (tmp_path / "told").read_text() == "--version "
    assert list(tried.seconds) == [benchmark.VERSION]


@pytest.mark.parametrize(
    ("source", "option"), [("https://index/cpu", "--index-url"), ("wheels", "--find-links")]
)
@pytest.mark.parametrize("has_torch", [True, False])
def test_what_needs_torch_runs_only_where_there_is_one(
    benchmark: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_torch: bool,
    source: str,
    option: str,
) -> None:
    class Pretended(benchmark.Environment):
        """Nothing is installed; what would have been is kept."""

        def create(self) -> None:
            self.ran: list[tuple[str, ...]] = []

        def run(self, name: str, *command: str) -> bool:
            self.ran.append(command)
            return has_torch or name != "install torch"

        def packages(self) -> dict[str, str]:
            return {"pmpguard": "1", "scipy": "1"}

    wheel = tmp_path / "pmpguard-1-py3-none-any.whl"
    asked = ["torch>=2.6", "numpy>=2.0", 'ray; extra == "ray"']
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(
            "pmpguard-1.dist-info/METADATA", "\n".join(f"Requires-Dist: {line}" for line in asked)
        )
    tried = Pretended(tmp_path, sys.executable, None)
    row = benchmark.installed(tried, wheel, source)
    assert row["installed"] and row["scipy_or_scikit_learn"] == ["scipy"]
    torch = next(command for command in tried.ran if command[-1].startswith("torch=="))
    assert torch[-3:-1] == (option, source) and torch[-1].endswith("+cpu")
    typed = [command[-1].partition("; ")[2] for command in tried.ran if command[0] == "sh"]
    if has_torch:
        assert typed == [*benchmark.CHECKS, *benchmark.WITH_WEIGHTS]
    else:
        assert typed == list(benchmark.NEEDS_NO_TORCH)
        (constrained,) = [command for command in tried.ran if str(benchmark.CONSTRAINTS) in command]
        assert constrained[-2:] == (str(benchmark.CONSTRAINTS), "numpy>=2.0")
