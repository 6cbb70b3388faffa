"""Parquet, the fastest way in: millions of pairs in seconds. `PairTable.write_parquet` is the way out.

Hugging Face's, with images inside, and the three of img2dataset: beside shards, beside loose files, with the
images in a column.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.formats.stored_table import find_fields, join_parts, shaped
from pmpguard.data.pair_rows import split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.parquet_bounds import read_bounded
from pmpguard.data.parquet_footer import column_chunks
from pmpguard.data.parquet_images import BYTES, PATH, image_columns, is_bytes
from pmpguard.data.text_files import require_content
from pmpguard.errors import DataError

DOWNLOADED = {"url", "key", "status", "error_message"}  # columns of img2dataset


def recognise_parquet(file: Peek) -> bool:
    return file.head.startswith("PAR1") if file.ending in (".parquet", ".json") else False


def read_parquet(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    """One file or a folder of parts."""
    top = common_folder(files)
    return join_parts([_read_part(path, top, names) for path in files], files, top, images)


def _read_part(path: Path, top: Path, names: ColumnNames) -> pa.Table:
    require_content(path)
    try:
        schema = pq.read_schema(path)
        held = image_columns(schema)
        fields = find_fields(names, schema, held, str(path))
        read = [
            f"{name}.{PATH}" if name in held else name
            for name in schema.names
            if name not in held or not is_bytes(schema.field(name).type)
        ]
        table = read_bounded(path, read)
        stored = _stored_rows(path, fields.image) if fields.image in held else np.zeros(0, bool)
        if not held and set(schema.names) >= DOWNLOADED and path.with_suffix("").is_dir():
            table = _with_loose_files(table, path.with_suffix(""), fields.image)
        return shaped(table, schema, fields, held, stored, path, top, split_of_file(path))
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})", fix="write it again") from error


def _stored_rows(path: Path, column: str) -> np.ndarray:
    """(N,) bool: rows whose image lies in the file; statistics say so, without reading any image."""
    with pq.ParquetFile(path) as file:
        names = [one.path for one in file.schema]
        name = next((name for name in names if name in (f"{column}.{BYTES}", column)), None)
        if name is None:
            return np.zeros(file.metadata.num_rows, bool)
        parts = []
        for number, group in enumerate(column_chunks(path, names)):
            nulls, rows = group[names.index(name)].nulls, file.metadata.row_group(number).num_rows
            if nulls in (0, rows):
                parts.append(np.full(rows, nulls == 0))
            else:
                data = file.read_row_group(number, columns=[name])[column]
                data = data if name == column else pc.struct_field(data, BYTES)
                parts.append(pc.is_valid(data).to_numpy())
        return np.concatenate([np.zeros(0, bool), *parts])


def _with_loose_files(table: pa.Table, folder: Path, column: str) -> pa.Table:
    """Images that img2dataset wrote to a folder beside the file, `00000/000000123.jpg`, for addresses.

    Rows whose image was not fetched have none.
    """
    ending_of = {file.stem: file.name for file in folder.iterdir() if file.suffix not in (".txt", ".json")}
    keys = table["key"].to_pylist()
    names = [f"{folder.name}/{ending_of[key]}" if key in ending_of else None for key in keys]
    return table.set_column(table.column_names.index(column), column, pa.array(names, pa.string()))


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
