"""Power cuts: what a disk may hold when everything that was not synced is lost, or comes in another order.

A command runs once with `powercut.c` before libc, which records changes of names and syncs. Any moment of
that record can then be the last one: of every folder the names are those of some moment since its last sync,
one folder earlier than another, and of every file the content is that of its last sync, else none or half.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.artefacts import Artefacts
from torture.commands import Command
from torture.rounds import prepared, trouble_after, trouble_at, undisturbed

SOURCE = Path(__file__).with_name("powercut.c")


@dataclass
class Node:
    """A file with the copies of its syncs, or a folder with the changes of its names."""

    is_folder: bool
    synced: list[tuple[int, Path]] = field(default_factory=list)  # files: (operation, content)
    # folders: (operation, name, what it names from then on)
    changes: list[tuple[int, str, Node | None]] = field(default_factory=list)
    safe: int = 0  # folders: changes that a sync has made certain
    linked: dict[int, tuple[Node, int]] = field(default_factory=dict)  # a change that another folder's needs

    def names(self, count: int) -> dict[str, Node]:
        """After so many changes."""
        found: dict[str, Node] = {}
        for _, name, node in self.changes[:count]:
            if node is None:
                found.pop(name, None)
            else:
                found[name] = node
        return found


class Disk:
    """What the record says, operation by operation, from a tree that was wholly on disk before."""

    def __init__(self, before: Path, root: Path, log: Path) -> None:
        self.root = root
        self.copies = Path(f"{log}.copies")
        self.top = self._tree(before)
        lines = log.read_text().splitlines() if log.is_file() else []
        self.operations = [line.split("\t") for line in lines]
        self.done = 0

    def _tree(self, path: Path) -> Node:
        if path.is_dir():
            changes: list[tuple[int, str, Node | None]] = [
                (-1, entry.name, self._tree(entry)) for entry in sorted(path.iterdir())
            ]
            return Node(True, changes=changes, safe=len(changes))
        return Node(False, synced=[(-1, path)])

    def _parent(self, path: str) -> tuple[Node, str]:
        parts = Path(path).relative_to(self.root).parts
        node = self.top
        for part in parts[:-1]:
            node = node.names(len(node.changes))[part]
        return node, parts[-1]

    def _find(self, path: str) -> Node:
        if Path(path) == self.root:
            return self.top
        parent, name = self._parent(path)
        return parent.names(len(parent.changes))[name]

    def advance(self, count: int) -> None:
        """Take the record up to its operation of this number."""
        for number in range(self.done, count):
            what, first, second, copy = self.operations[number]
            self._apply(number, what, first, second, int(copy))
        self.done = count

    def _apply(self, number: int, what: str, first: str, second: str, copy: int) -> None:
        if what in ("create", "mkdir"):
            parent, name = self._parent(first)
            parent.changes.append((number, name, Node(what == "mkdir")))
        elif what == "remove":
            parent, name = self._parent(first)
            parent.changes.append((number, name, None))
        elif what in ("rename", "link"):
            source = Path(first).is_relative_to(self.root)
            node = self._find(first) if source else self._tree(Path(first))  # from elsewhere: long on disk
            target, name = self._parent(second)
            target.changes.append((number, name, node))
            if what == "rename" and source:
                parent, old = self._parent(first)
                parent.changes.append((number, old, None))
                parent.linked[len(parent.changes)] = (target, len(target.changes))
        elif what == "sync":
            self._notice_rename(number, first)
            self._find(first).synced.append((number, self.copies / str(copy)))
        elif what == "sync folder":
            folder = self._find(first)
            folder.safe = len(folder.changes)
        elif what == "sync all":
            self._sync_all(self.top, self.copies / str(copy), number)

    def _notice_rename(self, number: int, path: str) -> None:
        """safetensors gives its temporary files their names without libc, which nobody can record."""
        parent, name = self._parent(path)
        names = parent.names(len(parent.changes))
        unnamed = [one for one in names if re.fullmatch(r"\.tmp\w{6}", one)]
        if name not in names and unnamed:
            parent.changes.append((number, name, names[unnamed[0]]))
            parent.changes.append((number, unnamed[0], None))

    def _sync_all(self, node: Node, content: Path, number: int) -> None:
        if not node.is_folder:
            node.synced.append((number, content))
            return
        node.safe = len(node.changes)
        for name, child in node.names(len(node.changes)).items():
            self._sync_all(child, content / name, number)

    def crash(self, target: Path, chance: random.Random) -> None:
        """Write one of the trees that may be there when the power comes back."""
        counts: dict[int, int] = {}
        in_order = chance.random() < 0.5  # as a journal keeps it, or every folder for itself
        last = chance.randint(0, self.done)

        def chosen(node: Node) -> int:
            if id(node) not in counts:
                left = [number for number, _, _ in node.changes]
                count = sum(number < last for number in left) if in_order else chance.randint(0, len(left))
                counts[id(node)] = max(node.safe, count)
                for place, (other, needed) in node.linked.items():
                    if counts[id(node)] >= place:  # a rename takes the old name away only with the new one
                        counts[id(other)] = max(chosen(other), needed)
            return counts[id(node)]

        def settle(node: Node) -> None:
            for _, _, child in node.changes:
                if child is not None and child.is_folder:
                    settle(child)
            chosen(node)

        def write(node: Node, path: Path) -> None:
            if node.is_folder:
                path.mkdir(exist_ok=True)
                for name, child in node.names(chosen(node)).items():
                    write(child, path / name)
            elif node.synced:
                shutil.copyfile(node.synced[-1][1], path)
            else:
                path.write_bytes(b"")

        settle(self.top)
        shutil.rmtree(target, ignore_errors=True)
        write(self.top, target)


def compiled(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "powercut.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def record(command: Command, made: Artefacts, place: Path, log: Path, library: Path) -> None:
    """Run the command in a process of its own that is recorded."""
    copies = Path(f"{log}.copies")
    shutil.rmtree(copies, ignore_errors=True)
    copies.mkdir(parents=True)
    log.unlink(missing_ok=True)
    environment = {
        **os.environ, "LD_PRELOAD": str(library), "POWERCUT_ROOT": str(place.resolve()),
        "POWERCUT_LOG": str(log), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    words = [sys.executable, "-m", "torture.recorded", command.name, str(made.folder), str(place.resolve())]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command.name}: {done.stdout[-500:]}{done.stderr[-1500:]}"


def cut_power(command: Command, made: Artefacts, work: Path, cuts: int, seed: int) -> dict[str, Any]:
    """So many power cuts at random moments of one recorded run."""
    shutil.rmtree(work, ignore_errors=True)
    known = undisturbed(command, made, work)
    before, scratch, place = work / "before", work / "scratch", work / "place"
    prepared(command, made, place, scratch)
    shutil.copytree(place, before)
    record(command, made, place, work / "log", compiled(work))
    chance = random.Random(f"{seed} {command.name}")
    operations = len(Disk(before, place.resolve(), work / "log").operations)
    troubles = []
    for number in range(cuts):
        disk = Disk(before, place.resolve(), work / "log")
        # the first cut is right behind the end: what a command said is done has to be there
        moment = operations if not number else chance.randint(0, operations)
        disk.advance(moment)
        disk.crash(place, chance)
        trouble = trouble_at(command, known, place, scratch)
        trouble = trouble or trouble_after(command, made, known, place, scratch)
        if trouble:
            troubles.append(f"cut at operation {moment} of {operations}: {trouble}")
    return {
        "operations": operations, "cuts": cuts, "held": cuts - len(troubles), "troubles": troubles[:5]
    }  # fmt: skip
