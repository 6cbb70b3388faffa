"""One version of an index, opened to be read; it never changes, and stays whole while somebody reads it.

::

    IDX/current                     name of the current version and the hash of its manifest
    IDX/versions/000007/            index.json, removed rows, calibration, files of the vector indexes
    IDX/segments/000003/            an embedding: vectors, fragments, metadata; shared by versions
    IDX/models/<fingerprint>/       the model that made all of it

A reader holds a shared lock on its version; a writer that tidies up leaves locked versions alone.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pmpguard.config import from_dict
from pmpguard.data.formats.embeddings import join_tables
from pmpguard.errors import DataError, PmpguardError, damage_named
from pmpguard.files import MANIFEST, sha256_file, verify_manifest, write_json
from pmpguard.posix import close, lock, open_to_read
from pmpguard.search.filters import FilterColumns
from pmpguard.search.index.embedding_files import (
    EmbeddingSettings,
    open_metadata,
    read_format,
)
from pmpguard.search.index.model_identity import ModelIdentity
from pmpguard.search.index.stored_vectors import StoredVectors, open_vectors
from pmpguard.search.query import Kind
from pmpguard.search.stores import Backend, IndexedItems, VectorIndex, load_index

FORMAT, CODED_FORMAT = 1, 2
CURRENT, VERSIONS, SEGMENTS, MODELS = "current", "versions", "segments", "models"
DESCRIPTION = "index.json"
FOLDER_NAME = re.compile(r"[0-9a-f]+")  # of a version, a segment or a model
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Segment:
    """Items that were added together: an embedding inside the index, known by the hash of its manifest."""

    name: str
    manifest: str
    root: str  # folder of the images
    image: int  # rows
    caption: int


@dataclass(frozen=True)
class VersionDescription:
    """What a version consists of."""

    backend: Backend
    model: ModelIdentity
    segments: tuple[Segment, ...]
    codec: Mapping[str, Any] | None = None  # its name, seed and measured agreement; None for float16

    def write(self, folder: Path) -> None:
        described = {"format": CODED_FORMAT if self.codec else FORMAT, **asdict(self)}
        write_json(folder / DESCRIPTION, described)

    @classmethod
    def read(cls, folder: Path) -> VersionDescription:
        fix = "build it again with this version of pmpguard"
        stored = read_format(folder / DESCRIPTION, (FORMAT, CODED_FORMAT), fix)
        del stored["format"]
        description = from_dict(cls, stored, str(folder / DESCRIPTION))
        codec = description.codec
        if codec is not None and not (isinstance(codec, dict) and isinstance(codec.get("name"), str)):
            raise DataError(f"{folder / DESCRIPTION}: its codec has no name", fix=fix)
        for name in (*(segment.name for segment in description.segments), description.model.fingerprint):
            if not FOLDER_NAME.fullmatch(name):
                raise DataError(f"{folder / DESCRIPTION}: {name!r} is no folder of an index", fix=fix)
        return description

    @property
    def codec_name(self) -> str:
        """How the vectors are kept."""
        return "float16" if self.codec is None else str(self.codec["name"])


def current_version(index: Path) -> tuple[str, str]:
    """The name of the current version and the hash of its manifest."""
    path = index / CURRENT
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no index here", fix="make one with pmpguard index build") from error
    named = len(words) == 2 and FOLDER_NAME.fullmatch(words[0]) is not None
    if not named or not (index / VERSIONS / words[0]).is_dir():
        raise DataError(f"{path}: names no version of this index", fix="write the name of one of versions/")
    return words[0], words[1]


def current_fingerprint(index: Path) -> str:
    """The hash of the current version's manifest as it lies there; it changes with the content."""
    return sha256_file(index / VERSIONS / current_version(index)[0] / MANIFEST)


