"""`pmpguard index build | add | remove | verify | info`."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pmpguard.errors import ConfigError, DataError
from pmpguard.files import MANIFEST, writer_lock
from pmpguard.search.calibration import load_calibration
from pmpguard.search.embed import SOME_PROBLEMS, embed_source
from pmpguard.search.embedding_files import SETTINGS, EmbeddingSettings, embedded_ids
from pmpguard.search.index_version import IndexVersion
from pmpguard.search.sources import Source, open_source
from pmpguard.search.store import Change, add_to_index, build_index, remove_from_index, verify_index
from pmpguard.search.vector_index import Backend
from pmpguard.training.loop import pick_device

INCOMING = "incoming"  # where `index add` embeds; kept when it is killed, to go on with


@dataclass(frozen=True)
class IndexChange:
    """A new version of an index."""

    index: Path
    change: Change
    problems: int = 0

    @property
    def exit_code(self) -> int:
        return SOME_PROBLEMS if self.problems else 0

    def as_dict(self) -> dict[str, Any]:
        return {"index": str(self.index), **asdict(self.change), "problems": self.problems}

    def as_text(self) -> str:
        parts = [
            f"{number:,} {what}"
            for number, what in (
                (self.change.added, "added"),
                (self.change.removed, "removed"),
                (self.change.known, "already there"),
                (self.problems, "could not be read"),
            )
            if number
        ]
        count = f"{self.change.count:,} pictures"
        return f"{self.index}: version {self.change.version}, {count} ({', '.join(parts)})"


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds."""

    index: Path
    version: str
    backend: str
    model: str
    fingerprint: str
    pictures: int
    captions: int
    removed: int
    segments: int
    calibrated: bool
    columns: dict[str, tuple[str, ...]]

    def as_text(self) -> str:
        shown = [
            f"{name} ({', '.join(values[:5])}{', ...' if len(values) > 5 else ''})" if values else name
            for name, values in self.columns.items()
        ]
        return "\n".join(
            [
                f"{self.index}: version {self.version}, searched by {self.backend}",
                f"{self.pictures:,} pictures, {self.captions:,} captions in {self.segments} segments, "
                f"{self.removed:,} removed pictures still on disk",
                f"model {self.model} ({self.fingerprint})",
                f"probabilities: {'yes' if self.calibrated else 'no, there are too few captions'}",
                f"filters: {'; '.join(shown) or 'no columns'}",
            ]
        )


@dataclass(frozen=True)
class Verified:
    """An index of which every file is as it was written."""

    index: Path
    files: int

    def as_text(self) -> str:
        return f"{self.index}: {self.files} files, all as they were written"


def build(
    index: Path, embeddings: Path | None = None, backend: Backend = "exact", model: Path | None = None
) -> IndexChange:
    """Make an index of one embedding; an index that is there already keeps its old version beside the new.

    Args:
        index: the folder of the index.
        embeddings: a folder that `pmpguard embed` wrote.
        backend: exact (up to some hundred thousand pictures), hnsw or ivf (FAISS), qdrant (QDRANT_URL).
        model: the model directory, where it has moved since embedding.
    """
    if embeddings is None:
        raise ConfigError("no embeddings to index", fix="give --embeddings FOLDER, made by pmpguard embed")
    return IndexChange(index, build_index(index, embeddings, backend=backend, model=model))


def add(
    index: Path,
    source: Path,
    update: bool = False,
    images: Path | None = None,
    format: str | None = None,
    prefix: str = "",
    device: str = "auto",
    progress: bool = True,
) -> IndexChange:
    """Add pictures without building again: a folder `pmpguard embed` wrote, or anything it can embed.

    Args:
        index: the folder of the index.
        source: embeddings, a folder of pictures, a dataset, tar shards, or one picture.
        update: replace pictures that are in the index already, instead of leaving them as they are.
        images: folder of the pictures, where a dataset does not say.
        format: the dataset's format, where it cannot be told from the path.
        prefix: put before every id, to tell two folders with the same file names apart.
        device: where to embed: "auto", "cpu" or "cuda".
        progress: draw a progress bar on stderr.
    """
    if (source / MANIFEST).is_file() and (source / SETTINGS).is_file():
        return IndexChange(index, add_to_index(index, source, update=update))
    version = IndexVersion.open_current(index)
    listed = open_source(source, format=format, images=images, prefix=prefix)
    again = set(listed.ids) & version.images.row_of.keys()
    _require_same_pictures(version, listed, again)
    skipped = frozenset() if update else frozenset(again)
    if len(skipped) == len(listed):
        return IndexChange(index, Change(version.name, len(version.images), known=len(skipped)))
    incoming = index / INCOMING
    _require_continued(incoming, listed)
    report = embed_source(
        listed,
        version.model_folder,
        incoming,
        device=str(pick_device(device)),
        progress=progress,
        skip=skipped,
    )
    version.close()
    if not report.pictures:
        shutil.rmtree(incoming)
        raise DataError(
            f"{source}: none of {len(report.problems)} new pictures could be read",
            fix=f"look at the first: {report.problems[0].reason}",
        )
    change = add_to_index(index, incoming, update=update)
    shutil.rmtree(incoming)
    known = change.known if update else len(skipped)
    return IndexChange(index, replace(change, known=known), len(report.problems))


def _require_same_pictures(version: IndexVersion, listed: Source, ids: set[str]) -> None:
    """Refuse ids that mean other pictures in the index, before anything is embedded."""
    names = version.images.metadata["image"]
    for row, id in enumerate(listed.ids):
        if id in ids:
            known = version.images.row_of[id]
            there = version.root_of(known) / names[known].as_py()
            here = listed.pictures.root.resolve() / str(listed.pictures.arrow["image"][row])
            if there != here:
                raise DataError(
                    f"id {id!r} is {there} in the index and {here} in what is added",
                    fix="give the new pictures a prefix of their own, such as --prefix second/",
                )


def _require_continued(incoming: Path, listed: Source) -> None:
    """Clear away what an interrupted `index add` of something else left."""
    if not (incoming / SETTINGS).is_file():
        return
    with writer_lock(incoming):
        same_root = EmbeddingSettings.read(incoming).root == str(listed.pictures.root.resolve())
        if not same_root or embedded_ids(incoming) - set(listed.ids):
            for path in incoming.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != ".lock":
                    path.unlink()


def remove(index: Path, ids: str) -> IndexChange:
    """Remove pictures, and their captions, without building again.

    Args:
        index: the folder of the index.
        ids: ids separated by commas, or @FILE with one id on each line.
    """
    named = Path(ids[1:]).read_text(encoding="utf-8").splitlines() if ids.startswith("@") else ids.split(",")
    return IndexChange(index, remove_from_index(index, [id.strip() for id in named if id.strip()]))


def verify(index: Path) -> Verified:
    """Read every file of an index and name the first one that is missing or changed.

    Args:
        index: the folder of the index.
    """
    return Verified(index, verify_index(index))


def info(index: Path) -> IndexInfo:
    """Say what an index holds: version, model, counts, and the columns to filter by.

    Args:
        index: the folder of the index.
    """
    version = IndexVersion.open_current(index)
    described = version.description
    return IndexInfo(
        index, version.name, described.backend, described.model.name, described.model.fingerprint,
        len(version.images), len(version.captions), int(version.images.removed.sum()),
        len(described.segments), load_calibration(version.folder) is not None,
        dict(version.images.filters.values),
    )  # fmt: skip
