"""What a format is: how its files are recognised, read and written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import is_shard, open_shard
from pmpguard.data.text_files import IMAGE_SUFFIXES, read_csv
from pmpguard.errors import DataError
from pmpguard.remote import is_remote

HEAD_BYTES = 65_536
PEEKED_MEMBERS = 16


@dataclass(frozen=True)
class Peek:
    """The beginning of a file, for formats to recognise; each part is read when it is first asked for."""

    path: Path
    names: ColumnNames = field(default_factory=ColumnNames)

    @property
    def ending(self) -> str:
        return self.path.suffix.lower()

    @cached_property
    def head(self) -> str:
        with self.path.open("rb") as stream:
            return stream.read(HEAD_BYTES).decode("utf-8", "replace").lstrip("\ufeff \t\r\n")

    @property
    def is_json(self) -> bool:
        return self.ending == ".json"

    @cached_property
    def image_beside(self) -> Path | None:
        """The image of the same name, with another ending."""
        named = (self.path.with_suffix(ending) for ending in IMAGE_SUFFIXES)
        return None if is_remote(self.path) else next((path for path in named if path.is_file()), None)

    @cached_property
    def header(self) -> list[str]:
        """Columns of a CSV file; numbers where it has no header, none where it is no CSV file."""
        if self.ending not in (".csv", ".tsv", ".txt") or not self.path.stat().st_size:
            return []
        if self.ending == ".txt" and not any(mark in self.head.partition("\n")[0] for mark in "\t,;|"):
            return []
        return read_csv(self.path)[0]

    @cached_property
    def members(self) -> set[str]:
        """Endings of the first members of a tar file, without the keys of the samples."""
        if not is_shard(self.path):
            return set()
        with open_shard(self.path) as (_, members):
            first = itertools.islice(members, PEEKED_MEMBERS)
            return {member.name.rpartition("/")[2].partition(".")[2].lower() for member in first}


@dataclass(frozen=True)
class Format:
    """A way of storing pairs.

    `read(files, images)` gives the table, with `names` of columns as a third argument where `names_columns`;
    `write(table, path)` is there where writing makes sense, with lines `about` the data as a third argument
    where `has_card`.
    """

    about: str
    recognise: Callable[[Peek], bool]
    read: Callable[..., PairTable]
    write: Callable[..., None] | None = None
    endings: tuple[str, ...] = ()  # a target with one of these is written in this format
    one_file: bool = False  # a dataset is one file
    several_files: bool = False  # a split may have several files
    names_columns: bool = False
    keeps_columns: bool = False
    copies_images: bool = False
    has_card: bool = False


def common_folder(files: list[Path]) -> Path:
    """The nearest folder that holds all files."""
    for folder in files[0].parents:
        if all(path.is_relative_to(folder) for path in files):
            return folder
    raise DataError(f"{files[0]} and {files[-1]} share no folder", fix="pass files of one folder")
