"""`pmpguard index build | add | remove | tune | verify | info`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pmpguard.cli.store import take_store
from pmpguard.data.formats.embeddings import is_clip_folder
from pmpguard.data.images.decode import ImageProblem
from pmpguard.device import pick_device
from pmpguard.engine.parts import Engine, EngineName
from pmpguard.errors import ConfigError
from pmpguard.files import MANIFEST
from pmpguard.remote import local_folder_of
from pmpguard.search.calibration import load_calibration
from pmpguard.search.embed import SOME_PROBLEMS, problem_lines
from pmpguard.search.export import ExportReport, export_embeddings
from pmpguard.search.filters import ValueRange
from pmpguard.search.index.changes import (
    Change,
    add_to_index,
    build_index,
    remove_from_index,
    tune_index,
    verify_index,
)
from pmpguard.search.index.embedding_files import SETTINGS
from pmpguard.search.index.tuning import AGREEMENT, UNCODED, CodecChoice
from pmpguard.search.index.updates import add_source
from pmpguard.search.index.version import IndexVersion
from pmpguard.search.sources import open_source
from pmpguard.search.stores import Backend, usual_backend
from pmpguard.search.stores.postgres_server import use_address


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
    ranges: dict[str, ValueRange]
    codec: dict[str, Any]
    image_bytes: int
    caption_bytes: int

    def as_text(self) -> str:
        shown = [
            f"{name} ({', '.join(values[:5])}{', ...' if len(values) > 5 else ''})" if values else name
            for name, values in self.columns.items()
        ]
        shown += [f"{name} ({found.least} to {found.greatest})" for name, found in self.ranges.items()]
        return "\n".join(
            [
                f"{self.index}: version {self.version}, searched by {self.backend}",
                f"{self.images:,} images, {self.captions:,} captions; segments: {self.segments}, "
                f"removed images still on disk: {self.removed:,}",
                f"vectors: {self._codec()}, {self.image_bytes:,} bytes an image"
                + (f", {self.caption_bytes:,} a caption" if self.captions else ""),
                f"model {self.model} ({self.fingerprint})",
                f"probabilities: {'yes' if self.calibrated else 'no, there are too few captions'}",
                f"filters: {'; '.join(shown) or 'no columns'}",
            ]
        )

    def _codec(self) -> str:
        if "agreement" not in self.codec:
            return str(self.codec["name"])
        return f"{self.codec['name']} (agreement with float16 {self.codec['agreement']:.3f})"


@dataclass(frozen=True)
class Tuned:
    """What codecs cost and how far they agree with float16, and the version with the chosen one."""

    index: Path
    choice: CodecChoice
    change: Change | None

    def as_dict(self) -> dict[str, Any]:
        version = None if self.change is None else self.change.version
        return {"index": str(self.index), **asdict(self.choice), "version": version}

    def as_text(self) -> str:
        if self.change is not None:
            last = f"{self.index}: version {self.change.version}, vectors as {self.choice.codec}"
        else:
            last = f"{self.index}: nothing written, {self.choice.codec} would do"
        return f"{self.choice.as_text()}\n{last}"


@dataclass(frozen=True)
class Verified:
    """An index of which every file is as it was written."""

    index: Path
    files: int

    def as_text(self) -> str:
        return f"{self.index}: {self.files} files, all as they were written"


def build(
    index: Path,
    embeddings: Path | None = None,
    backend: Backend | None = None,
    model: Path | None = None,
    store: str | None = None,
    codec: str = UNCODED,
    agreement: float = AGREEMENT,
    progress: bool = True,
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
) -> IndexChange:
    """Make an index of one embedding; an index that is there already keeps its old version beside the new.

    Args:
        index: the folder of the index.
        embeddings: a folder that `pmpguard embed` wrote.
        backend: exact (up to some hundred thousand images), hnsw or ivf (FAISS), postgres (--store), qdrant
            (QDRANT_URL). By default exact, or postgres where a database is named.
        model: the model directory, where it has moved since embedding.
        store: keep and search vectors in the PostgreSQL database postgresql://USER@HOST/DATABASE; by default
            the one in PMPGUARD_STORE, where a password is not shown to other users.
        codec: how vectors are kept: float16 as they were embedded, auto for the smallest codec that reaches
            --agreement, or one by its name, such as int8, 4bit, 4bit-128d, 4bit-128d-16r.
        agreement: with --codec auto, the share of float16's ten best images that must stay among the ten
            best.
        progress: draw a progress bar on stderr.
        workers: processes of this machine that check the embedding's files.
        engine: local, or ray: the tasks of a Ray cluster check them, and INDEX is a folder all nodes see.
        address: HOST:PORT of the Ray cluster; without one a cluster of --workers is started here.
    """
    if embeddings is None:
        raise ConfigError("no embeddings to index", fix="give --embeddings FOLDER, made by pmpguard embed")
    if store is not None:
        if backend not in (None, "postgres"):
            raise ConfigError(
                f"--store is for --backend postgres, not {backend}", fix="leave out one of them"
            )
        use_address(store)
    backend, embeddings = backend or usual_backend(), local_folder_of(embeddings)
    shared = Engine(workers, engine, address, index / ".parts")
    change = build_index(
        index,
        embeddings,
        backend=backend,
        model=model,
        engine=shared,
        codec=codec,
        agreement=agreement,
        progress=progress,
    )
    return IndexChange(index, change)


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
    store: str | None = None,
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
        prefix: a text before every id, to tell two folders with the same file names apart.
        device: where to embed: "auto", "cpu" or "cuda".
        progress: draw a progress bar on stderr.
        store: the PostgreSQL database of the index, as postgresql://USER@HOST/DATABASE; by default the one in
            PMPGUARD_STORE, or where the index was built.
    """
    take_store(store, index)
    if is_clip_folder(source):
        source = local_folder_of(source)
    if (source / MANIFEST).is_file() and (source / SETTINGS).is_file():
        if prefix:
            fix = "give the prefix to pmpguard embed"
            raise ConfigError(f"{source}: what is embedded has its ids already", fix=fix)
        return IndexChange(index, add_to_index(index, source, update=update))
    listed = open_source(source, format=format, images=images, prefix=prefix, columns=columns)
    added = add_source(index, listed, update=update, device=str(pick_device(device)), progress=progress)
    return IndexChange(index, added.change, added.problems)


