"""Arrow files as `datasets.save_to_disk` leaves them: a folder per split, or one dataset's folder.

Files are mapped into memory; images stay where they are and are read from there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.data.arrow_files import map_arrow
from pmpguard.data.column_names import ColumnNames
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.formats.stored_table import HUGGING_FACE, find_fields, join_parts, shaped
from pmpguard.data.pair_rows import split_in_name, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.parquet_images import image_columns, image_data
from pmpguard.data.text_files import require_content
from pmpguard.errors import DataError

INFO_FILE, MAX_INFO_BYTES = "dataset_info.json", 1 << 24
SPLITS_FILE = "dataset_dict.json"  # of a folder that has a folder per split


def recognise_arrow(file: Peek) -> bool:
    """Intermediate results, which the library keeps as `cache-*.arrow`, are none."""
    return file.ending == ".arrow" and not file.path.name.startswith("cache-")


def read_arrow(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    """One file or a folder of parts."""
    top = common_folder(files)
    return join_parts([_read_part(path, top, names) for path in files], files, top, images)


def _read_part(path: Path, top: Path, names: ColumnNames) -> pa.Table:
    require_content(path)
    table = map_arrow(path)
    schema = _with_features(table.schema, path)
    try:
        held = image_columns(table.schema)
        fields = find_fields(names, table.schema, held, str(path))
        rest = table.drop_columns([name for name in held if name != fields.image])
        rest.validate(full=True)
        stored = np.zeros(0, bool)
        if fields.image in held:
            stored = pc.is_valid(image_data(rest[fields.image])).to_numpy()
        return shaped(rest, schema, fields, held, stored, path, top, _split_of(path))
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path}: not a readable Arrow file ({error})", fix="save it again") from error


def _with_features(schema: pa.Schema, path: Path) -> pa.Schema:
    """The schema with what the library wrote beside the file: the names of classes."""
    described = path.with_name(INFO_FILE)
    if not described.is_file() or described.stat().st_size > MAX_INFO_BYTES:
        return schema
    return schema.with_metadata({HUGGING_FACE: b'{"info": ' + described.read_bytes() + b"}"})


def _split_of(path: Path) -> str:
    """A folder of `save_to_disk` is a split of any name."""
    folder = path.parent
    own = folder.name if (folder.parent / SPLITS_FILE).is_file() else None
    return split_in_name(folder.name) or own or split_of_file(path)


ARROW = Format(
    "Arrow files of datasets.save_to_disk",
    recognise_arrow,
    read_arrow,
    several_files=True,
    names_columns=True,
    keeps_columns=True,
)
