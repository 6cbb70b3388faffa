"""`pmpguard data convert`: read any known format, write another."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pmpguard.data.column_names import STANDARD, ColumnNames
from pmpguard.data.formats import FORMATS, find_files, read_pairs, table_notes, write_pairs
from pmpguard.errors import ConfigError, DataError


@dataclass(frozen=True)
class ConvertReport:
    """What was read and written."""

    source: Path
    target: Path
    format: str
    to: str
    pairs: int
    images: int
    splits: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_text(self) -> str:
        splits = ", ".join(f"{name} {count:,}" for name, count in self.splits.items())
        lines = [
            f"{self.source} ({self.format}) -> {self.target} ({self.to})",
            f"{self.pairs:,} pairs of {self.images:,} images: {splits}",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def convert(
    source: Path,
    target: Path,
    format: str | None = None,
    to: str | None = None,
    images: Path | None = None,
    split: str | None = None,
    columns: str | None = None,
) -> ConvertReport:
    """Read pairs in any known format and write them in another.

    Args:
        source: a file, a folder or a pattern of shards such as 'train-{0000..0031}.tar'.
        target: the file or folder to write; it must not exist yet.
        format: the source's format, when it cannot be told from the path.
        to: the target's format, when its ending does not tell.
        images: the folder that holds the images, when it is not beside the source.
        split: convert only this split.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """
    written = to or format_of_target(target)
    if target.exists() and (target.is_file() or any(target.iterdir())):
        raise DataError(f"{target}: exists already", fix="choose a new name or remove it first")
    read_as = format or find_files(source, names=ColumnNames.of(columns))[0]
    table = read_pairs(source, columns, format=read_as, images=images)
    table = table.split(split) if split else table
    write_pairs(table, target, written)
    return ConvertReport(
        source,
        target,
        read_as,
        written,
        len(table),
        len(table.first_rows),
        table.splits(),
        tuple(_notes(table, written)),
    )


def format_of_target(target: Path) -> str:
    """The format a target's ending asks for.

    >>> format_of_target(Path("pairs.parquet")), format_of_target(Path("pairs.tsv"))
    ('parquet', 'csv')
    """
    for name, kind in FORMATS.items():
        if target.suffix.lower() in kind.endings:
            return name
    known = ", ".join(name for name, kind in FORMATS.items() if kind.write)
    raise ConfigError(
        f"{target}: its ending does not name a format", fix=f"say which with --to, one of {known}"
    )


def _notes(table: Any, written: str) -> list[str]:
    notes = table_notes(table)
    further = [name for name in table.arrow.column_names if name not in STANDARD]
    if further and not FORMATS[written].keeps_columns:
        notes.append(f"{written} has no place for the columns {', '.join(further)}; they were left out")
    if not FORMATS[written].copies_images and written != "parquet":
        notes.append(f"images stay in {table.root}; read the result with --images {table.root}")
    return notes
