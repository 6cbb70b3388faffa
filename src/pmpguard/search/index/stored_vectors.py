"""The vectors of many partitions as one list of items; fragments stay on disk until they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pmpguard.errors import DataError
from pmpguard.models.encoded import Encoded
from pmpguard.search.codec import FragmentCodec
from pmpguard.search.index.coded_files import CODE_FOLDERS, decode_pooled, read_codecs
from pmpguard.search.index.embedding_files import FOLDERS, EmbeddingSettings, file_name, with_items
from pmpguard.search.index.stored_array import StoredArray
from pmpguard.search.query import Kind

Rows = npt.NDArray[np.int64]
Span = tuple[int, Rows, Rows]  # a partition, the places of its rows in the answer, the rows in it


@dataclass(frozen=True)
class StoredVectors:
    """Vectors of one kind in the files of many partitions; row numbers run through all of them."""

    pooled: tuple[StoredArray, ...]  # (n, d) float32 each; int8 where they are coded
    fragments: tuple[StoredArray, ...]  # (n, f, d) float16 each; (n,) records of the codec
    masks: tuple[StoredArray, ...]  # (n, f) bool each; none where they are coded
    dim: int
    codec: FragmentCodec | None = None
    starts: Rows = field(init=False)  # (partitions + 1,) first row of each, then the number of rows

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.cumsum([0, *map(len, self.pooled)]))

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def is_lost(self) -> bool:
        """Whether some file has changed under our hands."""
        return any(array.is_lost for array in (*self.pooled, *self.fragments, *self.masks))

    @property
    def item_bytes(self) -> float:
        """What an item takes on disk, on average: pooled vector, fragments and mask."""
        arrays = (*self.pooled, *self.fragments, *self.masks)
        return sum(len(array) * array.row_bytes for array in arrays) / max(1, len(self))

    def all_pooled(self) -> npt.NDArray[np.float32]:
        """(N, d) in memory."""
        return self.pooled_from(0)

    def pooled_from(self, first: int) -> npt.NDArray[np.float32]:
        """(N - first, d) in memory: the rows from `first` on."""
        found = np.empty((max(0, len(self) - first), self.dim), np.float32)
        for part, start in zip(self.pooled, self.starts[:-1].tolist(), strict=True):
            if start + len(part) > first:
                rows = self._as_floats(part.rows_from(max(0, first - start)))
                found[max(0, start - first) :][: len(rows)] = rows
        return found

    def _as_floats(self, pooled: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return pooled if self.codec is None else decode_pooled(pooled)

    def take(self, rows: npt.ArrayLike) -> Encoded:
        """Some items, in the given order; only their fragments are read from disk."""
        spans = self._spans(rows)
        for part, _, inside in spans:  # the disk works on all of them at a time
            self.fragments[part].will_need(inside)
            self.pooled[part].will_need(inside)
        pooled = self._pooled(spans)
        fragments, mask = self._fragments(spans, len(pooled))
        return Encoded(torch.from_numpy(pooled), fragments, mask)

    def pooled_rows(self, rows: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """(R, d) of some rows, in the given order."""
        return self._pooled(self._spans(rows))

    def _spans(self, rows: npt.ArrayLike) -> list[Span]:
        wanted = np.asarray(rows, np.int64)
        place = np.searchsorted(self.starts, wanted, side="right") - 1  # (R,) partition of every row
        spans = []
        for part in np.unique(place).tolist():
            here = np.flatnonzero(place == part)
            spans.append((part, here, wanted[here] - self.starts[part]))
        return spans

    def _pooled(self, spans: Sequence[Span]) -> npt.NDArray[np.float32]:
        pooled = np.empty((sum(len(here) for _, here, _ in spans), self.dim), np.float32)
        for part, here, inside in spans:
            pooled[here] = self._as_floats(self.pooled[part].rows(inside))
        return pooled

    def _fragments(self, spans: Sequence[Span], count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Fragments (R, f, d) and mask (R, f) of rows in partitions."""
        if self.codec is not None:
            return self._decoded(self.codec, spans, count)
        longest = max((self.fragments[part].shape[1] for part, _, _ in spans), default=1)
        fragments = np.zeros((count, longest, self.dim), np.float16)
        mask = np.zeros((count, longest), bool)
        for part, here, inside in spans:
            own = self.fragments[part].shape[1]
            fragments[here, :own] = self.fragments[part].rows(inside)
            mask[here, :own] = self.masks[part].rows(inside)
        return torch.from_numpy(fragments).float(), torch.from_numpy(mask)

    def _decoded(
        self, codec: FragmentCodec, spans: Sequence[Span], count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Records of one type are decoded together; those of captions differ in their number of words."""
        pieces: dict[np.dtype[Any], list[tuple[Rows, npt.NDArray[Any]]]] = {}
        for part, here, inside in spans:
            array = self.fragments[part]
            pieces.setdefault(array.dtype, []).append((here, array.rows(inside)))
        longest = max((dtype["group"].shape[0] for dtype in pieces), default=1)
        fragments = torch.zeros(count, longest, self.dim)
        mask = torch.zeros(count, longest, dtype=torch.bool)
        for found in pieces.values():
            decoded, real = codec.decode(np.concatenate([records for _, records in found]))
            rows = torch.from_numpy(np.concatenate([here for here, _ in found]))
            own = real.shape[1]
            fragments[rows, :own], mask[rows, :own] = decoded, real
        return fragments, mask

    @classmethod
    def cat(cls, parts: Sequence[StoredVectors], dim: int) -> StoredVectors:
        """One after another: all as they were embedded, or all by the same codec."""
        codecs = {id(part.codec): part.codec for part in parts if len(part)}
        if len(codecs) > 1:
            fix = "build the index again from its embeddings"
            raise DataError("an index holds vectors of several codecs", fix=fix)
        return cls(
            tuple(array for part in parts for array in part.pooled),
            tuple(array for part in parts for array in part.fragments),
            tuple(array for part in parts for array in part.masks),
            dim,
            next(iter(codecs.values()), None),
        )


def open_vectors(folder: Path, kind: Kind) -> StoredVectors:
    """The vectors of one kind; nothing but the headers is read."""
    dim = EmbeddingSettings.read(folder).model.dim
    numbers = [partition.number for partition in with_items(folder, kind)]
    emb, fragments, masks, _ = FOLDERS[kind]
    codec = read_codecs(folder).get(kind)

    def arrays(name: str) -> tuple[StoredArray, ...]:
        return tuple(StoredArray(folder / file_name(name, number)) for number in numbers)

    if codec is None:
        found = StoredVectors(arrays(emb), arrays(fragments), arrays(masks), dim)
    else:
        found = StoredVectors(arrays(emb), arrays(CODE_FOLDERS[kind]), (), dim, codec)
    for shapes, fits in _checked(found):
        if not fits:
            raise DataError(
                f"{folder}: vectors of {kind}s have shapes {', '.join(map(str, shapes))}",
                fix="the files do not belong together: embed again",
            )
    return found


def _checked(vectors: StoredVectors) -> Iterator[tuple[list[tuple[int, ...]], bool]]:
    """The shapes of the arrays of every partition, and whether they belong together."""
    for number, (pooled, fragments) in enumerate(zip(vectors.pooled, vectors.fragments, strict=True)):
        fits = pooled.shape == (len(fragments), vectors.dim)
        if vectors.codec is None:
            mask = vectors.masks[number]
            shapes = [pooled.shape, fragments.shape, mask.shape]
            yield shapes, fits and fragments.shape == (*mask.shape, vectors.dim)
        else:
            names = fragments.dtype.names == ("group", "scale", "codes")
            regions = fragments.dtype["group"].shape[0] if names else 0
            fits = fits and fragments.dtype == vectors.codec.record(regions) and pooled.dtype == np.int8
            yield [pooled.shape, fragments.shape], fits
