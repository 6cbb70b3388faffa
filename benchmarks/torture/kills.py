"""SIGKILL at random moments of every command that writes."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from torture.apart import KILLED, apart
from torture.artefacts import Artefacts
from torture.commands import Command
from torture.rounds import prepared, trouble_after, trouble_at, undisturbed

MOST_ATTEMPTS = 5  # for every kill wanted: the command may be faster this time


def kill_command(command: Command, made: Artefacts, work: Path, kills: int, seed: int) -> dict[str, Any]:
    """So many kills that hit the command at work."""
    shutil.rmtree(work, ignore_errors=True)
    known = undisturbed(command, made, work)
    chance = random.Random(f"{seed} {command.name}")
    start, scratch, place = work / "start", work / "scratch", work / "place"
    prepared(command, made, start, scratch)
    hit, troubles, seconds = 0, [], known.seconds
    for _ in range(MOST_ATTEMPTS * kills):
        if hit == kills:
            break
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(start, place)
        after = seconds * chance.random()
        outcome = apart(partial(command.run, made, place), scratch, kill_after=after)
        if outcome.code != KILLED:
            seconds *= 0.9
            continue
        hit += 1
        trouble = trouble_at(command, known, place, scratch)
        trouble = trouble or trouble_after(command, made, known, place, scratch)
        if trouble:
            troubles.append(f"killed after {after:.3f} s of {known.seconds:.2f}: {trouble}")
    return {"kills": hit, "held": hit - len(troubles), "troubles": troubles[:5]}
