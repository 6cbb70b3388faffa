"""Keeping an index in step with the images it is made of: what is new, has changed, or is gone."""

from __future__ import annotations

import shutil
from collections.abc import Set
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pmpguard.data.images.decode import ImageProblem
from pmpguard.errors import PmpguardError
from pmpguard.files import writer_lock
from pmpguard.remote import full_path
from pmpguard.search.embed import embed_source
from pmpguard.search.index.changes import Change, add_to_index, known_images, remove_from_index
from pmpguard.search.index.embedding_files import (
    SETTINGS,
    EmbeddingSettings,
    embedded_ids,
    image_column,
)
from pmpguard.search.index.model_identity import ModelIdentity
from pmpguard.search.index.version import IndexVersion
from pmpguard.search.sources import FILE_STAMP, Source

INCOMING = "incoming"  # inside the index, while images are embedded for it; kept when killed, to go on with
EMBEDDINGS = "embeddings"  # inside that


@dataclass(frozen=True)
class Differences:
    """Ids of images that an index lacks, holds as they were once, or holds although they are gone."""

    new: frozenset[str]
    changed: frozenset[str]
    gone: frozenset[str]


@dataclass(frozen=True)
class Update:
    """What became of an index, and the images that could not be read."""

    change: Change
    problems: tuple[ImageProblem, ...] = ()


def differences(version: IndexVersion, source: Source) -> Differences:
    """Compare an index with the images of a source.

    An image has changed when its file has another size, time or place than when it was embedded. Only
    images of the source's own folder can be gone: the index may hold others too.
    """
    root = full_path(source.images.root)
    names, stamps = source.by_id("image"), source.by_id(FILE_STAMP)
    files, images = set(names.values()), version.images
    was_named, was_stamped = images.column("image"), images.column(FILE_STAMP)
    changed, gone = set(), set()
    for id, row in images.row_of.items():
        is_here = version.root_of(row) == root
        if id in names:
            same_place = is_here and was_named[row] == names[id]
            if not same_place or was_stamped[row] not in (None, stamps[id]):
                changed.add(id)
        elif is_here and was_named[row] not in files:
            gone.add(id)
    return Differences(frozenset(names.keys() - images.row_of.keys()), frozenset(changed), frozenset(gone))


def follow_source(
    index: Path, source: Source, *, unreadable: Set[str] = frozenset(), device: str, progress: bool
) -> Update:
    """Add what is new, replace what has changed, remove what is gone or can no longer be read.

    `unreadable` names images that were tried a moment ago.
    """
    with closing(IndexVersion.open_current(index)) as version:
        found = differences(version, source)
    wanted = (found.new | found.changed) - unreadable
    update = add_source(index, source, only=wanted, update=True, device=device, progress=progress)
    gone = found.gone | (found.changed & (unreadable | {problem.id for problem in update.problems}))
    if not gone:
        return update
    change = remove_from_index(index, sorted(gone))
    added, replaced = update.change.added, update.change.replaced
    return Update(replace(change, added=added, replaced=replaced), update.problems)


def add_source(
    index: Path,
    source: Source,
    *,
    only: Set[str] | None = None,
    update: bool = False,
    device: str,
    progress: bool,
) -> Update:
    """Embed the images of a source, or only some, with the index's own model, and add those one can read.

    Images that are in the index already stay as they are, or are replaced when `update` is true.
    """
    incoming = index / INCOMING
    with closing(IndexVersion.open_current(index)) as version:
        named = {id: name for id, name in source.by_id("image").items() if only is None or id in only}
        known = known_images(version, named, full_path(source.images.root), update=update)
        skipped = frozenset(source.ids) - named.keys() | (frozenset() if update else known)
        if len(skipped) == len(source):
            _clear(incoming)
            return Update(Change(version.name, len(version.images), known=len(known)))
        with writer_lock(incoming):  # until they are added: a second run would embed into the same folder
            embeddings, model = incoming / EMBEDDINGS, version.model_folder
            _clear_unless_continued(embeddings, source, version.description.model)
            report = embed_source(source, model, embeddings, device=device, progress=progress, skip=skipped)
            change = add_to_index(index, embeddings, update=update)
            shutil.rmtree(incoming)
    return Update(change if update else replace(change, known=len(known)), report.problems)


def _clear_unless_continued(embeddings: Path, source: Source, model: ModelIdentity) -> None:
    """Clear away what an interrupted run has left of other images, older ones or another model."""
    if not (embeddings / SETTINGS).is_file():
        return
    settings, stamps = EmbeddingSettings.read(embeddings), source.by_id(FILE_STAMP)
    left = image_column(embeddings, FILE_STAMP)
    same_images = (
        settings.root == str(full_path(source.images.root))
        and left.items() <= stamps.items()
        and left.keys() == embedded_ids(embeddings)  # not so if made before stamps were kept
    )
    if not same_images or settings.model != model:
        shutil.rmtree(embeddings)


def _clear(incoming: Path) -> None:
    """Clear away what an interrupted run has left; what another process works on stays."""
    if incoming.is_dir():
        with suppress(PmpguardError), writer_lock(incoming):
            shutil.rmtree(incoming)
