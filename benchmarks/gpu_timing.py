"""Time, memory and the matrix peak of the device that benchmarks of kernels run on.

Without CUDA everything runs on the CPU, which is for trying a benchmark out and means nothing as a number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def milliseconds(work: Callable[[], Any], most: int = 9, seconds: float = 1.5) -> float:
    """Median after one run to warm up: of `most` runs, or of fewer that take `seconds`; at least two."""
    work()
    wait()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < most and (len(times) < 2 or time.perf_counter() - started < seconds):
        times.append(once(work))
    return statistics.median(times)


def once(work: Callable[[], Any]) -> float:
    """Milliseconds between events on the device, else on the clock."""
    if DEVICE.type != "cuda":
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) * 1000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def extra_gigabytes(work: Callable[[], Any]) -> float:
    """Peak of what `work` allocates on top of what is there; 0 without CUDA."""
    if DEVICE.type != "cuda":
        return 0.0
    wait()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    wait()
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def matrix_peak(size: int = 8192) -> float:
    """TFLOP/s of a large bf16 matrix product of random numbers; of a small float32 one without CUDA."""
    if DEVICE.type != "cuda":
        size = 256
    kind = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=DEVICE, dtype=kind) for _ in range(2))
    return 2 * size**3 / milliseconds(partial(torch.mm, left, right), 20) / 1e9