def remove(index: Path, ids: str, store: str | None = None) -> IndexChange:
    """Remove images, and their captions, without building again.

    Args:
        index: the folder of the index.
        ids: ids separated by commas, or @FILE with one id on each line.
        store: the PostgreSQL database of the index, as postgresql://USER@HOST/DATABASE; by default the one in
            PMPGUARD_STORE, or where the index was built.
    """
    take_store(store, index)
    named = _lines_of(Path(ids[1:])) if ids.startswith("@") else ids.split(",")
    return IndexChange(index, remove_from_index(index, [id.strip() for id in named if id.strip()]))


def _lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fix = "after @ comes a text file with one id on each line"
        raise ConfigError(f"{path}: cannot be read ({error})", fix=fix) from error


def tune(
    index: Path,
    agreement: float = AGREEMENT,
    codec: str | None = None,
    write: bool = True,
    progress: bool = True,
    store: str | None = None,
) -> Tuned:
    """Measure codecs on an index's own captions, and store its vectors by the smallest that agrees.

    Agreement is the share of the ten best images by float16 that are among the ten best by the codec. Half of
    the queries choose (by their lower confidence bound, "at least"), the other half measure. Images that are
    added later are coded the same way.

    Args:
        index: the folder of the index, whose vectors are still float16.
        agreement: what the codec must reach.
        codec: names to measure instead of the ladder, separated by commas; one alone is used whatever comes
            out: such as int8, 4bit, 4bit-128d, 4bit-128d-16r (dimensions, regions).
        write: make a version with the chosen codec; the one before stays until the next change.
        progress: draw a progress bar on stderr.
        store: the PostgreSQL database of the index, as postgresql://USER@HOST/DATABASE; by default the one in
            PMPGUARD_STORE, or where the index was built.
    """
    take_store(store, index)
    names = [] if codec is None else [name.strip() for name in codec.split(",")]
    choice, change = tune_index(index, names=names, agreement=agreement, write=write, progress=progress)
    return Tuned(index, choice, change)


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
        dict(version.images.filters.values), dict(version.images.filters.ranges),
        {"name": described.codec_name, **(described.codec or {})},
        round(version.images.vectors.item_bytes), round(version.captions.vectors.item_bytes),
    )  # fmt: skip


def export(source: Path, out: Path | None = None) -> ExportReport:
    """Write the images' vectors as GeoParquet 1.1, with a STAC collection that says what they are.

    Args:
        source: the folder of an index, or of embeddings that `pmpguard embed` wrote.
        out: the folder to write; an earlier export in it is replaced.
    """
    if out is None:
        raise ConfigError("where does the export go?", fix="give --out FOLDER")
    return export_embeddings(source, out)
