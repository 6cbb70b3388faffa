"""The index of a folder of images: made, and brought in step with what the folder holds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from pmpguard.data.images.decode import ImageProblem
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import file_name_of, read_json, write_json
from pmpguard.geo.scene_files import SUFFIXES
from pmpguard.geo.scenes import has_coordinates
from pmpguard.geo.tiles import TileSettings, tile_scenes
from pmpguard.models.hub import DEFAULT_FOLDER, DEFAULT_TOLD
from pmpguard.remote import full_path
from pmpguard.safe_text import one_line
from pmpguard.search.embed import embed_source
from pmpguard.search.index.changes import Change, build_index
from pmpguard.search.index.embedding_files import SETTINGS, EmbeddingSettings
from pmpguard.search.index.model_identity import identify_model
from pmpguard.search.index.updates import follow_source
from pmpguard.search.index.version import CURRENT, VERSIONS, IndexVersion
from pmpguard.search.sources import Source, open_source
from pmpguard.search.stores import usual_backend

WORKPLACE = ".pmpguard"  # inside the folder: the index, and what is being made of it
EMBEDDINGS = "embeddings"  # beside the index; kept when killed, to go on with
SUGGESTED_TILE = 256  # pixels a side
MAX_TIFFS_TRIED = 20  # before giving up to find one with coordinates

Tell = Callable[[str], None]


def usual_place(source: Path) -> Path:
    """Where the index of a folder goes: inside it; of a file, or of a pattern of shards: beside it."""
    if source.is_dir():
        return source / WORKPLACE / "index"
    if source.suffix == ".tar" and not source.parent.is_dir():  # shards of several folders
        fix = "give --index FOLDER, and check the path"
        raise ConfigError(f"{source}: no folder to keep its index in", fix=fix)
    return source.parent / f"{WORKPLACE}-{file_name_of(source.name)}" / "index"


def index_of(place: Path, *, model: Path | None, device: str, progress: bool, tell: Tell) -> Path:
    """An index as it is; of a folder of images its index, which is made where there is none yet."""
    if not place.exists() or any((place / name).exists() for name in (CURRENT, VERSIONS)):
        return place
    index = usual_place(place)
    if not (index / CURRENT).is_file():
        bring_up_to_date(place, index, model=model, tile=None, device=device, progress=progress, tell=tell)
    return index


def bring_up_to_date(
    folder: Path,
    index: Path,
    *,
    model: Path | None,
    tile: int | None,
    device: str,
    progress: bool,
    tell: Tell,
    images: Path | None = None,
    format: str | None = None,
    columns: str | None = None,
) -> Change | None:
    """Make the index of a folder, or bring it in step; returns what changed of an index that was there.

    `tell` is told what cannot be read, image by image.
    """
    if not folder.exists() and folder.suffix != ".tar":  # a pattern of shards does not exist itself
        raise DataError(f"{folder}: no such folder", fix="give a folder of images")
    has_index = (index / CURRENT).is_file()
    if not has_index and model is None:
        model = DEFAULT_FOLDER
        tell(DEFAULT_TOLD)
    size = tile_size(index, tile)
    if not has_index:
        _check_place(index.parent)
        remember_tile_size(index, size)
    if size:
        source = open_source(_tiles(folder, _beside(index, "tiles"), size, progress, tell))
    else:
        source = open_source(folder, format=format, images=images, columns=columns)
    embeddings, unreadable = _beside(index, EMBEDDINGS), frozenset[str]()
    if model is not None and has_index:
        with closing(IndexVersion.open_current(index)) as version:
            version.description.model.require(identify_model(model), f"the model in {model}")
    elif model is not None:
        if tile is None and not size:
            _hint_at_tiles(source, tell)
        _clear_unless_continued(embeddings, source, model)
        report = embed_source(source, model, embeddings, device=device, progress=progress)
        unreadable = _named_problems(report.problems, tell)
        if not report.images:
            fix = "the reasons are named above"
            raise DataError(f"{folder}: none of {len(source)} images could be read", fix=fix)
        build_index(index, embeddings, backend=usual_backend(), model=model)
    shutil.rmtree(embeddings, ignore_errors=True)
    # Also after a first build: it may have gone on with vectors of images that are gone or changed since.
    update = follow_source(index, source, unreadable=unreadable, device=device, progress=progress)
    _named_problems(update.problems, tell)
    is_same = update.change == Change(update.change.version, update.change.count)
    return update.change if has_index and not is_same else None


def _beside(index: Path, what: str) -> Path:
    """A folder or file of one index beside it; there may be other indexes there."""
    return index.with_name(f"{index.name}-{what}")


def _clear_unless_continued(embeddings: Path, source: Source, model: Path) -> None:
    """Clear away what a killed run has left of other images or another model."""
    if (embeddings / SETTINGS).is_file():
        left = EmbeddingSettings.read(embeddings)
        if left.root != str(full_path(source.images.root)) or left.model != identify_model(model):
            shutil.rmtree(embeddings)


def _check_place(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        fix = "give --index FOLDER, somewhere you may write"
        raise ConfigError(f"{place}: cannot be written ({error.strerror})", fix=fix) from error


def tile_size(index: Path, asked: int | None) -> int:
    """How many pixels a side the tiles of an index have, 0 when it holds whole images.

    An index keeps the size it was made with; one that is not made yet takes what is asked for.
    """
    record, known = _beside(index, "tiles.json"), 0
    if record.is_file():
        known = int(read_json(record)["size"])
    if asked is None or asked == known:
        return known
    if (index / CURRENT).is_file():
        held = f"tiles of {known} pixels" if known else "whole images"
        fix = "leave out --tile, or make another index with --index FOLDER"
        raise ConfigError(f"{index} was made of {held}, and --tile is {asked}", fix=fix)
    return asked


def remember_tile_size(index: Path, size: int) -> None:
    """Before anything is cut, so that a run without --tile goes on with the same."""
    if size:
        write_json(_beside(index, "tiles.json"), {"size": size})
    else:
        _beside(index, "tiles.json").unlink(missing_ok=True)


def _hint_at_tiles(source: Source, tell: Tell) -> None:
    files = [name for name in source.images.column("image") if name.lower().endswith(SUFFIXES)]
    for name in files[:MAX_TIFFS_TRIED]:
        if has_coordinates(source.images.root / name):
            tell(
                f"{name} is a GeoTIFF with coordinates: --tile {SUGGESTED_TILE} would cut such scenes into "
                "tiles that keep them"
            )
            return


def _named_problems(problems: Sequence[ImageProblem], tell: Tell) -> frozenset[str]:
    """Name images that could not be read; their ids."""
    for problem in problems:
        tell(f"left out {one_line(problem.image)}: {problem.reason}")
    return frozenset(problem.id for problem in problems)


def _tiles(folder: Path, out: Path, size: int, progress: bool, tell: Tell) -> Path:
    report = tile_scenes(folder, out, TileSettings(size), progress, forget_others=True)
    for problem in report.problems:
        tell(f"{one_line(problem.image)}: {problem.reason}")
    return out
