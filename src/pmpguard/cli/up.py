"""`pmpguard up`: from a folder of images to a search page in one step."""

from __future__ import annotations

from pathlib import Path

from pmpguard.cli.index import IndexChange
from pmpguard.cli.serve import serve_folder, token_or_environment
from pmpguard.cli.store import take_store
from pmpguard.device import pick_device
from pmpguard.safe_text import tell
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
    images: Path | None = None,
    format: str | None = None,
    columns: str | None = None,
    store: str | None = None,
    trusted_proxy: str | None = None,
) -> None:
    """Embed a folder of images, index it and serve the search page, whose address is printed at the end.

    Started again it embeds what has been added or changed since, and forgets what has been deleted. Killed
    half-way it goes on where it stopped.

    Args:
        folder: images, a dataset in any known format, tar shards, or one image.
        model: the model directory, or hub:ORG/NAME; by default the index's own copy, or for a new index the
            small model that comes with pmpguard.
        index: the folder of the index; by default FOLDER/.pmpguard/index, or .pmpguard-FILE/index beside a
            file.
        tile: pixels a side of the tiles that GeoTIFF scenes are cut into first; 0 takes images as they are.
            By default as the index was made, 0 for a new one.
        host: the address to listen on; the default is reachable from this machine alone.
        port: the port to listen on, 0 for any free one.
        token: a secret that clients must send as `Authorization: Bearer TOKEN`; the printed address carries
            it.
        device: where the model runs: "auto", "cpu" or "cuda".
        progress: draw a progress bar on stderr.
        images: the folder of a dataset's images, where the dataset does not say.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
        store: keep and search vectors in the PostgreSQL database postgresql://USER@HOST/DATABASE; by default
            the one in PMPGUARD_STORE, or where the index was built.
        trusted_proxy: the address or network of a reverse proxy whose X-Forwarded-For is believed, so that
            wrong tokens are counted for each of its clients.
    """
    check_startup(host, port, token_or_environment(token), trusted_proxy)
    place = index or usual_place(folder)
    take_store(store, place)
    change = bring_up_to_date(
        folder,
        place,
        model=model,
        tile=tile,
        device=str(pick_device(device)),
        progress=progress,
        tell=tell,
        images=images,
        format=format,
        columns=columns,
    )
    if change is not None:
        tell(IndexChange(place, change).as_text())
    serve_folder(place, host, port, token, None, device, None, trusted_proxy)
