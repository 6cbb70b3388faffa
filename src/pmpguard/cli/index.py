"""`pmpguard index build | add | remove | verify | info`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pmpguard.data.images.decode import ImageProblem
from pmpguard.device import pick_device
from pmpguard.errors import ConfigError
from pmpguard.files import MANIFEST
from pmpguard.search.calibration import load_calibration
from pmpguard.search.embed import SOME_PROBLEMS, problem_lines
from pmpguard.search.index.changes import Change, add_to_index, build_index, remove_from_index, verify_index
from pmpguard.search.index.embedding_files import SETTINGS
from pmpguard.search.index.updates import add_source
from pmpguard.search.index.version import IndexVersion
from pmpguard.search.sources import open_source
from pmpguard.search.stores import Backend


@dataclass(frozen=True)
class IndexChange:
    """A new version of an index, and images that could not be read."""

    index: Path
    change: Change
    problems: tuple[ImageProblem, ...] = ()

    @property
    def exit_code(self) -> int:
        return SOME_PROBLEMS if self.problems else 0

    def as_dict(self) -> dict[str, Any]:
        problems = [vars(problem) for problem in self.problems]
        return {"index": str(self.index), **asdict(self.change), "problems": problems}

    def as_text(self) -> str:
        parts = [
            f"{number:,} {what}"
            for number, what in (
                (self.change.added, "added"),
                (self.change.replaced, "replaced"),
                (self.change.removed, "removed"),
                (self.change.known, "already there"),
                (len(self.problems), "could not be read"),
            )
            if number
        ]
        count = f"{self.change.count:,} images"
        line = f"{self.index}: version {self.change.version}, {count} ({', '.join(parts) or 'nothing new'})"
        return "\n".join([line, *problem_lines(self.problems)])


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds."""

    index: Path
    version: str
    backend: str
    model: str
    fingerprint: str
    images: int
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
                f"{self.images:,} images, {self.captions:,} captions; segments: {self.segments}, "
                f"removed images still on disk: {self.removed:,}",
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
        backend: exact (up to some hundred thousand images), hnsw or ivf (FAISS), qdrant (QDRANT_URL).
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
    columns: str | None = None,
    prefix: str = "",
    device: str = "auto",
    progress: bool = True,
) -> IndexChange:
    """Add images without building again: a folder `pmpguard embed` wrote, or anything it can embed.

    Killed or not, the same command goes on where it stopped. The exit code is 3 when some images could not
    be read: they are named, everything else is added.

    Args:
        index: the folder of the index.
        source: embeddings, a folder of images, a dataset, tar shards, or one image.
        update: replace images that are in the index already, instead of leaving them as they are.
        images: folder of the images, where a dataset does not say.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
        prefix: put before every id, to tell two folders with the same file names apart.
        device: where to embed: "auto", "cpu" or "cuda".
        progress: draw a progress bar on stderr.
    """
    if (source / MANIFEST).is_file() and (source / SETTINGS).is_file():
        if prefix:
            fix = "give the prefix to pmpguard embed"
            raise ConfigError(f"{source}: what is embedded has its ids already", fix=fix)
        return IndexChange(index, add_to_index(index, source, update=update))
    listed = open_source(source, format=format, images=images, prefix=prefix, columns=columns)
    added = add_source(index, listed, update=update, device=str(pick_device(device)), progress=progress)
    return IndexChange(index, added.change, added.problems)


def remove(index: Path, ids: str) -> IndexChange:
    """Remove images, and their captions, without building again.

    Args:
        index: the folder of the index.
        ids: ids separated by commas, or @FILE with one id on each line.
    """
    named = _lines_of(Path(ids[1:])) if ids.startswith("@") else ids.split(",")
    return IndexChange(index, remove_from_index(index, [id.strip() for id in named if id.strip()]))


def _lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fix = "after @ comes a text file with one id on each line"
        raise ConfigError(f"{path}: cannot be read ({error})", fix=fix) from error


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
