"""Damaged and hostile files of every kind that is read back: a result or our error, never another exception.

Manifests are signed again after the damage where the attacker would do so: hashes protect from accidents,
not from whoever writes both.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from pmpguard.errors import PmpguardError
from pmpguard.files import MANIFEST, write_manifest
from torture.apart import apart
from torture.artefacts import Artefacts
from torture.damage import damaged
from torture.readers import Reader

CASES_PER_CHILD = 500
MEMORY = 6 << 30  # of addresses: whoever wants more fails


def attack(
    reader: Reader, made: Artefacts, work: Path, cases: range, seed: int, harmless: bool = False
) -> dict[str, Any]:
    """Run in a child: the outcome of some cases."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    place = work / "case"
    shutil.rmtree(place, ignore_errors=True)
    source = reader.source(made)
    copy(source, place)
    root = place / source.name
    base = root if root.is_dir() else root.parent
    files = sorted({file for pattern in reader.files for file in base.glob(pattern) if file.is_file()})
    assert files, f"{reader.name}: nothing to damage"
    contents = {file: file.read_bytes() for file in base.rglob("*") if file.is_file()}
    tally: dict[str, Any] = {"read": 0, "refused": 0, "failures": {}, "slowest": 0.0}
    for number in cases:
        (work / "running").write_text(str(number))
        chance = random.Random(f"{seed} {reader.name} {number}")
        file = chance.choice(files)
        if not harmless:
            file.write_bytes(damaged(contents[file], chance))
        if chance.random() < 0.85:
            sign(file, base)
        started = time.perf_counter()
        try:
            reader.read(root, made)
            tally["read"] += 1
        except PmpguardError:
            tally["refused"] += 1
        except SystemExit as error:
            kind = "refused" if error.code in (1, 2, 3) else "read"
            tally[kind] += 1
        except BaseException as error:
            where = innermost(error)
            key = f"{type(error).__name__} at {where}: {str(error)[:120]}"
            tally["failures"].setdefault(f"{type(error).__name__} at {where}", f"case {number}: {key}")
            tally["failed"] = tally.get("failed", 0) + 1
        tally["slowest"] = max(tally["slowest"], time.perf_counter() - started)
        restore(base, contents)
    return tally


def innermost(error: BaseException) -> str:
    """The innermost line of the package that the error went through."""
    trace, found = error.__traceback__, "elsewhere"
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/pmpguard/" in name:
            found = f"{name.rpartition('/pmpguard/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def copy(source: Path, place: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, place / source.name)
    else:
        place.mkdir(parents=True)
        shutil.copyfile(source, place / source.name)


def restore(base: Path, contents: dict[Path, bytes]) -> None:
    """What lay there, and nothing else."""
    for path in sorted(base.rglob("*"), reverse=True):
        if path.is_file() and path not in contents:
            path.unlink()
    for path, content in contents.items():
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def sign(file: Path, base: Path) -> None:
    """Write the manifests above a file again, as somebody would who wants his files to be believed."""
    if file.name == MANIFEST:
        return
    for folder in file.parents:
        if (folder / MANIFEST).is_file():
            before = json.loads((folder / MANIFEST).read_text())
            write_manifest(folder)
            after = json.loads((folder / MANIFEST).read_text())
            kept = {name: digest for name, digest in after["sha256"].items() if name in before["sha256"]}
            (folder / MANIFEST).write_text(json.dumps({**before, "sha256": kept}))
        if folder == base:
            return


def attack_in_parts(reader: Reader, made: Artefacts, work: Path, cases: int, seed: int) -> dict[str, Any]:
    """All cases of a reader, some at a time; one that a child does not survive is passed over."""
    assert attack_undamaged(reader, made, work), f"{reader.name}: cannot read what is whole"
    total: dict[str, Any] = {"cases": cases, "read": 0, "refused": 0, "failed": 0, "failures": {}}
    total["slowest"] = 0.0
    first = 0
    while first < cases:
        part = range(first, min(first + CASES_PER_CHILD, cases))
        outcome = apart(partial(attack, reader, made, work, part, seed), work)
        if outcome.code:
            number = int((work / "running").read_text())
            said = f"case {number}: {outcome.said.strip()[-300:]}"
            total["failed"] += 1
            total["failures"][f"child ended with {outcome.code}"] = said
            part = range(number + 1, number + 1)  # what came before it is lost from the counts
        first = part.stop
        add(total, outcome.value or {})
    return {**total, "troubles": [f"{name}: {text}" for name, text in total.pop("failures").items()]}


def add(total: dict[str, Any], found: dict[str, Any]) -> None:
    for name in ("read", "refused", "failed"):
        total[name] += found.get(name, 0)
    total["failures"] |= found.get("failures", {})
    total["slowest"] = round(max(total["slowest"], found.get("slowest", 0.0)), 2)


def attack_undamaged(reader: Reader, made: Artefacts, work: Path) -> bool:
    """Whether the reader takes what nobody has damaged; else its cases would say nothing."""
    outcome = apart(partial(attack, reader, made, work, range(1), 0, harmless=True), work)
    return bool(outcome.value and outcome.value["read"])
