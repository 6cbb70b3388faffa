"""The whole attack: `python -m torture` in `benchmarks`, some hours; `make torture`: twenty minutes of it.

Artefacts are made once, everything else happens to copies of them in children that may be killed. Numbers
are counts of attempts, so that a run says how much it tried; the result names every one that did not hold,
and every attack that was not made yet.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pmpguard.posix import lock
from torture.apart import apart, import_everything
from torture.artefacts import Artefacts, make_artefacts

RESULT = Path(__file__).parents[1] / "results" / "torture.json"
CUT = (
    "clean to parquet", "clean to folder", "index build", "index add", "embed", "embed shards", "train",
    "train on stored features", "audit", "audit again", "corrupt", "data convert to shards", "convert",
)  # fmt: skip
SHORT = ("corrupt", "index", "checkpoint", "decisions", "scenes as images", "foreign weights")
JUMPED = ("clean to folder", "index add", "train", "embed")


@contextmanager
def database() -> Iterator[str | None]:
    """A PostgreSQL of our own, where the wheel of one is installed."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    try:
        from helpers.live_postgres import PASSWORD, live_postgres, programs

        programs()
    except (ImportError, AssertionError):
        yield None
        return
    with live_postgres() as live:
        os.environ["PGPASSWORD"] = PASSWORD  # no index keeps it
        yield live.url()


def commit() -> str:
    words = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    told = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def hardware() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    return f"{model}, {os.cpu_count()} cores"


