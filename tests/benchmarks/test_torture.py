"""The attack's own parts, and a short form of it: damage, power cuts, kills and full disks."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def torture(script: Callable[[str], ModuleType]):

    def module(name: str) -> ModuleType:
        return script(f"torture.{name}")

    return module


def test_damage_depends_on_its_seed_and_changes_something(torture):
    damage = torture("damage").damaged
    data = json.dumps({"a": [1, 2, {"b": "c"}], "d": None}).encode()
    made = [damage(data, random.Random(number)) for number in range(200)]
    assert made == [damage(data, random.Random(number)) for number in range(200)]
    assert sum(one != data for one in made) > 150 and len(set(made)) > 100


def test_what_was_never_attacked_comes_first_and_is_listed(torture, tmp_path):
    main, output = torture("__main__"), tmp_path / "torture.json"
    row = {"took_seconds": 1.0, "troubles": []}
    every = [("kill", name, lambda: row) for name in "abcdefgh"] + [("fuzz", "a", lambda: row)]
    for name in "bd":
        main.add_row(output, {"commit": "x"}, "kill", name, row, every)
    missing = [f"kill: {name}" for name in "acefgh"] + ["fuzz: a"]
    assert json.loads(output.read_text())["missing"] == missing
    options = argparse.Namespace(only=("kill",), short=False, names=None, minutes=1.0, seed=0)
    order = [name for _, name, _ in main.in_order(every, options, output)]
    assert sorted(order) == list("abcdefgh") and set(order[-2:]) == {"b", "d"} and order[:6] != list("acefgh")
    options.minutes = None
    assert [name for _, name, _ in main.in_order(every, options, output)] == list("abcdefgh")


def test_every_attack_has_a_row_and_cuts_are_of_commands_there_are(torture, tmp_path):
    main, commands = torture("__main__"), torture("commands")
    options = main.options_of(["--clients", "5"])
    rows = {(kind, name) for kind, name, _ in main.attacks(options, None, tmp_path)}
    names = {one.name for one in commands.COMMANDS}
    assert {name for kind, name in rows if kind == "cut"} == set(main.CUT) <= names
    assert {name for kind, name in rows if kind == "full"} == names == {n for k, n in rows if k == "two"}
    assert sum(kind == "train" for kind, _ in rows) == 24 and ("idle", "5 clients") in rows
    assert {kind for kind, _ in rows} == set(main.KINDS)


@pytest.mark.skipif(sys.platform != "linux", reason="children are forked")
def test_a_disk_that_was_never_full_is_a_trouble(torture, tmp_path):
    commands, places = torture("commands"), torture("hard_places")

    def write(made, place):
        (place / "file").write_bytes(b"x" * 100)  # too short for any limit

    one = commands.Command("tiny", write, commands.all_files)
    row = places.fill_disk(one, None, tmp_path / "work", 1, 0)
    assert row["full"] == 0 and row["troubles"] == ["the disk was never full"]


NAIVE = """
import os, sys
from pathlib import Path
place = Path(sys.argv[1])
if sys.argv[2] == "naive":
    (place / "new").write_text("content")
    os.rename(place / "new", place / "file")
else:
    from pmpguard.files import write_atomic
    write_atomic(place / "file", "content")
"""


@pytest.mark.skipif(shutil.which("gcc") is None or sys.platform != "linux", reason="needs gcc on Linux")
@pytest.mark.parametrize(("how", "found"), [("naive", {None, "", "before"}), ("atomic", {"content"})])
def test_a_power_cut_takes_what_was_not_synced(torture, tmp_path, how, found):
    """Of a writer that has said it is done: one that renames without a sync may lose the content."""
    powercut = torture("powercut")
    library = powercut.compiled(tmp_path / "work")
    place, before, log = tmp_path / "place", tmp_path / "before", tmp_path / "log"
    place.mkdir()
    (place / "file").write_text("before")
    shutil.copytree(place, before)
    Path(f"{log}.copies").mkdir()
    environment = {
        **os.environ, "LD_PRELOAD": str(library), "POWERCUT_ROOT": str(place), "POWERCUT_LOG": str(log),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", NAIVE, str(place), how], env=environment, check=True)
    after = set()
    for number in range(30):
        disk = powercut.Disk(before, place, log)
        assert len(disk.operations) >= 2
        disk.advance(len(disk.operations))
        disk.crash(tmp_path / "crashed", random.Random(number))
        file = tmp_path / "crashed" / "file"
        after.add(file.read_text() if file.is_file() else None)
    assert after <= found and after, after
    assert ("" in after) == (how == "naive")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are forked")
def test_the_attack_in_short(torture, tmp_path):
    """Damaged models, indexes and checkpoints, kills, a full disk, two at once; the suite does the rest."""
    output = tmp_path / "torture.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "torture", "--short", "--output", str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(output.read_text())
    assert result["troubles"] == 0
    assert sum(row["cases"] for row in result["fuzz"].values()) >= 100
    assert all(row["kills"] for row in result["kill"].values()) and result["cut"] and result["two"]