class IndexedKind:
    """The images or the captions of a version. Rows run through all segments; removed rows keep theirs."""

    def __init__(self, vectors: StoredVectors, metadata: pa.Table, removed: npt.NDArray[np.bool_]) -> None:
        self.vectors = vectors
        self.metadata = metadata
        self.removed = removed
        self.filters = FilterColumns(metadata)

    def __len__(self) -> int:
        return int((~self.removed).sum())

    def without(self, removed: npt.NDArray[np.bool_]) -> IndexedKind:
        """The same rows, with these marked as removed instead."""
        return IndexedKind(self.vectors, self.metadata, removed)

    @cached_property
    def ids(self) -> list[str]:
        return self.metadata["id"].to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Rows of the ids that can be found."""
        return {self.ids[row]: row for row in self.live_rows()}

    def column(self, name: str) -> list[Any]:
        """A column of metadata, row by row; None everywhere where there is no such column."""
        known = name in self.metadata.column_names
        return self.metadata[name].to_pylist() if known else [None] * len(self.removed)

    def live_rows(self) -> list[int]:
        return np.flatnonzero(~self.removed).tolist()

    def items(self, model: str) -> IndexedItems:
        vectors = self.vectors
        return IndexedItems(self.ids, self.removed, vectors.dim, vectors.all_pooled, self.metadata, model)


class IndexVersion:
    """A version with everything a search needs, read when first asked for."""

    def __init__(self, index: Path, name: str) -> None:
        self.index = index
        self.name = name
        self.folder = index / VERSIONS / name
        self.fingerprint = sha256_file(self.folder / MANIFEST)
        self._lock = open_to_read(self.folder)
        self._release = weakref.finalize(self, close, self._lock)
        lock(self._lock, shared=True, wait=True)
        verify_manifest(self.folder)
        self.description = VersionDescription.read(self.folder)
        with damage_named(self.folder, "pmpguard index verify names the file; restore it, or build again"):
            self.kinds: dict[Kind, IndexedKind] = {
                kind: open_kind(index, self.description, kind, read_removed(self.folder, kind))
                for kind in KINDS
            }
        self._indexes: dict[Kind, VectorIndex] = {}

    @classmethod
    def open_current(cls, index: Path) -> IndexVersion:
        """The current version; if it is replaced and tidied away meanwhile, its successor."""
        for _ in range(5):
            name, _ = current_version(index)
            try:
                return cls(index, name)
            except (FileNotFoundError, PmpguardError):
                if current_version(index)[0] == name:
                    raise
        return cls(index, current_version(index)[0])

    @property
    def images(self) -> IndexedKind:
        return self.kinds["image"]

    @property
    def captions(self) -> IndexedKind:
        return self.kinds["caption"]

    @property
    def model_folder(self) -> Path:
        return self.index / MODELS / self.description.model.fingerprint

    @property
    def is_lost(self) -> bool:
        """Whether some file was found changed while it was in use."""
        return any(items.vectors.is_lost for items in self.kinds.values())

    def vector_index(self, kind: Kind) -> VectorIndex:
        """The nearest-neighbour index of one kind."""
        if kind not in self._indexes:
            items = self.kinds[kind].items(self.description.model.fingerprint)
            self._indexes[kind] = load_index(self.description.backend, self.folder, items, f"{kind}s")
        return self._indexes[kind]

    def root_of(self, row: int) -> Path:
        """The folder that an image row's image lies below."""
        last = 0
        for segment in self.description.segments:
            last += segment.image
            if row < last:
                return Path(segment.root)
        raise DataError(f"{self.folder}: no row {row}")

    def image_path(self, row: int) -> Path:
        """Where an image row's image lay when it was embedded; `shard.tar#member` inside a shard."""
        return self.root_of(row) / str(self.images.metadata["image"][row])

    def close(self) -> None:
        """Let go of the lock; what is open stays readable for whoever still holds it."""
        self._release()


def open_kind(
    index: Path, description: VersionDescription, kind: Kind, removed: npt.NDArray[np.bool_] | None = None
) -> IndexedKind:
    """The images or captions of all segments; `removed` marks rows, by default none."""
    folders = [index / SEGMENTS / segment.name for segment in description.segments]
    vectors = StoredVectors.cat([open_vectors(folder, kind) for folder in folders], description.model.dim)
    metadata = join_tables([open_metadata(folder, kind) for folder in folders])
    removed = np.zeros(len(vectors), bool) if removed is None else removed
    if not len(vectors) == metadata.num_rows == len(removed):
        raise DataError(
            f"{index}: {len(vectors)} vectors, {metadata.num_rows} rows of metadata and {len(removed)} marks "
            f"of {kind}s",
            fix="run pmpguard index verify to see which file is damaged",
        )
    return IndexedKind(vectors, metadata, removed)


def removed_file(folder: Path, kind: Kind) -> Path:
    return folder / f"removed_{kind}s.npy"


def read_removed(folder: Path, kind: Kind) -> npt.NDArray[np.bool_]:
    path = removed_file(folder, kind)
    with damage_named(path, "restore it, or build the index again"):
        found: npt.NDArray[np.bool_] = np.load(path, allow_pickle=False)
        return found.astype(bool, casting="no")


def segment_of(folder: Path) -> Segment:
    """Describe a segment that has been written."""
    counts = {kind: len(open_vectors(folder, kind)) for kind in KINDS}
    root = EmbeddingSettings.read(folder).root
    return Segment(folder.name, sha256_file(folder / MANIFEST), root, counts["image"], counts["caption"])
