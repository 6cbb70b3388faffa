"""One command stopped at some moment: what is there is whole, and the same command brings it to its end."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torture.apart import Outcome, apart
from torture.artefacts import Artefacts
from torture.commands import Command, Result, files_of, leftovers

DONE = ("exists already", "nothing was removed")  # says a command whose work was finished before


@dataclass(frozen=True)
class Undisturbed:
    """The command's states before and after, and how long it takes."""

    before: Result
    after: Result
    files: dict[str, str]  # afterwards
    files_before: dict[str, str]
    seconds: float


def undisturbed(command: Command, made: Artefacts, work: Path) -> Undisturbed:
    """Run it once, from beginning to end."""
    place, scratch = work / "undisturbed", work / "scratch"
    prepared(command, made, place, scratch)
    before = seen(command, place, scratch) if command.whole is not None else None
    files_before = files_of(place)
    ran = apart(partial(command.run, made, place), scratch)
    assert ran.code == 0, f"{command.name}: {ran.said[-1000:]}"
    after = apart(partial(command.result, place), scratch)
    assert after.code == 0, f"{command.name}: {after.said[-1000:]}"
    return Undisturbed(before, after.value, files_of(place), files_before, ran.seconds)


def prepared(command: Command, made: Artefacts, place: Path, scratch: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    made_ready = apart(partial(command.prepare, made, place), scratch)
    assert made_ready.code == 0, made_ready.said


def seen(command: Command, place: Path, scratch: Path) -> Result:
    assert command.whole is not None
    return apart(partial(command.whole, place), scratch).value


def trouble_at(command: Command, known: Undisturbed, place: Path, scratch: Path) -> str:
    """What is not whole now that the command was stopped; empty where all is well."""
    if command.whole is not None:
        looked = apart(partial(command.whole, place), scratch)
        if looked.code:
            return f"cannot be read: {last_line(looked)}"
        # what a command tells only when it is finished is None until then
        if looked.value is not None and looked.value not in (known.before, known.after):
            return "neither the state before nor the one after"
        return ""
    for name, digest in files_of(place).items():
        final = known.files.get(name)
        if final is not None and digest not in (final, known.files_before.get(name)):
            return f"{name} is half-written"
    return ""


def trouble_after(command: Command, made: Artefacts, known: Undisturbed, place: Path, scratch: Path) -> str:
    """Run the command again: what differs from an undisturbed run; empty where nothing does."""
    again = apart(partial(command.run, made, place), scratch)
    looked = apart(partial(command.result, place), scratch)
    if looked.code or looked.value != known.after:
        what = last_line(again) if again.code else last_line(looked) if looked.code else "another result"
        return f"run again: {what}"
    if again.code and not any(words in again.said for words in DONE):
        return f"run again: {last_line(again)}"
    left = leftovers(place)
    # a command that had finished refuses to write over its result and sweeps nothing
    return f"left behind: {left[0]}" if left and not again.code else ""


def last_line(outcome: Outcome) -> str:
    lines = [line for line in outcome.said.strip().splitlines() if line.strip()]
    return f"exit {outcome.code}: {' / '.join(lines[-2:])[-300:]}"