def measured(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Its outcome with how long it took; an attack that cannot be made is a trouble of its own."""
    started = time.monotonic()
    try:
        row = work()
    except AssertionError as error:
        row = {"held": 0, "troubles": [str(error)[-500:]]}
    return {**row, "took_seconds": round(time.monotonic() - started, 1)}


Attack = tuple[str, str, Callable[[], dict[str, Any]]]  # kind, what is attacked, how


def attacks(options: argparse.Namespace, made: Artefacts, work: Path) -> Iterator[Attack]:
    """Everything that can be asked for."""
    from torture.clients import many_idle_clients, mixed_load
    from torture.commands import COMMANDS
    from torture.fuzz import attack_in_parts
    from torture.hard_places import fill_disk, jump_clock, two_at_once
    from torture.kills import kill_command
    from torture.powercut import cut_power
    from torture.readers import READERS
    from torture.server import kill_up
    from torture.training import KINDS_OF_RUNS, OTHER_DATA, strike_training, strikes

    seed = options.seed
    for reader in READERS:
        yield "fuzz", reader.name, partial(attack_in_parts, reader, made, work / "fuzz", options.cases, seed)
    for one in COMMANDS:
        yield "kill", one.name, partial(kill_command, one, made, work / "kill", options.kills, seed)
        if one.name in CUT:
            yield "cut", one.name, partial(cut_power, one, made, work / "cut", options.cuts, seed)
        yield "full", one.name, partial(fill_disk, one, made, work / "full", options.full, seed)
        yield "two", one.name, partial(two_at_once, one, made, work / "two", options.two, seed)
        if one.name in JUMPED:
            yield "clock", one.name, partial(jump_clock, one, made, work / "clock", 2, seed)
    yield "kill", "up", partial(kill_up, made, work / "up", options.kills, seed)
    yield "kill", "up with PostgreSQL", partial(kill_up_with_store, made, work, options.kills, seed)
    for name, kind, processes in KINDS_OF_RUNS:
        for how in (*strikes(), OTHER_DATA):
            struck = partial(
                strike_training, name, kind, processes, how, made, work / "train", options.strikes, seed
            )
            yield "train", f"{name}: {how}", struck
    idle = partial(many_idle_clients, made, work / "idle", options.clients, options.idle_seconds)
    yield "idle", f"{options.clients} clients", idle
    yield "load", "mixed", partial(mixed_load, made, work / "load", options.load_seconds)


def kill_up_with_store(made: Artefacts, work: Path, kills: int, seed: int) -> dict[str, Any]:
    from torture.server import kill_up

    with database() as store:
        if store is None:
            return {"kills": 0, "held": 0, "troubles": [], "left_out": "no PostgreSQL is installed here"}
        return kill_up(made, work / "up-store", kills, seed, store)


def in_order(every: Sequence[Attack], options: argparse.Namespace, output: Path) -> list[Attack]:
    """What was asked for. Where time is bounded, first what was never attacked, the rest by chance."""
    wanted = [
        (kind, name, attack)
        for kind, name, attack in every
        if kind in options.only and name in (SHORT if options.short else options.names or (name,))
    ]
    if options.minutes is not None:
        made = json.loads(output.read_text()) if output.is_file() else {}
        random.Random(options.seed).shuffle(wanted)
        wanted.sort(key=lambda one: one[1] in made.get(one[0], {}))
    return wanted


def add_row(
    path: Path,
    about: dict[str, Any],
    kind: str,
    name: str,
    row: dict[str, Any],
    known: Sequence[tuple[str, str, object]],
) -> None:
    """Write down an outcome, in place of the last one of its kind; several runs may do so at once.

    Each says of which commit it is: an attack may be made again on a part alone. Those of the `known` that
    nobody has made yet are listed.
    """
    with path.with_suffix(".lock").open("w") as stream:
        lock(stream.fileno(), wait=True)
        result = json.loads(path.read_text()) if path.is_file() else {}
        result |= about
        result.setdefault(kind, {})[name] = {**row, **about}
        result["missing"] = [f"{kind}: {name}" for kind, name, _ in known if name not in result.get(kind, {})]
        rows = [row for key in KINDS for row in result.get(key, {}).values()]
        result["took_seconds"] = round(sum(row["took_seconds"] for row in rows))
        result["troubles"] = sum(len(row["troubles"]) for row in rows)
        path.write_text(json.dumps(result, indent=2) + "\n")
    path.with_suffix(".lock").unlink(missing_ok=True)


KINDS = ("fuzz", "kill", "cut", "full", "two", "clock", "train", "idle", "load")


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=30, help="of every command")
    parser.add_argument("--cuts", type=int, default=30, help="power cuts of every recorded command")
    parser.add_argument("--cases", type=int, default=1500, help="damaged files for every reader")
    parser.add_argument("--full", type=int, default=5, help="full disks for every command")
    parser.add_argument("--two", type=int, default=3, help="pairs of every command")
    parser.add_argument("--strikes", type=int, default=1, help="at every kind of training, in every way")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--load-seconds", type=float, default=1800.0)
    parser.add_argument("--minutes", type=float, help="after so many no other attack begins")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--names", nargs="*", help="commands, readers or runs to attack; by default all")
    parser.add_argument("--made", type=Path, help="artefacts of an earlier run, or where to keep this one's")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--short", action="store_true", help="a minute of it: few attempts on few commands")
    options = parser.parse_args(words)
    if options.short:
        options.kills, options.cuts, options.full, options.two, options.cases = 2, 2, 1, 1, 20
        options.only = ("fuzz", "kill", "cut", "full", "two")
    return options


def main() -> None:
    options = options_of()
    load = os.getloadavg()[0]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers end, small disks are unmounted
    import_everything()
    work = Path(tempfile.mkdtemp(prefix="torture-"))
    made, output = (options.made or work / "made").absolute(), options.output.absolute()
    os.chdir(work)
    try:
        if not (made / "tiles" / "metadata.parquet").is_file():  # which is made last
            outcome = apart(lambda: make_artefacts(made) and None, work / "scratch")
            assert outcome.code == 0, outcome.said[-2000:]
        about = {
            "commit": commit(), "seed": options.seed, "hardware": hardware(),
            "load_average_before": round(load, 1),
        }  # fmt: skip
        held, every = True, list(attacks(options, Artefacts(made), work))
        until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
        for kind, name, attack in in_order(every, options, output):
            if until is not None and time.monotonic() >= until:
                break
            row = measured(attack)
            print(f"{kind} {name}: {json.dumps(row)}", flush=True)
            held &= not row["troubles"]
            add_row(output, about, kind, name, row, every)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
