"""Parquet, the fastest way in: millions of pairs in seconds. `PairTable.write_parquet` is the way out.

Columns are found as in CSV. `caption` may be a list of captions. An image may be a name, or Hugging Face's
`{bytes, path}`: bytes stay in the file and are read from there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmpguard.data.column_names import ColumnNames, Fields
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.images.roots import locate_images
from pmpguard.data.pair_rows import MAX_CAPTION_CHARACTERS, dataset_name, split_of_file
from pmpguard.data.pairs import NAME, ROOT, PairTable
from pmpguard.data.parquet_images import BYTES, PATH, image_reference, image_structs
from pmpguard.data.text_files import require_content
from pmpguard.errors import DataError


def recognise_parquet(file: Peek) -> bool:
    return file.head.startswith("PAR1") if file.ending in (".parquet", ".json") else False


def read_parquet(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    """One file or a folder of parts; the image folder is the one recorded on writing when it is there."""
    top = common_folder(files)
    parts = [_read_part(path, top, names) for path in files]
    try:
        table = parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="permissive")
    except (pa.ArrowException, TypeError) as error:
        raise DataError(
            f"{files[0]} and {len(files) - 1} more parts have columns of different types ({error})",
            fix="write them again with one schema",
        ) from error
    metadata = parts[0].schema.metadata or {}
    name = metadata[NAME].decode(errors="replace") if NAME in metadata else dataset_name(files[0])
    result = PairTable.from_columns(table, Path(), name, str(files[0]))
    if not len(result):
        raise DataError(f"{files[0]}: holds no pairs", fix="check that this is the right file")
    _check_caption_lengths(result, files[0])
    recorded = top / metadata[ROOT].decode(errors="replace") if ROOT in metadata else None
    sample = result.arrow["image"].slice(0, 1000).to_pylist()
    root, found = locate_images(sample, top, images, recorded)
    if found == sample:  # the usual case, without making millions of Python strings
        return PairTable(result.arrow, root, name)
    root, found = locate_images(result.column("image"), top, images, recorded)
    return PairTable(result.with_column("image", pa.array(found)).arrow, root, name)


def _read_part(path: Path, top: Path, names: ColumnNames) -> pa.Table:
    """One file with the standard columns named so, one caption a row and images as names."""
    require_content(path)
    try:
        schema = pq.read_schema(path)
        structs = image_structs(schema)
        fields = names.find([column for column in schema.names if column not in structs] + structs, str(path))
        read = [f"{name}.{PATH}" if name in structs else name for name in schema.names]
        with pq.ParquetFile(path, memory_map=True) as file:
            table = file.read(columns=read)
        if fields.image in structs:
            stored = _stored_rows(path, fields.image)
            table = _with_references(table, path.relative_to(top).as_posix(), fields.image, stored)
        table = table.drop_columns(
            [name for name in structs if name in table.column_names and name != fields.image]
        )
        table.validate(full=True)
        table = _one_caption_a_row(_renamed(table, fields), path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})", fix="write it again") from error
    if "split" not in table.column_names:
        table = table.append_column("split", pa.repeat(pa.scalar(split_of_file(path)), len(table)))
    kept = {key: value for key, value in (schema.metadata or {}).items() if key != b"huggingface"}
    return table.replace_schema_metadata(kept)


def _stored_rows(path: Path, column: str) -> np.ndarray:
    """(N,) bool: rows whose image lies in the file; statistics say so, without reading any image."""
    with pq.ParquetFile(path) as file:
        described = file.metadata
        places = [
            place
            for place in range(described.num_columns)
            if described.schema.column(place).path == f"{column}.{BYTES}"
        ]
        if not places:
            return np.zeros(described.num_rows, bool)
        parts = []
        for number in range(described.num_row_groups):
            group = described.row_group(number)
            statistics = group.column(places[0]).statistics
            nulls = statistics.null_count if statistics and statistics.has_null_count else -1
            if nulls in (0, group.num_rows):
                parts.append(np.full(group.num_rows, nulls == 0))
            else:
                data = pc.struct_field(
                    file.read_row_group(number, columns=[f"{column}.{BYTES}"])[column], BYTES
                )
                parts.append(pc.is_valid(data).to_numpy())
        return np.concatenate([np.zeros(0, bool), *parts])


def _with_references(table: pa.Table, file: str, column: str, stored: np.ndarray) -> pa.Table:
    """Image structs as names: a reference to the row where the file holds the image, else its path."""
    rows = len(stored)
    has_paths = column in table.column_names
    paths = pc.struct_field(table[column], PATH).to_pylist() if has_paths else [None] * rows
    references = pa.array(
        [image_reference(file, column, row) if stored[row] else paths[row] for row in range(rows)],
        pa.string(),
    )
    if not has_paths:
        return table.append_column(column, references)
    table = table.set_column(table.column_names.index(column), column, references)
    if stored.any() and "file_name" not in table.column_names:
        table = table.append_column("file_name", pa.array(paths, pa.string()))
    return table


def _renamed(table: pa.Table, fields: Fields) -> pa.Table:
    """Standard names for the columns found; what already has such a name and is something else goes."""
    new = {fields.image: "image", **{column: name for name, column in fields.standard.items()}}
    if len(fields.captions) == 1:
        new[fields.captions[0]] = "caption"
    else:
        columns = [table[name].to_pylist() for name in fields.captions]
        joined = [[text for text in texts if text] or [texts[0]] for texts in zip(*columns, strict=True)]
        old = {"caption", *fields.captions} & set(table.column_names)
        table = table.drop_columns(sorted(old)).append_column("caption", pa.array(joined))
    taken = [name for name in table.column_names if name in new.values() and new.get(name, name) != name]
    table = table.drop_columns([name for name in taken if name not in new])
    return table.rename_columns([new.get(name, name) for name in table.column_names])


def _one_caption_a_row(table: pa.Table, path: Path) -> pa.Table:
    """Lists of captions as one row each; ids of such rows are made anew."""
    captions = table["caption"]
    if not (pa.types.is_list(captions.type) or pa.types.is_large_list(captions.type)):
        return table
    rows = pc.list_parent_indices(captions)
    empty = pc.index(pc.fill_null(pc.equal(pc.list_value_length(captions), 0), True), True).as_py()
    if empty >= 0:
        raise DataError(f"{path} row {empty}: no caption", fix="give at least one or remove the row")
    repeated = table.drop_columns(["caption"]).take(rows)
    several = len(rows) > len(table)
    if several and "pair_id" in repeated.column_names:
        repeated = repeated.drop_columns(["pair_id"])
    return repeated.append_column("caption", pc.list_flatten(captions))


def _check_caption_lengths(table: PairTable, path: Path) -> None:
    row = pc.index(pc.greater(pc.utf8_length(table.arrow["caption"]), MAX_CAPTION_CHARACTERS), True).as_py()
    if row >= 0:
        raise DataError(
            f"{path} row {row}: caption over {MAX_CAPTION_CHARACTERS:,} characters",
            fix="shorten it or remove the row",
        )


PARQUET = Format(
    "parquet, the fastest; also Hugging Face's with images inside",
    recognise_parquet,
    read_parquet,
    PairTable.write_parquet,
    (".parquet",),
    several_files=True,
    names_columns=True,
    keeps_columns=True,
)
