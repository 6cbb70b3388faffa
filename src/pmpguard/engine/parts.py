"""A job cut into parts, each a call of a named function that leaves its result in a file.

The plan does not depend on who works on it, so the result is the same for any number of workers, and a job
that was stopped goes on with the parts that are missing. Nothing but names, numbers and texts travels; what
is large lies in files that every worker sees.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pmpguard import errors
from pmpguard.errors import ConfigError, PmpguardError
from pmpguard.progress import progress_bar

MAX_ATTEMPTS = 3  # a part that kills its worker so often is not tried again
EngineName = Literal["local", "ray"]


@dataclass(frozen=True)
class Engine:
    """Who works on the parts: this process alone, several processes of this machine, or a Ray cluster.

    `scratch` is a folder that every worker sees, for jobs whose parts are not themselves the result. What
    lies there is used again when the job is given again.
    """

    workers: int = 1
    name: EngineName = "local"
    address: str | None = None  # of a Ray cluster; without one a cluster of `workers` is started here
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}", fix="give at least 1")
        if self.name not in ("local", "ray"):
            raise ConfigError(f"engine {self.name!r} is unknown", fix="use local or ray")
        if self.address is not None and self.name != "ray":
            raise ConfigError("an address was given, but no engine that has one", fix="add --engine ray")

    @property
    def alone(self) -> bool:
        """Whether everything happens in this process."""
        return self.name == "local" and self.workers == 1

    @contextmanager
    def files(self, name: str) -> Iterator[Path]:
        """A folder for a job's parts: below `scratch`, where it stays until the job is done, or temporary."""
        if self.scratch is not None:
            folder = self.scratch / name
            folder.mkdir(parents=True, exist_ok=True)
            yield folder
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # unless something else lies there
                self.scratch.rmdir()
        elif self.address is not None:
            raise ConfigError("the nodes of a cluster share no temporary folder", fix="give --scratch FOLDER")
        else:
            with tempfile.TemporaryDirectory(prefix="pmpguard-") as temporary:
                yield Path(temporary)

    @property
    def threads(self) -> int:
        """Threads of each worker, so that together they have one on every core."""
        return max(1, (os.cpu_count() or 1) // self.workers)


ALONE = Engine()


@dataclass(frozen=True)
class Part:
    """One call: `arguments` are values JSON can hold, `output` is the file it leaves.

    `size` is what it counts for on the bar.
    """

    arguments: Mapping[str, Any]
    output: Path | None = None
    size: int = 1

    @property
    def done(self) -> bool:
        return self.output is not None and self.output.exists()


def ranges(count: int, size: int) -> list[tuple[int, int]]:
    """Consecutive ranges of at most `size`, the same for any number of workers.

    >>> ranges(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def run_parts(
    engine: Engine,
    function: str,
    parts: Sequence[Part],
    *,
    title: str = "",
    unit: str = "",
    gpu: bool = False,
) -> None:
    """Call `function`, a name such as `package.module:function`, for every part whose output is not there.

    A worker that dies has its part done by another one. The first error of a part stops the job; what is
    done stays. `title` names the one bar on stderr, without it there is none; `gpu` asks for a GPU for each
    worker.
    """
    left = [part for part in parts if not part.done]
    total = sum(part.size for part in parts)
    done = total - sum(part.size for part in left)
    with progress_bar(total, done, title, active=bool(title), unit=unit) as bar:

        def finished(part: Part) -> None:
            bar.update(part.size)

        if engine.alone or not left:
            for part in left:
                call(function, part.arguments)
                finished(part)
            return
        if engine.name == "ray":
            from pmpguard.engine.ray_cluster import run_on_ray as run
        else:
            from pmpguard.engine.processes import run_in_processes as run
        run(engine, function, left, finished, gpu)
    unseen = next((part.output for part in left if part.output is not None and not part.done), None)
    if unseen is not None:
        raise PmpguardError(
            f"{unseen}: a worker has written it, and it is not here",
            fix="use a folder that all nodes share (--scratch, --out)",
        )


def call(function: str, arguments: Mapping[str, Any]) -> None:
    """Call a function by its name."""
    module, _, name = function.partition(":")
    work: Callable[..., None] = getattr(importlib.import_module(module), name)
    work(**arguments)


def attempt(function: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Call a function in a worker; what it raised as texts, empty when it went well."""
    try:
        call(function, arguments)
    except PmpguardError as error:
        return {"kind": type(error).__name__, "message": error.message, "fix": error.fix}
    except OSError as error:  # a full disk, a folder one may not write to
        return {"kind": "OSError", "message": str(error)}
    except Exception:
        return {"kind": "", "message": traceback.format_exc()}
    return {}


def raise_told(told: Mapping[str, str]) -> None:
    """Raise in this process what a worker says it has raised."""
    if not told:
        return
    if told["kind"] == "OSError":
        raise OSError(told["message"])
    kind = getattr(errors, told["kind"] or "PmpguardError", PmpguardError)
    if not told["kind"] or not issubclass(kind, PmpguardError):
        raise RuntimeError(f"in a worker:\n{told['message']}")
    if kind is errors.PmpguardError or kind.__init__ is PmpguardError.__init__:
        raise kind(told["message"], fix=told["fix"])
    raise PmpguardError(told["message"], fix=told["fix"])


def lost(function: str, part: Part, how: str) -> PmpguardError:
    """The error for a part that has killed its worker too often."""
    what = part.output if part.output is not None else dict(part.arguments)
    return PmpguardError(
        f"{function}: {MAX_ATTEMPTS} workers were lost ({how}) on {what}",
        fix="if memory ran out use fewer workers; the same command goes on with what is missing",
    )
