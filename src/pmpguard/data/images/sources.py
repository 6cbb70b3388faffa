"""Where the loop gets a table's images from: all in memory, decoded ahead by threads, or part of a set."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pmpguard.data.images.decode import image_tensor, load_images, load_pair_image
from pmpguard.data.images.framing import SQUASHED, Framing
from pmpguard.data.pairs import PairTable
from pmpguard.device import to_device
from pmpguard.errors import DataError
from pmpguard.progress import progress_wanted

_THREADS = max(4, min(16, os.cpu_count() or 1))


class ImageSource(Protocol):
    """The distinct images of a table, by image code."""

    def __len__(self) -> int: ...

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[Tensor]:
        """For each array of codes its images: uint8 (n, 3, size, size) on the device, in order."""
        ...


class ImagesInMemory:
    """All images decoded once and kept on the device."""

    def __init__(self, pixels: Tensor, device: torch.device) -> None:
        self.pixels = pixels.to(device)  # (images, 3, size, size) uint8

    def __len__(self) -> int:
        return len(self.pixels)

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[Tensor]:
        for part in codes:
            yield self.pixels[to_device(part, self.pixels.device)]


class StreamedImages:
    """Images decoded by threads a few batches ahead; memory does not grow with the dataset."""

    def __init__(
        self,
        table: PairTable,
        size: int,
        device: torch.device,
        ahead: int = 3,
        framing: Framing = SQUASHED,
    ) -> None:
        self.table, self.size, self.device, self.ahead = table, size, device, ahead
        self.framing = framing
        self.rows = table.first_rows

    def __len__(self) -> int:
        return len(self.rows)

    def _one(self, code: int) -> Tensor:
        image = load_pair_image(self.table, int(self.rows[code]))
        return image_tensor(image, self.size, self.framing)

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[Tensor]:
        waiting: deque[list[Future[Tensor]]] = deque()
        with ThreadPoolExecutor(_THREADS) as pool:
            for part in codes:
                waiting.append([pool.submit(self._one, int(code)) for code in part])
                if len(waiting) > self.ahead:
                    yield self._join(waiting.popleft())
            while waiting:
                yield self._join(waiting.popleft())

    def _join(self, jobs: list[Future[Tensor]]) -> Tensor:
        return to_device(torch.stack([job.result() for job in jobs]), self.device)


@dataclass(frozen=True, eq=False)
class ImageSubset:
    """Some images of an open set, numbered anew. What is kept of the set serves all its parts."""

    whole: ImageSource
    codes: np.ndarray  # (images,) their numbers in the set

    def __len__(self) -> int:
        return len(self.codes)

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[Tensor]:
        return self.whole.batches([self.codes[part] for part in codes])


def open_images(
    table: PairTable,
    size: int,
    device: torch.device,
    cache_images: str = "auto",
    cache_images_gb: float = 4.0,
    framing: Framing = SQUASHED,
) -> ImageSource:
    """Images held in memory when they fit (or when asked for), else streamed ones."""
    count = len(table.first_rows)
    fits = count * 3 * size * size <= cache_images_gb * 1e9
    if cache_images == "never" or (cache_images == "auto" and not fits):
        return StreamedImages(table, size, device, framing=framing)
    pixels, problems = load_images(
        table,
        table.first_rows,
        size,
        policy="fail",
        workers=_THREADS,
        progress=progress_wanted(),
        framing=framing,
    )
    if problems:
        raise DataError(f"{len(problems)} images of {table.name} cannot be read", fix="pmpguard data check")
    return ImagesInMemory(pixels, device)
