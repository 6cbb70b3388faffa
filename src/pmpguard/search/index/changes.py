"""Changing an index: every change is a new version next to the old one, made current in one step.

Whatever is killed, and whenever, the previous version stays current and whole; what was left half-written is
removed by the next writer. There is one writer at a time, and readers need not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pmpguard.data.shards import split_reference
from pmpguard.engine.parts import ALONE, Engine
from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.files import MANIFEST, read_manifest, sha256_file, verify_manifest
from pmpguard.models.retriever import Retriever
from pmpguard.search.index.coded_files import read_codecs
from pmpguard.search.index.embedding_files import EmbeddingSettings, image_column
from pmpguard.search.index.model_identity import identify_model, keep_model
from pmpguard.search.index.stored_vectors import open_vectors
from pmpguard.search.index.tuning import AGREEMENT, AUTO, UNCODED, CodecChoice, choose_codec
from pmpguard.search.index.version import (
    CURRENT,
    KINDS,
    MODELS,
    SEGMENTS,
    VERSIONS,
    IndexedKind,
    IndexVersion,
    VersionDescription,
    current_version,
    open_kind,
)
from pmpguard.search.index.writer import only_writer, write_segment, write_version
from pmpguard.search.query import Kind
from pmpguard.search.stores import Backend


@dataclass(frozen=True)
class Change:
    """The new version, its number of images, and how many of them came, went and were there already."""

    version: str
    count: int
    added: int = 0
    replaced: int = 0
    removed: int = 0
    known: int = 0  # and left as they are


def build_index(
    index: Path,
    embeddings: Path,
    *,
    backend: Backend = "exact",
    model: Path | None = None,
    engine: Engine = ALONE,
    codec: str = UNCODED,
    agreement: float = AGREEMENT,
    progress: bool = False,
) -> Change:
    """A version that holds exactly one embedding. An index that is there already gets it as its next one.

    `codec` names one, or is "auto": the smallest that reaches the agreement. The engine's workers share the
    hashing of the embedding's files, which reads every byte of them.
    """
    settings = finished_embedding(embeddings)
    source = model or Path(settings.model_path)
    settings.model.require(identify_model(source), f"the model in {source}")
    choice, codecs = None, read_codecs(embeddings)
    if codecs and codec not in (UNCODED, codecs["image"].spec.name):
        fix = f"leave out --codec {codec}, or build from embeddings that are not"
        raise ConfigError(f"{embeddings} is coded by {codecs['image'].spec.name} already", fix=fix)
    if codec != UNCODED and not codecs:
        names = () if codec == AUTO else (codec,)
        vectors = {kind: open_vectors(embeddings, kind) for kind in KINDS}
        rows = {kind: np.arange(len(stored)) for kind, stored in vectors.items()}
        retriever = Retriever.load(source)
        choice, codecs = choose_codec(
            retriever, vectors, rows, names=names, target=agreement, progress=progress
        )
    with only_writer(index):
        kept = index / MODELS / settings.model.fingerprint
        if not kept.is_dir():
            keep_model(source, kept)
        segment = write_segment(index, embeddings, engine, codecs)
        described = {"name": codecs["image"].spec.name} if codecs else None
        if codecs and choice:
            described = choice.described()
        description = VersionDescription(backend, settings.model, (segment,), described)
        opened = {kind: open_kind(index, description, kind) for kind in KINDS}
        kinds = {kind: items.without(_repeated(items)) for kind, items in opened.items()}
        version, count = write_version(index, description, kinds)
        return Change(version, count, added=count)


def add_to_index(index: Path, embeddings: Path, *, update: bool = False) -> Change:
    """A version with the images of one more embedding.

    Images that are in the index already stay as they are, or are replaced when `update` is true; when that
    leaves nothing to add, the version stays the same. An id that means another image there is refused.
    """
    settings = finished_embedding(embeddings)
    with only_writer(index):
        before = IndexVersion.open_current(index)
        before.description.model.require(settings.model, str(embeddings))
        named = image_column(embeddings, "image")
        known = known_images(before, named, Path(settings.root), update=update)
        if not named or (not update and len(known) == len(named)):
            before.close()
            return Change(before.name, len(before.images), known=len(known))
        codecs = read_codecs(index / SEGMENTS / before.description.segments[-1].name)
        segment = write_segment(index, embeddings, codecs=codecs)
        description = replace(before.description, segments=(*before.description.segments, segment))
        opened = {kind: open_kind(index, description, kind) for kind in KINDS}
        kinds: dict[Kind, IndexedKind] = {}
        for kind, items in opened.items():
            first = len(before.kinds[kind].removed)
            is_new = np.arange(len(items.removed)) >= first
            removed = _belongs(items, known) & (~is_new if update else is_new) | _repeated(items, first)
            removed[:first] |= before.kinds[kind].removed
            kinds[kind] = items.without(removed)
        version, count = write_version(index, description, kinds, before)
        coming = int((~kinds["image"].removed[len(before.images.removed) :]).sum())
        before.close()
        if update:
            return Change(version, count, added=coming - len(known), replaced=len(known))
        return Change(version, count, added=coming, known=len(known))


def tune_index(
    index: Path,
    *,
    names: Sequence[str] = (),
    agreement: float = AGREEMENT,
    write: bool = True,
    progress: bool = False,
) -> tuple[CodecChoice, Change | None]:
    """Measure codecs on an index, and write a version of it with the smallest that reaches the agreement.

    The version before, with all its bytes, stays until the next change.
    """
    with only_writer(index), closing(IndexVersion.open_current(index)) as before:
        vectors = {kind: items.vectors for kind, items in before.kinds.items()}
        rows = {kind: np.array(items.live_rows(), np.int64) for kind, items in before.kinds.items()}
        model = Retriever.load(before.model_folder)
        choice, codecs = choose_codec(model, vectors, rows, names=names, target=agreement, progress=progress)
        if not codecs or not write:
            return choice, None
        folders = [index / SEGMENTS / segment.name for segment in before.description.segments]
        segments = tuple(write_segment(index, folder, codecs=codecs) for folder in folders)
        description = replace(before.description, segments=segments, codec=choice.described())
        kinds = {
            kind: open_kind(index, description, kind, items.removed) for kind, items in before.kinds.items()
        }
        version, count = write_version(index, description, kinds, before)
        return choice, Change(version, count)


def remove_from_index(index: Path, ids: Sequence[str]) -> Change:
    """A version without some images and their captions."""
    with only_writer(index):
        before = IndexVersion.open_current(index)
        unknown = [id for id in ids if id not in before.images.row_of]
        if unknown or not ids:
            raise DataError(
                f"{index}: no image {unknown[0]!r} in this index" if ids else "no ids given",
                fix="nothing was removed; check the ids",
            )
        kinds = {
            kind: items.without(items.removed | _belongs(items, set(ids)))
            for kind, items in before.kinds.items()
        }
        version, count = write_version(index, before.description, kinds, before)
        lost = len(before.images) - count
        before.close()
        return Change(version, count, removed=lost)


def known_images(version: IndexVersion, named: Mapping[str, str], root: Path, *, update: bool) -> set[str]:
    """Which ids are in the index already; `named` maps ids to the names of their images below `root`.

    An id that means another image there is an error. When `update` is true, an image may take the place of
    one of the same folder, or of one whose file is gone.
    """
    rows = {id: version.images.row_of[id] for id in named if id in version.images.row_of}
    for id, row in rows.items():
        there, here = version.image_path(row), root / named[id]
        replaces = update and (
            version.root_of(row) == root or not Path(split_reference(str(there))[0]).exists()
        )
        if there != here and not replaces:
            prefix = "give the new images a prefix of their own, such as --prefix second/"
            raise DataError(
                f"id {id!r} is {there} in the index and {here} in what is added",
                fix=prefix if update else f"{prefix}; if they are the same and have moved, --update",
            )
    return set(rows)


def finished_embedding(folder: Path) -> EmbeddingSettings:
    """The settings of an embedding that is complete."""
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder}: not a finished embedding", fix="run pmpguard embed to make or finish it")
    return EmbeddingSettings.read(folder)


def verify_index(index: Path) -> int:
    """Compare every byte of the current version with what was recorded; how many files were read.

    The error names the file that is missing or changed.
    """
    name, digest = current_version(index)
    folder = index / VERSIONS / name
    _require_manifest(folder, digest, f"the one that {index / CURRENT} names")
    verify_manifest(folder)
    description = VersionDescription.read(folder)
    folders = [folder, index / MODELS / description.model.fingerprint]
    for segment in description.segments:
        folders.append(index / SEGMENTS / segment.name)
        _require_manifest(folders[-1], segment.manifest, "what it was")
        verify_manifest(folders[-1])
    verify_manifest(folders[1])
    description.model.require(identify_model(folders[1]), f"the model in {folders[1]}")
    return sum(len(read_manifest(path)) + 1 for path in folders)


def _require_manifest(folder: Path, digest: str, expected: str) -> None:
    path = folder / MANIFEST
    if not path.is_file() or sha256_file(path) != digest:
        raise PmpguardError(f"{path}: missing, or not {expected}", fix="restore it, or build the index again")


def _repeated(items: IndexedKind, first: int = 0) -> npt.NDArray[np.bool_]:
    """(N,) true at rows from `first` on whose id comes again later: the last one counts."""
    last = {id: row for row, id in enumerate(items.ids)}
    rows = np.arange(len(items.ids))
    return (rows >= first) & (rows < np.array([last[id] for id in items.ids], np.int64))


def _belongs(items: IndexedKind, images: set[str]) -> npt.NDArray[np.bool_]:
    """(N,) true at these images, or at their captions."""
    column = "image_id" if "image_id" in items.metadata.column_names else "id"
    return np.array([id in images for id in items.metadata[column].to_pylist()], bool)
