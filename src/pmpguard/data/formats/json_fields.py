"""Fields of JSON documents, asked for with errors that name their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pmpguard.errors import DataError


def entry_of(record: Any, name: str, where: str) -> Any:
    """A field that must be there."""
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: not an object with {name!r}", fix="check the file's format")
    if name not in record:
        raise DataError(
            f"{where}: no field {name!r}", fix=f"found {', '.join(map(str, record)) or 'nothing'}"
        )
    return record[name]


def list_of(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{where}: not a list", fix="check the file's format")
    return value


def refuse_again(seen: dict[str, str], image: str, where: str) -> None:
    """Refuse an image that is listed a second time."""
    if image in seen:
        raise DataError(f"{where}: {image} is listed before, at {seen[image]}", fix="merge the two entries")
    seen[image] = where
