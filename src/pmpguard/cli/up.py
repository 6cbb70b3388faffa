"""`pmpguard up`: from a folder of images to a search page in one step."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pmpguard.cli.index import IndexChange
from pmpguard.cli.serve import serve_folder, token_or_environment
from pmpguard.data.images.decode import ImageProblem
from pmpguard.device import pick_device
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import file_name_of, read_json, write_json
from pmpguard.geo.scenes import SUFFIXES, has_coordinates
from pmpguard.geo.tiles import TileSettings, tile_scenes
from pmpguard.search.embed import embed_source
from pmpguard.search.index.changes import Change, build_index
from pmpguard.search.index.embedding_files import SETTINGS, EmbeddingSettings
from pmpguard.search.index.model_identity import identify_model
from pmpguard.search.index.updates import follow_source
from pmpguard.search.index.version import CURRENT, IndexVersion
from pmpguard.search.sources import Source, open_source
from pmpguard.serving.run import check_startup

WORKPLACE = ".pmpguard"  # inside the folder: the index, and what is being made of it
EMBEDDINGS = "embeddings"  # beside the index; kept when killed, to go on with
USUAL_TILE = 256  # pixels, to suggest
LOOKED_AT = 20  # TIFFs, before giving up to find one with coordinates


def up(
    folder: Path,
    model: Path | None = None,
    index: Path | None = None,
    tile: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    device: str = "auto",
    progress: bool = True,
) -> None:
    """Embed a folder of images, index it and serve the search page, whose address is printed at the end.

    Started again it embeds what has been added or changed since, and forgets what has been deleted. Killed
    half-way it goes on where it stopped.

    Args:
        folder: images, a dataset in any known format, tar shards, or one image.
        model: a model directory; not needed once there is an index, which keeps its own copy.
        index: the folder of the index; by default FOLDER/.pmpguard/index, beside a file .pmpguard-FILE/index.
        tile: cut GeoTIFF scenes into tiles of this many pixels a side first; 0 takes images as they are. By
            default as the index was made, at first 0.
        host: the address to listen on; only this machine can reach the usual one.
        port: the port to listen on, 0 for any free one.
        token: clients must send it as `Authorization: Bearer TOKEN`; the page's address carries it.
        device: "auto", "cpu" or "cuda".
        progress: draw a progress bar on stderr.
    """
    check_startup(host, port, token_or_environment(token))
    place = index or usual_place(folder)
    bring_up_to_date(
        folder, place, model=model, tile=tile, device=str(pick_device(device)), progress=progress
    )
    serve_folder(place, host, port, token, None, device)


def usual_place(source: Path) -> Path:
    """Where the index of a folder goes: inside it; of a file, or of a pattern of shards: beside it."""
    if source.is_dir():
        return source / WORKPLACE / "index"
    if source.suffix == ".tar" and not source.parent.is_dir():  # shards of several folders
        fix = "give --index FOLDER, and check the path"
        raise ConfigError(f"{source}: no folder to keep its index in", fix=fix)
    return source.parent / f"{WORKPLACE}-{file_name_of(source.name)}" / "index"


def bring_up_to_date(
    folder: Path, index: Path, *, model: Path | None, tile: int | None, device: str, progress: bool
) -> None:
    """Make the index of a folder, or bring it in step; what cannot be read is named on stderr."""
    if not folder.exists() and folder.suffix != ".tar":  # a pattern of shards does not exist itself
        raise DataError(f"{folder}: no such folder", fix="give a folder of images")
    has_index = (index / CURRENT).is_file()
    if not has_index and model is None:
        fix = "give --model DIR, such as the one `pmpguard train` or `pmpguard demo` wrote"
        raise ConfigError(f"{folder} has no index yet, and to make one needs a model", fix=fix)
    size = tile_size(index, tile)
    if not has_index:
        _check_place(index.parent)
        remember_tile_size(index, size)
    source = open_source(_tiles(folder, _beside(index, "tiles"), size, progress) if size else folder)
    embeddings, unreadable = _beside(index, EMBEDDINGS), frozenset[str]()
    if model is not None and has_index:
        with closing(IndexVersion.open_current(index)) as version:
            version.description.model.require(identify_model(model), f"the model in {model}")
    elif model is not None:
        if tile is None and not size:
            _hint_at_tiles(source)
        _clear_unless_continued(embeddings, source, model)
        report = embed_source(source, model, embeddings, device=device, progress=progress)
        unreadable = _named_problems(report.problems)
        if not report.images:
            fix = "the reasons are named above"
            raise DataError(f"{folder}: none of {len(source)} images could be read", fix=fix)
        build_index(index, embeddings, model=model)
    shutil.rmtree(embeddings, ignore_errors=True)
    # Also after a first build: it may have gone on with vectors of images that are gone or changed since.
    update = follow_source(index, source, unreadable=unreadable, device=device, progress=progress)
    _named_problems(update.problems)
    if has_index and update.change != Change(update.change.version, update.change.count):
        print(IndexChange(index, update.change).as_text(), file=sys.stderr)


def _beside(index: Path, what: str) -> Path:
    """A folder or file of one index beside it; there may be other indexes there."""
    return index.with_name(f"{index.name}-{what}")


def _clear_unless_continued(embeddings: Path, source: Source, model: Path) -> None:
    """Clear away what a killed run has left of other images or another model."""
    if (embeddings / SETTINGS).is_file():
        left = EmbeddingSettings.read(embeddings)
        if left.root != str(source.images.root.resolve()) or left.model != identify_model(model):
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


def _hint_at_tiles(source: Source) -> None:
    files = [name for name in source.images.column("image") if name.lower().endswith(SUFFIXES)]
    for name in files[:LOOKED_AT]:
        if has_coordinates(source.images.root / name):
            print(
                f"{name} is a GeoTIFF with coordinates: --tile {USUAL_TILE} would cut such scenes into tiles "
                "that keep them",
                file=sys.stderr,
            )
            return


def _named_problems(problems: Sequence[ImageProblem]) -> frozenset[str]:
    """Name images that could not be read; their ids."""
    for problem in problems:
        print(f"left out {problem.image}: {problem.reason}", file=sys.stderr)
    return frozenset(problem.id for problem in problems)


def _tiles(folder: Path, out: Path, size: int, progress: bool) -> Path:
    report = tile_scenes(folder, out, TileSettings(size), progress, forget_others=True)
    for problem in report.problems:
        print(f"{problem.image}: {problem.reason}", file=sys.stderr)
    return out
