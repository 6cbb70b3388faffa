"""`pmpguard serve`: the search page and its API over an index."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pmpguard.cli.store import take_store
from pmpguard.device import pick_device
from pmpguard.search.searcher import Searcher
from pmpguard.serving.run import is_loopback, serve_index


def serve(
    index: Path,
    beside: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    model: Path | None = None,
    device: str = "auto",
    store: str | None = None,
    trusted_proxy: str | None = None,
) -> None:
    """Serve the search page and its API until interrupted; the page's address is printed first.

    A newer version of the index is taken up while requests run. Without a token whoever reaches the port may
    search; the token may also come from the environment as PMPGUARD_TOKEN, where other users cannot see it.

    Args:
        index: the folder of the index.
        beside: another index, of the same images by another model, to compare with on the page.
        host: the address to listen on; the default is reachable from this machine alone.
        port: the port to listen on, 0 for any free one.
        token: a secret that clients must send as `Authorization: Bearer TOKEN`; the printed address carries
            it.
        model: the model directory, where the index should not use its own copy.
        device: where the model runs: "auto", "cpu" or "cuda".
        store: the PostgreSQL database of the index, as postgresql://USER@HOST/DATABASE; by default the one in
            PMPGUARD_STORE, or where the index was built.
        trusted_proxy: the address or network of a reverse proxy whose X-Forwarded-For is believed, so that
            wrong tokens are counted for each of its clients.
    """
    take_store(store, index)
    serve_folder(index, host, port, token, model, device, beside, trusted_proxy)


def serve_folder(
    index: Path,
    host: str,
    port: int,
    token: str | None,
    model: Path | None,
    device: str,
    beside: Path | None = None,
    trusted_proxy: str | None = None,
) -> None:
    """Open the index and serve it, saying where."""
    token = token_or_environment(token)
    searcher = Searcher.open(index, model=model, device=str(pick_device(device)))
    other = None if beside is None else Searcher.open(beside, device=str(pick_device(device)))
    if token is None and not is_loopback(host):
        print("whoever reaches this machine may search and see the images: consider --token", file=sys.stderr)
    description = "\nbeside ".join(
        f"{one.name}: {one.count:,} images, index version {one.version}, model {one.model_name}"
        if other
        else f"{one.count:,} images, index version {one.version}, model {one.model_name}"
        for one in (searcher, other)
        if one
    )

    def announce(address: str) -> None:
        print(f"{description}\n{address}", flush=True)

    serve_index(
        searcher,
        beside=other,
        host=host,
        port=port,
        token=token,
        trusted_proxy=trusted_proxy,
        announce=announce,
    )


def token_or_environment(token: str | None) -> str | None:
    """The token given, or the one in the environment."""
    return token or os.environ.get("PMPGUARD_TOKEN") or None
