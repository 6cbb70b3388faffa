"""The steps of writing an index, each of them whole or not done: segments, versions, tidying up."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pmpguard.detection.mixture import MatchMixture
from pmpguard.errors import DataError
from pmpguard.files import (
    MANIFEST,
    atomic_directory,
    discard,
    read_json,
    remove_leftovers,
    sha256_file,
    write_atomic,
    writer_lock,
)
from pmpguard.models.retriever import Retriever
from pmpguard.search.calibration import calibrate, load_calibration, save_calibration
from pmpguard.search.index.model_identity import link_or_copy
from pmpguard.search.index.version import (
    CURRENT,
    KINDS,
    MODELS,
    SEGMENTS,
    VERSIONS,
    IndexedKind,
    IndexVersion,
    Segment,
    VersionDescription,
    current_version,
    removed_file,
    segment_of,
)
from pmpguard.search.query import Kind
from pmpguard.search.stores import new_index

KEPT_VERSIONS = 2


@contextmanager
def only_writer(index: Path) -> Iterator[None]:
    """Nobody else writes meanwhile; what killed writers left goes first, old versions afterwards."""
    with writer_lock(index):
        for folder in (index, *(index / name for name in (VERSIONS, SEGMENTS, MODELS))):
            folder.mkdir(exist_ok=True)
            remove_leftovers(folder)
        tidy(index)
        yield
        tidy(index)


def write_segment(index: Path, embeddings: Path) -> Segment:
    """The embedding's files under a second name inside the index, checked against their hashes."""
    recorded = read_json(embeddings / MANIFEST)["sha256"]
    target = index / SEGMENTS / _next_name(index / SEGMENTS)
    with atomic_directory(target) as folder:
        for file in recorded:
            if not (embeddings / file).is_file():
                raise DataError(f"{embeddings / file}: missing", fix="embed again into a new folder")
            link_or_copy(embeddings / file, folder / file)
    written = read_json(target / MANIFEST)["sha256"]
    changed = [file for file, digest in recorded.items() if written[file] != digest]
    if changed:
        discard(target)
        raise DataError(
            f"{embeddings / changed[0]}: changed since it was written", fix="embed again into a new folder"
        )
    return segment_of(target)


def write_version(
    index: Path,
    description: VersionDescription,
    kinds: dict[Kind, IndexedKind],
    before: IndexVersion | None = None,
) -> tuple[str, int]:
    """Write all that a version needs, then make it current; its name and number of images.

    What `before` has and the new version shares is taken over: the files of vector indexes grow by the new
    rows, and without new rows they and the calibration stay as they are.
    """
    folder = index / VERSIONS / _next_name(index / VERSIONS)
    with atomic_directory(folder) as temporary:
        description.write(temporary)
        for kind in KINDS:
            with removed_file(temporary, kind).open("wb") as stream:
                np.save(stream, kinds[kind].removed, allow_pickle=False)
            if description.backend != "exact":  # which needs nothing but the vectors
                _write_vector_index(temporary, description, kind, kinds[kind], before)
        if before is None or before.description.segments != description.segments:
            mixture = _mixture(index, description, kinds)
        else:
            mixture = load_calibration(before.folder)
        if mixture is not None:
            save_calibration(mixture, temporary)
    write_atomic(index / CURRENT, f"{folder.name} {sha256_file(folder / MANIFEST)}\n")
    return folder.name, len(kinds["image"])


def _write_vector_index(
    folder: Path,
    description: VersionDescription,
    kind: Kind,
    items: IndexedKind,
    before: IndexVersion | None,
) -> None:
    if before is not None and len(before.kinds[kind].removed) == len(items.removed):
        for path in before.folder.glob(f"{kind}s.*"):
            link_or_copy(path, folder / path.name)
        return
    if before is None:
        grown, first = new_index(description.backend, description.model.dim, f"{kind}s"), 0
    else:
        grown, first = before.vector_index(kind), len(before.kinds[kind].removed)
    grown.add(items.ids[first:], items.vectors.pooled_from(first), items.metadata.slice(first))
    grown.save(folder)


def _mixture(
    index: Path, description: VersionDescription, kinds: dict[Kind, IndexedKind]
) -> MatchMixture | None:
    if not len(kinds["caption"]):
        return None
    model = Retriever.load(index / MODELS / description.model.fingerprint)
    return calibrate(model, kinds["image"], kinds["caption"])


def _next_name(parent: Path) -> str:
    return f"{max((int(path.name) for path in parent.glob('[0-9]*')), default=0) + 1:06d}"


def tidy(index: Path) -> None:
    """Remove versions that are neither current, nor recent, nor being read, and what only they used."""
    if not (index / CURRENT).is_file():
        return  # nothing says what may go
    current, _ = current_version(index)
    names = sorted(path.name for path in (index / VERSIONS).glob("[0-9]*"))
    recent = [name for name in names if name <= current][-KEPT_VERSIONS:]
    collections = {name: _collections(index / VERSIONS / name) for name in names}
    kept = [name for name in names if name in recent or not _discard_unread(index / VERSIONS / name)]
    used = [VersionDescription.read(index / VERSIONS / name) for name in kept]
    segments = {segment.name for version in used for segment in version.segments}
    models = {version.model.fingerprint for version in used}
    for parent, wanted in ((SEGMENTS, segments), (MODELS, models)):
        for path in (index / parent).iterdir():
            if path.name not in wanted and not path.name.startswith("."):
                discard(path)
    gone = set().union(*collections.values()) - set().union(*(collections[name] for name in kept))
    if gone:
        from pmpguard.search.stores.qdrant import drop_collections

        drop_collections(sorted(gone))


def _collections(version: Path) -> set[str]:
    """Names of the server's collections that a version uses."""
    return {read_json(path)["collection"] for path in version.glob("*.qdrant.json")}


def _discard_unread(version: Path) -> bool:
    """Remove a version unless somebody reads it; whether it is gone."""
    descriptor = os.open(version, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        discard(version)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
