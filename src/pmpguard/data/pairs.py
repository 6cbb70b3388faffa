"""PairTable: image-caption pairs in one Arrow table.

Every reader in `formats/` ends here and everything after starts here. Columns:

========  =========  ===============================================================
pair_id   string     unique
image     string     path relative to `root`, or `shard.tar#member`
caption   string
split     string     "train", "val", "test" or any other name
image_id  string     pairs of one image share it
label     string     scene class, null where unknown
lon, lat  double     optional
time      timestamp  optional
========  =========  ===============================================================

Further columns are kept as they are.
"""

from __future__ import annotations

import hashlib
import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmpguard.errors import DataError
from pmpguard.files import atomic_output
from pmpguard.remote import full_path, is_remote

REQUIRED = ("pair_id", "image", "caption", "split", "image_id")
TEXT = (*REQUIRED, "label")
COORDINATES = {"lon": 180.0, "lat": 90.0}
NAME = b"pmpguard.name"
ROOT = b"pmpguard.root"


@dataclass(frozen=True)
class Pair:
    """One row, for people; code works on columns."""

    pair_id: str
    image: str
    caption: str
    split: str
    image_id: str
    label: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class PairTable:
    """Pairs plus the folder their image paths are relative to.

    `allow_outside` says whether images may lie outside that folder; None leaves it to the command's option.

    >>> table = PairTable.from_columns({
    ...     "image": ["a.png", "a.png"], "caption": ["a pond", "a round pond"], "split": ["train"] * 2})
    >>> len(table), table.row(1).caption, table.row(1).image_id
    (2, 'a round pond', 'a.png')
    """

    arrow: pa.Table
    root: Path = Path()
    name: str = "pairs"
    allow_outside: bool | None = None

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Sequence[Any]] | pa.Table,
        root: Path = Path(),
        name: str = "pairs",
        source: str = "table",
    ) -> PairTable:
        """Build and check a table. Missing `pair_id`, `image_id`, `split` and `label` are filled in."""
        table = columns if isinstance(columns, pa.Table) else _as_table(columns, source)
        for column in ("image", "caption"):
            if column not in table.column_names:
                raise DataError(f"{source}: no column {column!r}", fix=f"found {table.column_names}")
        count = table.num_rows
        if "pair_id" not in table.column_names:
            table = table.append_column("pair_id", pa.array(np.arange(count)).cast(pa.string()))
        if "image_id" not in table.column_names:
            table = table.append_column("image_id", table["image"])
        if "split" not in table.column_names:
            table = table.append_column("split", pa.repeat(pa.scalar("train"), count))
        if "label" not in table.column_names:
            table = table.append_column("label", pa.nulls(count, pa.string()))
        ordered = [*TEXT, *(name for name in table.column_names if name not in TEXT)]
        table = table.select(ordered)
        for column in TEXT:
            table = table.set_column(
                table.column_names.index(column), column, _as_text(table[column], f"{source}: {column}")
            )
        result = cls(table, Path(root), name)
        result._check(source)
        return result

    def __repr__(self) -> str:
        counts = self.arrow["split"].value_counts().to_pylist()
        splits = ", ".join(f"{each['values']} {each['counts']:,}" for each in counts)
        further = [name for name in self.arrow.column_names if name not in TEXT]
        lines = [f"PairTable {self.name}: {len(self):,} pairs of {len(self.first_rows):,} images ({splits})"]
        lines += [f"  further columns: {', '.join(further)}"] if further else []
        lines += [f"  {image}: {caption[:80]!r}" for image, caption in self._first_pairs()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The first pairs as a table for notebooks."""
        head, *_ = repr(self).splitlines()
        rows = "".join(
            f"<tr><td>{html.escape(image)}</td><td>{html.escape(caption)}</td></tr>"
            for image, caption in self._first_pairs()
        )
        return f"<p>{html.escape(head)}</p><table><tr><th>image</th><th>caption</th></tr>{rows}</table>"

    def _first_pairs(self, count: int = 3) -> list[tuple[str, str]]:
        first = self.arrow.slice(0, count)
        return list(zip(first["image"].to_pylist(), first["caption"].to_pylist(), strict=True))

    def _check(self, source: str) -> None:
        for column in REQUIRED:
            nulls = self.arrow[column].null_count
            if nulls:
                row = pc.index(pc.is_null(self.arrow[column]), True).as_py()
                raise DataError(f"{source} row {row}: {column} is empty", fix=f"fill in or drop {nulls} rows")
        twice = first_repeated(self.arrow["pair_id"])
        if twice:
            value = self.arrow["pair_id"][twice[0]].as_py()
            raise DataError(
                f"{source} rows {twice[0]} and {twice[1]}: both have pair_id {value!r}", fix="make ids unique"
            )
        for column, limit in COORDINATES.items():
            if column not in self.arrow.column_names:
                continue
            try:
                values = self.arrow[column].cast(pa.float64()).to_numpy()
            except (pa.ArrowException, TypeError) as error:
                raise DataError(
                    f"{source}: {column} is not a number ({error})", fix="write degrees, or drop the column"
                ) from error
            bad = np.flatnonzero(~(np.abs(values) <= limit) & self.arrow[column].is_valid().to_numpy())
            if len(bad):
                raise DataError(
                    f"{source} row {bad[0]}: {column} is {values[bad[0]]}, outside ±{limit:g}",
                    fix="correct it or leave the field empty",
                )

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[Pair]:
        return (self.row(index) for index in range(len(self)))

    def row(self, index: int) -> Pair:
        values = {name: self.arrow[name][index].as_py() for name in self.arrow.column_names}
        known = {name: values.pop(name) for name in TEXT}
        return Pair(**known, extra=values)

    def column(self, name: str) -> list[Any]:
        """A column as Python values."""
        if name not in self.arrow.column_names:
            raise DataError(f"{self.name}: no column {name!r}", fix=f"columns: {self.arrow.column_names}")
        return self.arrow[name].to_pylist()  # type: ignore[no-any-return]

    @property
    def captions(self) -> list[str]:
        return self.column("caption")

    @cached_property
    def image_codes(self) -> np.ndarray:
        """(N,) int64: pairs of one image share a number, numbered in order of first appearance."""
        return codes(self.arrow["image_id"])

    @cached_property
    def caption_codes(self) -> np.ndarray:
        """(N,) int64: equal captions share a number."""
        return codes(self.arrow["caption"])

    @cached_property
    def first_rows(self) -> np.ndarray:
        """(images,) int64: for each image code the first row that shows it."""
        return np.unique(self.image_codes, return_index=True)[1]

    def take(self, rows: Any) -> PairTable:
        """The given rows, in that order."""
        return replace(self, arrow=self.arrow.take(pa.array(rows)))

    def slice(self, start: int, length: int | None = None) -> PairTable:
        """Consecutive rows, sharing memory with this table."""
        return replace(self, arrow=self.arrow.slice(start, length))

    def filter(self, mask: Any) -> PairTable:
        """The rows where `mask` is true."""
        return replace(self, arrow=self.arrow.filter(pa.array(mask)))

    def splits(self) -> dict[str, int]:
        """Number of pairs per split, in order of first appearance."""
        return {
            entry["values"].as_py(): entry["counts"].as_py() for entry in self.arrow["split"].value_counts()
        }

    def split(self, name: str) -> PairTable:
        """The pairs of one split; a contiguous split shares memory with this table."""
        wanted = pc.equal(self.arrow["split"], name)
        count = pc.sum(wanted).as_py() or 0
        if not count:
            raise DataError(
                f"{self.name}: no split named {name!r}", fix=f"this dataset has {', '.join(self.splits())}"
            )
        start = pc.index(wanted, True).as_py()
        if pc.sum(wanted.slice(start, count)).as_py() == count:
            return self.slice(start, count)
        return self.filter(wanted)

    def with_column(self, name: str, values: Any) -> PairTable:
        """A copy of the table with one column added or replaced; the others share memory."""
        column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        if name in self.arrow.column_names:
            table = self.arrow.set_column(self.arrow.column_names.index(name), name, column)
        else:
            table = self.arrow.append_column(name, column)
        return replace(self, arrow=table)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of ids, image paths, captions and splits in order; the root does not count."""
        digest = hashlib.sha256()
        for column in REQUIRED:
            digest.update(column.encode())
            lengths = pc.binary_length(self.arrow[column]).to_numpy().astype("<i8", copy=False)
            digest.update(lengths.tobytes())
            for chunk in self.arrow[column].chunks:
                digest.update(_text_bytes(chunk))
        return digest.hexdigest()

    def image_path(self, row: int) -> Path:
        return self.root / str(self.arrow["image"][row])

    def write_parquet(self, path: Path) -> None:
        """Write atomically; the name and the root, relative to the file, are kept as metadata."""
        metadata = {**(self.arrow.schema.metadata or {}), NAME: self.name.encode()}
        if self.root != Path():
            root, here = full_path(self.root), path.parent.resolve()
            metadata[ROOT] = (str(root) if is_remote(root) else os.path.relpath(root, here)).encode()
        with atomic_output(path) as stream:
            pq.write_table(self.arrow.replace_schema_metadata(metadata), stream, compression="zstd")


def codes(column: pa.ChunkedArray) -> np.ndarray:
    """(N,) int64: equal values share a number, numbered in order of first appearance."""
    encoded = column.dictionary_encode()  # one dictionary for all chunks
    indices = [chunk.indices.to_numpy() for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.int64), *indices])


