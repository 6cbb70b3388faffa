"""`pmpguard up`: from a folder of pictures to a search page in one step."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pmpguard.commands.index import IndexChange
from pmpguard.commands.serve import serve_folder
from pmpguard.errors import ConfigError, DataError
from pmpguard.search.embed import embed_source
from pmpguard.search.embedding_files import PictureProblem
from pmpguard.search.geo_tiles import TileSettings, tile_scenes
from pmpguard.search.index_version import CURRENT, IndexVersion
from pmpguard.search.model_identity import identify_model
from pmpguard.search.sources import open_source
from pmpguard.search.store import Change, build_index
from pmpguard.search.updating import follow_source
from pmpguard.training.loop import pick_device

WORKPLACE = ".pmpguard"  # inside the folder: the index, and what is being made of it
EMBEDDINGS = "embeddings"  # beside the index; kept when killed, to go on with


def up(
    folder: Path,
    model: Path | None = None,
    index: Path | None = None,
    tile: int = 0,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    device: str = "auto",
    progress: bool = True,
) -> None:
    """Embed a folder of pictures, index it and serve the search page, whose address is printed at the end.

    Started again it embeds what has been added or changed since, and forgets what has been deleted. Killed
    half-way it goes on where it stopped.

    Args:
        folder: pictures, a dataset in any known format, or tar shards.
        model: a model directory; not needed once there is an index, which keeps its own copy.
        index: the folder of the index; by default FOLDER/.pmpguard/index.
        tile: cut GeoTIFF scenes into tiles of this many pixels a side first; 0 takes pictures as they are.
        host: the address to listen on; only this machine can reach the usual one.
        port: the port to listen on, 0 for any free one.
        token: clients must send it as `Authorization: Bearer TOKEN`; the page's address carries it.
        device: "auto", "cpu" or "cuda".
        progress: draw a progress bar on stderr.
    """
    place = index or folder / WORKPLACE / "index"
    bring_up_to_date(
        folder, place, model=model, tile=tile, device=str(pick_device(device)), progress=progress
    )
    serve_folder(place, host, port, token, None, device)


def bring_up_to_date(
    folder: Path, index: Path, *, model: Path | None, tile: int, device: str, progress: bool
) -> None:
    """Make the index of a folder, or bring it in step; what cannot be read is named on stderr."""
    if not folder.exists():
        raise DataError(f"{folder}: no such folder", fix="give a folder of pictures")
    has_index = (index / CURRENT).is_file()
    if not has_index and model is None:
        fix = "give --model DIR, such as the one `pmpguard train` or `pmpguard demo` wrote"
        raise ConfigError(f"{folder} has no index yet, and to make one needs a model", fix=fix)
    source = open_source(_tiles(folder, index.parent / "tiles", tile, progress) if tile else folder)
    embeddings, unreadable = index.parent / EMBEDDINGS, frozenset[str]()
    if model is not None and has_index:
        with closing(IndexVersion.open_current(index)) as version:
            version.description.model.require(identify_model(model), f"the model in {model}")
    elif model is not None:
        report = embed_source(source, model, embeddings, device=device, progress=progress)
        unreadable = _named_problems(report.problems)
        if not report.pictures:
            fix = "the reasons are named above"
            raise DataError(f"{folder}: none of {len(source)} pictures could be read", fix=fix)
        build_index(index, embeddings, model=model)
    shutil.rmtree(embeddings, ignore_errors=True)
    # Also after a first build: it may have gone on with vectors of pictures that are gone or changed since.
    update = follow_source(index, source, unreadable=unreadable, device=device, progress=progress)
    _named_problems(update.problems)
    if has_index and update.change != Change(update.change.version, update.change.count):
        print(IndexChange(index, update.change).as_text(), file=sys.stderr)


def _named_problems(problems: Sequence[PictureProblem]) -> frozenset[str]:
    """Name pictures that could not be read; their ids."""
    for problem in problems:
        print(f"left out {problem.image}: {problem.reason}", file=sys.stderr)
    return frozenset(problem.id for problem in problems)


def _tiles(folder: Path, out: Path, size: int, progress: bool) -> Path:
    report = tile_scenes(folder, out, TileSettings(size), progress, forget_others=True)
    for problem in report.problems:
        print(f"{problem.scene}: {problem.reason}", file=sys.stderr)
    return out
