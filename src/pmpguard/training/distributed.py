"""Several processes that behave exactly like one.

Every rank encodes its slice of the global batch; the fragments of all ranks are gathered, so every rank
computes the same loss over the whole batch. The gather's backward hands each rank the gradient of its own
slice, scaled by the number of ranks; averaging the gradients over ranks then gives, for every parameter, the
gradient a single process would have: encoder parameters sum their slices, parameters used after the gather
average equal values.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pmpguard.files import writer_lock
from pmpguard.models.encoded import Encoded


@dataclass(frozen=True)
class World:
    """Which process this is, of how many."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> World:
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This rank's contiguous part of `count` items; the parts' sizes differ by at most one.

        >>> [World(rank, 3).share(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        small, larger = divmod(count, self.size)
        start = self.rank * small + min(self.rank, larger)
        return slice(start, start + small + (self.rank < larger))


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


class _Gather(torch.autograd.Function):
    """All ranks' rows joined in rank order; rows may differ in number."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor, counts: list[int]) -> Tensor:
        rank = dist.get_rank()
        start = sum(counts[:rank])
        ctx.part = slice(start, start + counts[rank])  # type: ignore[attr-defined]
        ctx.world = len(counts)  # type: ignore[attr-defined]
        longest = max(counts)
        padded = rows.new_zeros((longest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded.contiguous())
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient[ctx.part] * ctx.world, None  # type: ignore[attr-defined]


def gather_rows(rows: Tensor, total: int, world: World) -> Tensor:
    """(total, ...): the rows of all ranks, where rank r holds `World(r, size).share(total)`."""
    if world.size == 1:
        return rows
    parts = [World(rank, world.size).share(total) for rank in range(world.size)]
    counts = [part.stop - part.start for part in parts]
    gathered: Tensor = _Gather.apply(rows, counts)  # type: ignore[no-untyped-call]
    return gathered


def gather_encoded(items: Encoded, total: int, world: World) -> Encoded:
    """All ranks' items in order; fragments are padded to the longest of any rank."""
    if world.size == 1:
        return items
    longest = torch.tensor([items.fragments.shape[1]], device=items.pooled.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    extra = int(longest) - items.fragments.shape[1]
    fragments = nn.functional.pad(items.fragments, (0, 0, 0, extra))
    mask = nn.functional.pad(items.mask, (0, extra))
    return Encoded(
        gather_rows(items.pooled, total, world),
        gather_rows(fragments, total, world),
        gather_rows(mask.to(torch.uint8), total, world).bool(),
    )


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Replace every gradient by its mean over ranks: one message, in the widest number type among them.

    Every rank runs the same modules, so the same parameters have gradients on all. The others stay without
    one: a gradient of zero would make the optimiser decay a weight that one process leaves alone.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if world.size == 1 or not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world.size
    for gradient, mean in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def broadcast_state(module: nn.Module, world: World) -> None:
    """Give every rank rank 0's parameters and buffers."""
    broadcast_tensors(module.state_dict().values(), world)


def broadcast_tensors(tensors: Iterable[Tensor], world: World) -> None:
    """Give every rank rank 0's values, in place."""
    if world.size > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def any_rank(asked: bool, device: torch.device, world: World) -> bool:
    """Whether any rank asks, so that all ranks do the same."""
    if world.size == 1:
        return asked
    votes = torch.tensor([int(asked)], device=device)
    dist.all_reduce(votes)
    return bool(votes.item())


def writing_right(folder: Path, world: World) -> contextlib.AbstractContextManager[None]:
    """The only right to write in the folder, held by rank 0 for all ranks."""
    return writer_lock(folder) if world.is_main else contextlib.nullcontext()


def barrier(world: World) -> None:
    if world.size > 1:
        dist.barrier()
