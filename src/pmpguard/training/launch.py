"""Joining the processes that `torchrun` or `accelerate launch` started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from pmpguard.training.distributed import World


@contextlib.contextmanager
def joined_processes(device: str = "auto", timeout_s: float = 600.0) -> Iterator[World]:
    """Within the block this process is one of a group, if a launcher started several; else it is alone.

    When one of them dies the others stop with an error, at the latest after `timeout_s` of waiting; the last
    checkpoint continues the run.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield World.current()
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout_s))
    try:
        yield World.current()
    finally:
        dist.destroy_process_group()
