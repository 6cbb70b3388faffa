"""Full disks, clocks that jump, and two of the same command at once."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torture.apart import Outcome, apart, begun, ended
from torture.artefacts import Artefacts
from torture.commands import Command
from torture.rounds import Undisturbed, last_line, prepared, trouble_after, trouble_at, undisturbed

CLOCK = Path(__file__).with_name("clock.c")
SMALLEST_DISK = 1 << 20  # bytes a command writes; for less, its files may not become larger than this or that
SAID, LEAST_SAID = 2048, 512  # bytes that what a command says may take, which goes to a file, too
CLEAR = ("could not be written", "No space left", "File too large", "free some disk space")
REFUSED = ("is being written by", "exists already", "nothing was removed")


def bytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


@contextlib.contextmanager
def small_disk(place: Path, room: int) -> Iterator[bool]:
    """A file system of so many bytes mounted at `place`, where that is wanted and allowed; whether it is."""
    place.mkdir(parents=True, exist_ok=True)
    options = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(place)]
    may = room > 0 and os.geteuid() == 0
    mounted = may and subprocess.run(options, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def limited(work: Callable[[], Any], largest: int) -> None:
    """No file may become larger than this: what stands in for a full disk where nothing can be mounted."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    work()


def fill_disk(command: Command, made: Artefacts, work: Path, times: int, seed: int) -> dict[str, Any]:
    """The disk is full after a random number of bytes: a clear error, nothing lost, and later it goes on."""
    shutil.rmtree(work, ignore_errors=True)
    known = undisturbed(command, made, work)
    start, scratch, place = work / "start", work / "scratch", work / "place"
    prepared(command, made, start, scratch)
    chance, room = random.Random(f"{seed} {command.name}"), bytes_of(work / "undisturbed") - bytes_of(start)
    changed = (name for name, digest in known.files.items() if known.files_before.get(name) != digest)
    longest = max(((work / "undisturbed" / name).stat().st_size for name in changed), default=0)
    hit, troubles, mounts, least = 0, [], 0, SAID
    for _ in range(5 * times):
        if hit == times:
            break
        shutil.rmtree(place, ignore_errors=True)
        size = max(bytes_of(start) + 65536 + int(room * chance.random() * 1.2), 65536)
        with small_disk(place, size if room >= SMALLEST_DISK else 0) as mounted:
            shutil.copytree(start, place, dirs_exist_ok=True)
            run = partial(command.run, made, place)
            largest = least + int(chance.random() * max(0, longest - least))
            outcome = apart(run if mounted else partial(limited, run, largest), scratch)
            mounts += mounted
            if not outcome.code:  # all it writes, and does not link, fits
                if not mounted:
                    longest, least = largest, LEAST_SAID
                continue
            hit += 1
            trouble = trouble_of_full_disk(command, known, outcome, place, scratch)
            kept = work / "kept"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(place, kept)
        trouble = trouble or trouble_after(command, made, known, kept, scratch)
        if trouble:
            troubles.append(trouble)
    if not hit:
        troubles.append("the disk was never full")
    return {"full": hit, "held": hit - len(troubles), "mounted": bool(mounts), "troubles": troubles[:5]}


def trouble_of_full_disk(
    command: Command, known: Undisturbed, outcome: Outcome, place: Path, scratch: Path
) -> str:
    if outcome.code != 1 or not any(words in outcome.said for words in CLEAR):
        return f"not a clear error: {last_line(outcome)}"
    if "Errno 28" in outcome.said and "'" not in outcome.said.partition("Errno 28")[2]:
        return f"no file is named: {last_line(outcome)}"
    return trouble_at(command, known, place, scratch)


def two_at_once(command: Command, made: Artefacts, work: Path, times: int, seed: int) -> dict[str, Any]:
    """Two of the same command in the same place: one is refused or both agree, and the result is whole."""
    shutil.rmtree(work, ignore_errors=True)
    known = undisturbed(command, made, work)
    start, place = work / "start", work / "place"
    prepared(command, made, start, work / "scratch")
    chance, troubles, refused = random.Random(f"{seed} {command.name}"), [], 0
    for _ in range(times):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(start, place)
        first = begun(partial(command.run, made, place), work / "first")
        time.sleep(0.3 * known.seconds * chance.random() ** 2)
        second = begun(partial(command.run, made, place), work / "second")
        outcomes = [ended(first), ended(second)]
        refused += sum(one.code == 1 for one in outcomes)
        strange = [one for one in outcomes if one.code and not any(words in one.said for words in REFUSED)]
        if strange:
            troubles.append(last_line(strange[0]))
        elif all(one.code for one in outcomes):
            troubles.append("both were refused")
        elif trouble := trouble_after(command, made, known, place, work / "scratch"):
            troubles.append(trouble)
    return {"pairs": times, "held": times - len(troubles), "refused": refused, "troubles": troubles[:5]}


def jump_clock(command: Command, made: Artefacts, work: Path, times: int, seed: int) -> dict[str, Any]:
    """The wall clock jumps by years while the command runs: the same result."""
    shutil.rmtree(work, ignore_errors=True)
    known = undisturbed(command, made, work)
    library, place, troubles = work / "clock.so", work / "place", []
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, CLOCK, "-ldl"], check=True)
    for number in range(times):
        prepared(command, made, place, work / "scratch")
        environment = {
            **os.environ, "LD_PRELOAD": str(library), "CLOCK_SEED": str(seed + number + 1),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        words = [sys.executable, "-m", "torture.recorded", command.name, str(made.folder), str(place)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        looked = apart(partial(command.result, place), work / "scratch")
        if done.returncode:
            troubles.append(done.stderr.strip()[-300:])
        elif looked.value != known.after:
            troubles.append("another result")
    return {"runs": times, "held": times - len(troubles), "troubles": troubles[:5]}
