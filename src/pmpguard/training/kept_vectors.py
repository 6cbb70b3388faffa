"""Vectors of a whole set: in memory, or past a stated size in float16 and mapped from the cache folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import torch

from pmpguard.files import cache_folder, full_disk_named, temporary_directory
from pmpguard.models.encoded import Encoded
from pmpguard.training.stored_features import FeatureFiles

MAX_BYTES = 4 << 30  # of a set's captions or images in float32; more go to disk, or on a GPU are halved


def kept(parts: Iterable[Encoded], count: int, most: int | None = None, total: int | None = None) -> Encoded:
    """What `Encoded.cat` gives of parts of `count` items in all, of equally many fragments each.

    Where the `total` of all ranks takes more than `most` bytes vectors are kept in float16, and those of the
    CPU in a file that is gone with the last reference to them.
    """
    coming = iter(parts)
    first = next(coming, None)
    total = count if total is None else total
    if first is None or most is None or bytes_of(first) * total <= most * len(first):
        return Encoded.filled(itertools.chain([] if first is None else [first], coming), count)
    halves = (part.to(dtype=torch.float16) for part in itertools.chain([first], coming))
    if first.pooled.is_cuda:
        return Encoded.filled(halves, count)
    target = cache_folder("vectors") / "vectors"
    with full_disk_named(target), temporary_directory(target) as folder:
        return _written(folder, halves, count)


def bytes_of(part: Encoded) -> int:
    return sum(each.numel() * each.element_size() for each in (part.pooled, part.fragments, part.mask))


def _written(folder: Path, parts: Iterable[Encoded], count: int) -> Encoded:
    files = FeatureFiles(folder, count)
    for part in parts:
        files.append(part)
    return files.features()  # mapped: the file's name may go
