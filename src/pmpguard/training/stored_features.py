"""Features of frozen backbones on disk: written batch by batch, mapped when whole, bounded, resumable.

Where the features of a dataset would fill the memory they go to the cache folder instead, into a folder
named by what they are features of. A run that is stopped goes on where it was; another run over the same
images with the same backbone finds them; the folders that were not used for longest make room.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pmpguard.files import cache_folder, make_folder, read_json, sync, write_json
from pmpguard.models.encoded import Encoded
from pmpguard.posix import lock

log = logging.getLogger("pmpguard")
MAX_DISK_GB = 200.0  # of all features together
KEPT_FREE = 0.1  # share of the disk that others may need
SHAPE = "shape.json"
PARTS = ("pooled", "fragments", "mask")
SYNCED_BYTES = 1 << 28  # written, and no more, may have to be made again after a kill


@dataclass(frozen=True)
class Storage:
    """Where features go: into memory up to `memory_gb`, else to disk; with `keep` "never" always to disk."""

    keep: Literal["auto", "always", "never"] = "auto"
    memory_gb: float = 4.0
    disk_gb: float = MAX_DISK_GB

    def in_memory(self, size: int) -> bool:
        return self.keep == "always" or (self.keep == "auto" and size <= self.memory_gb * 1e9)


class FeatureFiles:
    """The features of `count` items in a folder, one after the other, all of the shape of the first.

    Only items that were synced are counted: after a power cut a file may be long and hold nothing.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.shape: tuple[int, int, str] | None = None  # fragments, width, type
        self.synced = 0  # items
        self.unsynced = 0  # bytes
        if (folder / SHAPE).is_file():
            stored = read_json(folder / SHAPE)
            self.shape, self.synced = tuple(stored["shape"]), int(stored.get("items", 0))

    def _row_bytes(self) -> dict[str, int]:
        assert self.shape is not None
        fragments, width, kind = self.shape
        size = torch.empty(0, dtype=getattr(torch, kind)).element_size()
        return {"pooled": width * size, "fragments": fragments * width * size, "mask": fragments}

    def written(self) -> int:
        """Whole items that the files are long enough for."""
        if self.shape is None:
            return 0
        return min(
            (self.folder / name).stat().st_size // size if (self.folder / name).is_file() else 0
            for name, size in self._row_bytes().items()
        )

    @property
    def done(self) -> int:
        """Whole items that are certainly there."""
        return min(self.synced, self.written())

    def go_on_from(self, item: int) -> None:
        """Drop what was written of later items."""
        if self.shape is not None:
            for name, size in self._row_bytes().items():
                with (self.folder / name).open("ab") as stream:
                    stream.truncate(item * size)

    def append(self, part: Encoded) -> None:
        if self.shape is None:
            self.shape = (part.fragments.shape[1], part.pooled.shape[1], str(part.pooled.dtype)[6:])
            self.sync()
        for name, values in zip(PARTS, (part.pooled, part.fragments, part.mask), strict=True):
            content = values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            with (self.folder / name).open("ab") as stream:
                stream.write(content.data)
            self.unsynced += content.nbytes
        if self.unsynced >= SYNCED_BYTES:
            self.sync()

    def sync(self) -> None:
        """Flush what was written to disk, then count it."""
        assert self.shape is not None
        for name in PARTS:
            if (self.folder / name).is_file():
                sync(self.folder / name)
        self.synced, self.unsynced = self.written(), 0
        write_json(self.folder / SHAPE, {"shape": list(self.shape), "items": self.synced})

    def features(self) -> Encoded:
        """All items, mapped: what is asked for is read, and nothing else is held."""
        assert self.shape is not None
        fragments, width, kind = self.shape
        os.utime(self.folder / SHAPE)

        def mapped(name: str, dtype: torch.dtype, *shape: int) -> Tensor:
            path = str(self.folder / name)
            return torch.from_file(path, size=math.prod(shape), dtype=dtype).view(*shape)

        return Encoded(
            mapped("pooled", getattr(torch, kind), self.count, width),
            mapped("fragments", getattr(torch, kind), self.count, fragments, width),
            mapped("mask", torch.bool, self.count, fragments),
        )


def read_or_make(
    name: str, count: int, size: int, batch: int, storage: Storage, make: Callable[[int], Iterator[Encoded]]
) -> Encoded | None:
    """The features of that name, which take `size` bytes; `make(item)` gives those missing from `item` on.

    None, said with the reason, where there is no room. Another process that makes the same ones is waited
    for.
    """
    parent = cache_folder("features")
    folder = parent / name
    try:
        make_folder(folder)
        with (folder / ".lock").open("a") as stream:
            lock(stream.fileno(), wait=True)
            files = FeatureFiles(folder, count)
            if files.done < count:
                if not make_room(parent, folder, size, storage):
                    return None
                first = files.done // batch * batch  # batches as if it had never been stopped
                files.go_on_from(first)
                try:
                    for part in make(first):
                        files.append(part)
                finally:
                    if files.shape is not None:
                        files.sync()
            return files.features()
    except OSError as error:
        log.warning("%s: features cannot be kept there (%s); encoders run in every epoch", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        return None


def make_room(parent: Path, folder: Path, size: int, storage: Storage) -> bool:
    """Remove features that were not used for longest until `size` bytes fit; whether they do."""
    others = sorted(
        (path for path in parent.iterdir() if path != folder and (path / SHAPE).is_file()),
        key=lambda path: (path / SHAPE).stat().st_mtime_ns,
    )
    taken = {path: sum(file.stat().st_size for file in path.iterdir()) for path in others}
    here = sum(file.stat().st_size for file in folder.iterdir())
    while True:
        disk = shutil.disk_usage(parent)
        free = min(storage.disk_gb * 1e9 - sum(taken.values()), disk.free + here - KEPT_FREE * disk.total)
        if size <= free:
            return True
        unused = next((path for path in taken if _is_unused(path)), None)
        if unused is None:
            log.warning(
                "%s: %.1f GB of features do not fit (%.1f GB free for them); encoders run in every epoch. "
                "Set PMPGUARD_CACHE to a larger disk", parent, size / 1e9, max(free, 0) / 1e9,
            )  # fmt: skip
            return False
        shutil.rmtree(unused)
        del taken[unused]


def _is_unused(folder: Path) -> bool:
    with (folder / ".lock").open("a") as stream:
        return lock(stream.fileno())
