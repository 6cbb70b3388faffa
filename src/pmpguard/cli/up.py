"""`pmpguard up`: from a folder of images to a search page in one step."""

from __future__ import annotations

import sys
from pathlib import Path

from pmpguard.cli.index import IndexChange
from pmpguard.cli.serve import serve_folder, token_or_environment
from pmpguard.device import pick_device
from pmpguard.search.folder_index import bring_up_to_date, usual_place
from pmpguard.serving.run import check_startup


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
    change = bring_up_to_date(
        folder,
        place,
        model=model,
        tile=tile,
        device=str(pick_device(device)),
        progress=progress,
        tell=tell,
    )
    if change is not None:
        tell(IndexChange(place, change).as_text())
    serve_folder(place, host, port, token, None, device)


def tell(text: str) -> None:
    """Say on stderr what goes on before the server starts."""
    print(text, file=sys.stderr, flush=True)
