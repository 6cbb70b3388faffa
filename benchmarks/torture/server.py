"""The server in a child: slow and idle clients, mixed load while the index changes, kills of `up`."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torture.apart import KILLED, Child, apart, begun, command, ended
from torture.artefacts import QUIET, Artefacts
from torture.commands import searched
from torture.rounds import last_line

READY_SECONDS = 120.0
DEVICE = ("--device", "cpu", "--port", 0)


def with_few_files(files: int, *words: object) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    command(*words)


def address_of(child: Child, seconds: float = READY_SECONDS) -> str | None:
    """Where it serves, as soon as it says so; None when it ended instead."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = re.search(r"http://[\d.]+:\d+/", child.said)
        if found:
            return found[0]
        if os.waitid(os.P_PID, child.process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return None
        time.sleep(0.01)
    return None


@contextlib.contextmanager
def serving(work: Path, *words: object, files: int = 1024) -> Iterator[tuple[Child, str]]:
    """A server and its address; it has to end well when it is told to."""
    child = begun(partial(with_few_files, files, *words, *DEVICE), work)
    address = address_of(child)
    assert address is not None, child.said[-1000:]
    try:
        yield child, address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.process, signal.SIGTERM)
        outcome = ended(child, 30)
    assert outcome.code == 0, last_line(outcome)


def own_megabytes(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def kill_up(made: Artefacts, work: Path, kills: int, seed: int, store: str | None = None) -> dict[str, Any]:
    """SIGKILL `pmpguard up` while it embeds, builds or serves; started again it serves the same."""
    shutil.rmtree(work, ignore_errors=True)
    index, chance, troubles = work / "index", random.Random(f"{seed} up {store is None}"), []
    words = ["up", made.images, "--model", made.model, "--index", index, *QUIET]
    words += ["--store", store] if store else []

    def served() -> tuple[Any, float]:
        started = time.monotonic()
        with serving(work / "server", *words):
            taken = time.monotonic() - started
        looked = apart(partial(searched, index), work / "scratch")
        assert looked.code == 0, last_line(looked)
        return looked.value, taken

    expected, seconds = served()
    unused = tables(store)
    for _ in range(kills):
        shutil.rmtree(index.parent / "index", ignore_errors=True)
        for left in work.glob("index-*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        child = begun(partial(command, *words, *DEVICE), work / "server")
        outcome = ended(child, 1.1 * seconds * chance.random())
        if outcome.code != KILLED:
            troubles.append(f"ended by itself: {last_line(outcome)}")
            continue
        try:
            found, _ = served()
        except AssertionError as error:
            troubles.append(str(error)[-300:])
            continue
        if found != expected:
            troubles.append("serves something else")
        new = tables(store) - unused
        named = {path.read_text() for path in index.glob("versions/[0-9]*/*.postgres.json")}
        forgotten = [table for table in new if not any(table in text for text in named)]
        if forgotten:
            troubles.append(f"the database keeps {forgotten}")
        unused |= new  # whose index is removed by us
    return {"kills": kills, "held": kills - len(troubles), "troubles": troubles[:5]}


def tables(store: str | None) -> set[str]:
    """The tables in the database's schema."""
    if store is None:
        return set()
    import psycopg

    with psycopg.connect(store) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'pmpguard'").fetchall()
    return {row[0] for row in rows}
