"""The option `--store`, which several verbs take."""

from __future__ import annotations

from pathlib import Path

from pmpguard.errors import ConfigError
from pmpguard.search.index.version import CURRENT, VERSIONS, VersionDescription, current_version
from pmpguard.search.stores.postgres_server import use_address


def take_store(store: str | None, index: Path) -> None:
    """Use the database that was named, for an index that is kept in one, or is not made yet."""
    if not store:
        return
    use_address(store)
    if not (index / CURRENT).is_file():
        return
    backend = VersionDescription.read(index / VERSIONS / current_version(index)[0]).backend
    if backend != "postgres":
        fix = (
            "leave out --store, or build it again: pmpguard index build INDEX --embeddings FOLDER --store ..."
        )
        raise ConfigError(f"{index} is searched by {backend}, not by a database", fix=fix)