def first_repeated(column: pa.ChunkedArray) -> tuple[int, int] | None:
    """The first two rows that hold one string, None when all differ.

    Python's string hashes are compared first, a chunk at a time: far less memory than a set of millions of
    strings. Only rows whose hashes meet are compared as strings.
    """
    hashes = np.empty(len(column), np.int64)
    start = 0
    for chunk in column.chunks:
        strings = chunk.to_numpy(zero_copy_only=False)
        hashes[start : start + len(chunk)] = np.fromiter(map(hash, strings), np.int64, len(chunk))
        start += len(chunk)
    ordered = np.sort(hashes)
    meeting = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(meeting):
        return None
    seen: dict[str, int] = {}
    for row in np.flatnonzero(np.isin(hashes, meeting)):
        first = seen.setdefault(column[int(row)].as_py(), int(row))
        if first != row:
            return first, int(row)
    return None


def label_codes(table: PairTable) -> np.ndarray:
    """(N,) int64: scene class of every row as a number from 0 on, -1 where it is not known."""
    labels = table.arrow["label"]
    known = pc.is_valid(labels).to_numpy() & pc.not_equal(pc.fill_null(labels, ""), "").to_numpy()
    numbers = np.full(len(table), -1, dtype=np.int64)
    if known.any():
        numbers[known] = codes(labels.filter(pa.array(known)))
    return numbers


def image_label_codes(table: PairTable) -> np.ndarray:
    """(images,) int64: the same of every distinct image."""
    codes_of_images: np.ndarray = label_codes(table)[table.first_rows]
    return codes_of_images


def _as_table(columns: Mapping[str, Sequence[Any]], source: str) -> pa.Table:
    try:
        return pa.table(dict(columns))
    except UnicodeEncodeError as error:  # a file's name in another encoding
        raise DataError(f"{source}: {error.object!a} is not UTF-8", fix="rename the file as UTF-8") from error
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"{source}: columns that cannot be stored ({error})", fix="correct them") from error


def _as_text(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    try:
        text = column if pa.types.is_string(column.type) else column.cast(pa.string())
        text.validate(full=True)  # what was read as text may not be UTF-8
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"{where}: cannot be read as text ({error})", fix="write one UTF-8 text in each row"
        ) from error
    return text


def _text_bytes(chunk: pa.StringArray) -> memoryview:
    """The characters of a string array as one block of bytes, without a copy."""
    _, offsets, data = chunk.buffers()
    if data is None or not len(chunk):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]]
