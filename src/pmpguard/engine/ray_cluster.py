"""The parts of a job as tasks of a Ray cluster; what a lost node was working on is done again elsewhere."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pmpguard.engine.parts import MAX_ATTEMPTS, Engine, Part, attempt, lost, raise_told
from pmpguard.errors import ConfigError, PmpguardError, require

ANSWER_SECONDS = 5.0
IN_FLIGHT = 4  # tasks waiting or running for each core of the cluster


def run_on_ray(
    engine: Engine, function: str, parts: Sequence[Part], finished: Callable[[Part], None], gpu: bool = False
) -> None:
    """Do all parts. Ray repeats a task whose worker or node was lost; an error of a task stops the job."""
    with connected(engine) as ray:
        options: dict[str, Any] = {"max_retries": MAX_ATTEMPTS - 1, "num_cpus": 1, "num_gpus": int(gpu)}
        task = ray.remote(**options)(attempt)
        most = IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting = list(reversed(parts))
        running: dict[Any, Part] = {}
        while waiting or running:
            while waiting and len(running) < most:
                part = waiting.pop()
                running[task.remote(function, dict(part.arguments))] = part
            for reference in ray.wait(list(running), num_returns=1)[0]:
                part = running.pop(reference)
                try:
                    told = ray.get(reference)
                except ray.exceptions.RayError as error:
                    raise lost(function, part, type(error).__name__) from error
                raise_told(told)
                finished(part)


@contextmanager
def connected(engine: Engine) -> Iterator[Any]:
    """Ray, connected to the cluster at the address or to one of `workers` cores that is started here."""
    ray = require("ray", "ray")
    if ray.is_initialized():  # by whoever calls us
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if engine.address is None:  # "local": a cluster that runs here already is not ours to use
        settings |= {"address": "local", "num_cpus": engine.workers, "include_dashboard": False}
    else:
        require_answer(engine.address)
        settings["address"] = engine.address
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        with sigterm_kept():
            ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PmpguardError(
            f"no Ray cluster at {engine.address or 'this machine'}: {str(error).splitlines()[0]}",
            fix="start one with `ray start --head`, or leave --address out",
        ) from error
    try:
        yield ray
    finally:
        with sigterm_kept():
            ray.shutdown()


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Put the handler from before back.

    When it starts Ray takes SIGTERM for itself, and when it stops it leaves the kernel's default, which ends
    the process whatever Python believes to have installed.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def require_answer(address: str) -> None:
    """Stop at once when nothing listens at `host:port` or `ray://host:port`; "auto" is left to Ray."""
    if address in ("auto", "local"):
        return
    found = re.fullmatch(r"(?:ray://)?\[?([^/\[\]]+)\]?:(\d{1,5})", address)
    if not found or int(found[2]) > 65535:
        raise ConfigError(f"address {address!r}: not of the form host:port", fix="give --address HOST:6379")
    try:
        socket.create_connection((found[1], int(found[2])), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        raise PmpguardError(
            f"{address}: no Ray cluster answers ({error})",
            fix="check that `ray start --head` runs there and that the port is open, or leave --address out",
        ) from error
