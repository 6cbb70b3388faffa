"""`pmpguard up`: from a folder of pictures to a search page in one step."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pmpguard.commands.serve import serve_folder
from pmpguard.errors import ConfigError, DataError
from pmpguard.search.embed import EmbeddingReport, embed_source
from pmpguard.search.geo_tiles import TileSettings, tile_scenes
from pmpguard.search.index_version import CURRENT, IndexVersion
from pmpguard.search.model_identity import identify_model
from pmpguard.search.sources import Source, open_source
from pmpguard.search.store import add_to_index, build_index
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

    Started again it embeds only what has been added since. Killed half-way it goes on where it stopped.

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
    """Make the index of a folder, or add to it what is new; what cannot be read is named on stderr."""
    if not folder.exists():
        raise DataError(f"{folder}: no such folder", fix="give a folder of pictures")
    has_index = (index / CURRENT).is_file()
    if not has_index and model is None:
        fix = "give --model DIR, such as the one `pmpguard train` or `pmpguard demo` wrote"
        raise ConfigError(f"{folder} has no index yet, and to make one needs a model", fix=fix)
    source = open_source(_tiles(folder, index.parent / "tiles", tile, progress) if tile else folder)
    embeddings = index.parent / EMBEDDINGS
    if has_index:
        _add(source, index, embeddings, model, device, progress)
    elif model is not None:
        report = embed_source(source, model, embeddings, device=device, progress=progress)
        _name_problems(report)
        if not report.pictures:
            fix = "see `pmpguard data check`"
            raise DataError(f"{folder}: none of {len(source)} pictures could be read", fix=fix)
        build_index(index, embeddings, model=model)
        shutil.rmtree(embeddings)


def _add(
    source: Source, index: Path, embeddings: Path, model: Path | None, device: str, progress: bool
) -> None:
    """Embed what the index does not hold yet and add it; pictures that stay unreadable change nothing."""
    version = IndexVersion.open_current(index)
    if model is not None:
        version.description.model.require(identify_model(model), f"the model in {model}")
    known = frozenset(version.images.row_of)
    model_folder = version.model_folder
    version.close()
    if known.issuperset(source.ids):
        shutil.rmtree(embeddings, ignore_errors=True)  # of a first start that was killed at its very end
        return
    report = embed_source(source, model_folder, embeddings, device=device, progress=progress, skip=known)
    _name_problems(report)
    if report.pictures:
        add_to_index(index, embeddings)
    shutil.rmtree(embeddings)


def _tiles(folder: Path, out: Path, size: int, progress: bool) -> Path:
    report = tile_scenes(folder, out, TileSettings(size), progress)
    for problem in report.problems:
        print(f"{problem.scene}: {problem.reason}", file=sys.stderr)
    return out


def _name_problems(report: EmbeddingReport) -> None:
    for problem in report.problems:
        print(f"left out {problem.image}: {problem.reason}", file=sys.stderr)
