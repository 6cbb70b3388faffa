"""The parts of a job on several processes of this machine; one that dies is replaced."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from pmpguard.engine.parts import MAX_ATTEMPTS, Engine, Part, lost, raise_told


class WorkerLost(Exception):
    """A worker process has died; the text says how."""


class Worker:
    """A process of `pmpguard.engine.worker`, started when it is first asked and again after it has died."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.process: subprocess.Popen[str] | None = None
        self.closed = False
        self.lock = threading.Lock()

    def ask(self, function: str, part: Part) -> None:
        """Have the part done; errors it raises are raised here."""
        with self.lock:
            if self.closed:
                raise WorkerLost("stopped")
            if self.process is None:
                command = [sys.executable, "-m", "pmpguard.engine.worker"]
                self.process = subprocess.Popen(
                    command, env=self.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(
                json.dumps({"function": function, "arguments": dict(part.arguments)}),
                file=self.process.stdin,
                flush=True,
            )
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer.endswith("\n"):
            code = self.end()
            raise WorkerLost(signal.Signals(-code).name if code < 0 else f"exit code {code}")
        raise_told(json.loads(answer))

    def end(self) -> int:
        """Wait for the process to go; its exit code."""
        with self.lock:
            if self.process is None:
                return 0
            with self.process as process:
                if process.stdout is not None and not self.closed:
                    process.stdout.close()
            self.process = None
            return process.returncode

    def close(self) -> None:
        """End the process at once, whatever it does."""
        with self.lock:
            self.closed = True
            if self.process is not None:
                self.process.kill()


def run_in_processes(
    engine: Engine, function: str, parts: Sequence[Part], finished: Callable[[Part], None], gpu: bool = False
) -> None:
    """Do all parts; as soon as a worker is free it gets the next one."""
    waiting: queue.SimpleQueue[tuple[Part, int]] = queue.SimpleQueue()
    for part in parts:
        waiting.put((part, 1))
    count = min(engine.workers, len(parts))
    workers = [Worker(_environment(engine, number, gpu)) for number in range(count)]

    def serve(worker: Worker) -> None:
        while True:
            try:
                part, times = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                worker.ask(function, part)
            except WorkerLost as error:
                if worker.closed:
                    return
                if times == MAX_ATTEMPTS:
                    raise lost(function, part, str(error)) from error
                waiting.put((part, times + 1))
            else:
                finished(part)

    with ThreadPoolExecutor(count) as pool:
        try:
            for done in as_completed([pool.submit(serve, worker) for worker in workers]):
                done.result()
        finally:
            for worker in workers:
                worker.close()
    for worker in workers:
        worker.end()


def _environment(engine: Engine, number: int, gpu: bool) -> dict[str, str]:
    """Modules are found as here; together the workers have a thread on every core, and GPUs in turn."""
    found = {"OMP_NUM_THREADS": str(engine.threads), **os.environ}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    if gpu and "CUDA_VISIBLE_DEVICES" not in found:
        import torch

        if torch.cuda.device_count() > 1:
            found["CUDA_VISIBLE_DEVICES"] = str(number % torch.cuda.device_count())
    return found
