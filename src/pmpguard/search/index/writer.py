"""The steps of writing an index, each of them whole or not done: segments, versions, tidying up."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pmpguard.data.arrays import save_array
from pmpguard.detection.mixture import MatchMixture
from pmpguard.engine.hashing import hashing_by
from pmpguard.engine.parts import ALONE, Engine
from pmpguard.errors import DataError, PmpguardError
from pmpguard.files import (
    MANIFEST,
    atomic_directory,
    discard,
    read_json,
    read_manifest,
    remove_leftovers,
    sha256_file,
    write_atomic,
    writer_lock,
)
from pmpguard.models.retriever import Retriever
from pmpguard.posix import close, has_locks, lock, open_to_read
from pmpguard.search.calibration import calibrate, load_calibration, save_calibration
from pmpguard.search.index.coded_files import NO_CODECS, Codecs, read_codecs
from pmpguard.search.index.coding import write_coded
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
from pmpguard.search.stores import SERVERS, VectorIndex, drop_saved, new_index

KEPT_VERSIONS = 2
FITTING_QUERIES = 100
Saved = dict[tuple[str, str], dict[str, Any]]  # (store, collection) -> what was saved of it
logger = logging.getLogger(__name__)


@contextmanager
def only_writer(index: Path) -> Iterator[None]:
    """Nobody else writes meanwhile; what killed writers left goes first, old versions afterwards."""
    with writer_lock(index):
        for folder in (index, *(index / name for name in (VERSIONS, SEGMENTS, MODELS))):
            folder.mkdir(exist_ok=True)
        left = _saved(*(index / VERSIONS).glob(".*"))
        for folder in (index, *(index / name for name in (VERSIONS, SEGMENTS, MODELS))):
            remove_leftovers(folder)
        tidy(index)
        _drop_unused(index, left)
        yield
        tidy(index)


def write_segment(
    index: Path, embeddings: Path, engine: Engine = ALONE, codecs: Codecs = NO_CODECS
) -> Segment:
    """The embedding's files under a second name inside the index, checked against their hashes, or coded."""
    recorded = read_manifest(embeddings)
    target = index / SEGMENTS / _next_name(index / SEGMENTS)
    if codecs and not read_codecs(embeddings):
        with atomic_directory(target, hashing_by(engine)) as folder:
            write_coded(embeddings, folder, codecs, engine)
        return segment_of(target)
    with atomic_directory(target, hashing_by(engine)) as folder:
        for file in recorded:
            if not (embeddings / file).is_file():
                raise DataError(f"{embeddings / file}: missing", fix="embed again into a new folder")
            link_or_copy(embeddings / file, folder / file)
    written = read_manifest(target)
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
    stores: list[VectorIndex] = []
    with atomic_directory(folder) as temporary:
        description.write(temporary)
        for kind in KINDS:
            with removed_file(temporary, kind).open("wb") as stream:
                save_array(stream, kinds[kind].removed)
            if description.backend != "exact":  # which needs nothing but the vectors
                stores += _write_vector_index(temporary, description, kind, kinds, before)
        if before is None or before.description.segments != description.segments:
            mixture = _mixture(index, description, kinds)
        else:
            mixture = load_calibration(before.folder)
        if mixture is not None:
            save_calibration(mixture, temporary)
    write_atomic(index / CURRENT, f"{folder.name} {sha256_file(folder / MANIFEST)}\n")
    for store in stores:
        store.settle()
    return folder.name, len(kinds["image"])


def _write_vector_index(
    folder: Path,
    description: VersionDescription,
    kind: Kind,
    kinds: dict[Kind, IndexedKind],
    before: IndexVersion | None,
) -> list[VectorIndex]:
    """The store that has changed, if any."""
    items = kinds[kind]
    first = 0 if before is None else len(before.kinds[kind].removed)
    gone = items.removed.copy()
    if before is not None:
        gone[:first] &= ~before.kinds[kind].removed
        is_same = first == len(items.removed) and not gone.any()
        if is_same or (first == len(items.removed) and description.backend not in SERVERS):
            for path in before.folder.glob(f"{kind}s.*"):
                link_or_copy(path, folder / path.name)
            return []
        grown = before.vector_index(kind)
    else:
        model = description.model
        grown = new_index(description.backend, model.dim, f"{kind}s", model.fingerprint)
        grown.save(folder)  # names what a killed writer leaves on a server
    grown.add(items.ids[first:], items.vectors.pooled_from(first), items.metadata.slice(first))
    if gone.any():
        grown.remove(np.flatnonzero(gone))
    other = kinds["caption" if kind == "image" else "image"]
    asking = other if len(other) else items  # captions ask for images
    if len(items):
        live = np.array(asking.live_rows())
        grown.fit(asking.vectors.pooled_rows(live[:: math.ceil(len(live) / FITTING_QUERIES)]))
    grown.save(folder)
    return [grown]


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
    saved = _saved(*(index / VERSIONS / name for name in names))
    kept = [name for name in names if name in recent or not _discard_unread(index / VERSIONS / name)]
    used = [VersionDescription.read(index / VERSIONS / name) for name in kept]
    segments = {segment.name for version in used for segment in version.segments}
    models = {version.model.fingerprint for version in used}
    for parent, wanted in ((SEGMENTS, segments), (MODELS, models)):
        for path in (index / parent).iterdir():
            if path.name not in wanted and not path.name.startswith("."):
                discard(path)
    _drop_unused(index, saved)


def _saved(*versions: Path) -> Saved:
    """What versions, or what is left of them, say of collections on servers."""
    paths = [
        (store, path) for folder in versions for store in SERVERS for path in folder.glob(f"*.{store}.json")
    ]
    read = [(store, read_json(path)) for store, path in paths]
    return {(store, stored["collection"]): stored for store, stored in read}


def _drop_unused(index: Path, saved: Saved) -> None:
    """Remove collections from their servers that no version uses; one that cannot be reached keeps them."""
    used = _saved(*(index / VERSIONS).glob("[0-9]*")) if saved else {}
    for store in SERVERS:
        gone = [value for key, value in sorted(saved.items()) if key[0] == store and key not in used]
        try:
            drop_saved(store, gone)
        except PmpguardError as error:
            names = ", ".join(value["collection"] for value in gone)
            logger.warning("%s may keep unused data: %s: %s", store, names, error.message)


def _discard_unread(version: Path) -> bool:
    """Remove a version unless somebody reads it; whether it is gone."""
    descriptor = open_to_read(version)
    try:
        if not has_locks() or not lock(descriptor):  # without locks nothing tells whether somebody reads it
            return False
        discard(version)
    finally:
        close(descriptor)
    return True
