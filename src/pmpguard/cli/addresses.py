"""Addresses among the options of a verb: made into what it reads, or refused before any work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from pmpguard.errors import ConfigError
from pmpguard.remote import as_path, is_remote, local_file, local_folder_of, url_of

READ = {"dataset", "datasets", "against", "source", "images", "against_images", "embeddings", "judge"}
COPIED: dict[str, Callable[[Path], Path]] = {
    "report": local_folder_of,
    "decisions": local_file,
    "noise.file": local_file,
}
WRITTEN = {("audit", "out"), ("embed", "out")}
NOT_READ = {("convert", "source"), ("index export", "source")}


def read_here(verb: str, name: str, value: Any) -> Any:
    """The value of an option, with paths as the verb takes them.

    Addresses that a verb can neither read nor write are refused; they would be folders called `s3:`.

    >>> read_here("data stats", "dataset", Path("file:///a%20b.csv"))
    PosixPath('/a b.csv')
    """
    if isinstance(value, list):
        return [read_here(verb, name, each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        given = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        found = {inner: read_here(verb, f"{name}.{inner}", each) for inner, each in given.items()}
        return value if found == given else replace(value, **found)
    if isinstance(value, str) and name in READ:
        return str(as_path(value)) if value.startswith("file:/") else value
    if not isinstance(value, Path):
        return value
    path = as_path(value)
    if not is_remote(path) or (verb, name) in WRITTEN or (name in READ and (verb, name) not in NOT_READ):
        return path
    if name not in COPIED:
        raise ConfigError(
            f"{name}: {url_of(path)} is an address; datasets, images, embeddings and reports may be one",
            fix="give a path of this machine, and copy it from or to the address",
        )
    return COPIED[name](path)
