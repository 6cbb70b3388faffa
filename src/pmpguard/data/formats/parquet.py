"""Parquet, the fastest way in: millions of pairs in seconds. `PairTable.write_parquet` is the way out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmpguard.data.images.roots import locate_images
from pmpguard.data.pair_rows import (
    CAPTION_NAMES,
    IMAGE_NAMES,
    MAX_CAPTION_CHARACTERS,
    dataset_name,
    field_of,
    split_of_file,
)
from pmpguard.data.pairs import NAME, ROOT, PairTable
from pmpguard.data.text_files import require_content
from pmpguard.errors import DataError


def read_parquet(files: list[Path], images: Path | None) -> PairTable:
    """One file or a folder of parts; the image folder is the one recorded on writing when it is there."""
    for path in files:
        require_content(path)
    try:
        parts = [pq.read_table(path, memory_map=True) for path in files]
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{files[0]}: not a readable parquet file ({error})", fix="write it again") from error
    table = parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="default")
    metadata = parts[0].schema.metadata or {}
    present = dict.fromkeys(table.column_names)
    renamed = {
        field_of(present, IMAGE_NAMES, str(files[0])): "image",
        field_of(present, CAPTION_NAMES, str(files[0])): "caption",
    }
    table = table.rename_columns([renamed.get(column, column) for column in table.column_names])
    if "split" not in present:
        splits = [
            pa.repeat(split_of_file(path), part.num_rows) for path, part in zip(files, parts, strict=True)
        ]
        table = table.append_column("split", pa.chunked_array(splits, pa.string()))
    name = metadata[NAME].decode() if NAME in metadata else dataset_name(files[0])
    result = PairTable.from_columns(table, Path(), name, str(files[0]))
    if not len(result):
        raise DataError(f"{files[0]}: holds no pairs", fix="check that this is the right file")
    _check_caption_lengths(result, files[0])
    recorded = files[0].parent / metadata[ROOT].decode() if ROOT in metadata else None
    sample = result.arrow["image"].slice(0, 1000).to_pylist()
    root, found = locate_images(sample, files[0].parent, images, recorded)
    if found == sample:  # the usual case, without making millions of Python strings
        return PairTable(result.arrow, root, name)
    root, found = locate_images(result.column("image"), files[0].parent, images, recorded)
    return PairTable(result.with_column("image", pa.array(found)).arrow, root, name)


def _check_caption_lengths(table: PairTable, path: Path) -> None:
    row = pc.index(pc.greater(pc.utf8_length(table.arrow["caption"]), MAX_CAPTION_CHARACTERS), True).as_py()
    if row >= 0:
        raise DataError(
            f"{path} row {row}: caption over {MAX_CAPTION_CHARACTERS:,} characters",
            fix="shorten it or remove the row",
        )
