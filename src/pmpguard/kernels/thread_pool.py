"""Work on many small pieces, one thread per core, each with single-threaded operations.

Pieces that stay in the cache of a core finish sooner than large operations all cores share: threads never
wait for each other between operations, and little memory is read or claimed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")
Done = TypeVar("Done")

_one_at_a_time = threading.Lock()


def on_every_core(work: Callable[[Task], Done], tasks: Sequence[Task]) -> list[Done]:
    """What `work` returns for each task, in their order, without gradients.

    torch's number of threads belongs to the whole process, so only one caller at a time may lower it.
    """

    def without_gradients(task: Task) -> Done:
        with torch.no_grad():  # which threads do not inherit
            return work(task)

    with _one_at_a_time:
        cores = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(cores) as pool:
                return list(pool.map(without_gradients, tasks))
        finally:
            torch.set_num_threads(cores)
