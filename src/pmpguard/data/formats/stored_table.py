"""What parquet and Arrow files share: tables that come with types, perhaps with their images inside.

Columns are found as in CSV. A caption may be a list of captions, or of objects that hold one. An image may be
a name, bytes, or Hugging Face's `{bytes, path}`: bytes stay in the file and are read from there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.data.column_names import CAPTION_NAMES, IMAGE_NAMES, ColumnNames, Fields
from pmpguard.data.images.roots import locate_images
from pmpguard.data.pair_rows import MAX_CAPTION_CHARACTERS, dataset_name, split_called
from pmpguard.data.pairs import NAME, ROOT, PairTable
from pmpguard.data.parquet_images import PATH, image_reference
from pmpguard.errors import DataError
from pmpguard.remote import is_remote

log = logging.getLogger("pmpguard")
HUGGING_FACE, PER_CAPTION, SPLIT = b"huggingface", b"pmpguard.per_caption", b"pmpguard.split"
METADATA_FILES = ("metadata.parquet", "metadata.arrow")  # of an image folder: names start from the file
FAILED = "status"  # of a row of img2dataset, "success" where the image was fetched


def join_parts(parts: Sequence[pa.Table], files: Sequence[Path], top: Path, images: Path | None) -> PairTable:
    """The parts as one table; the image folder is the one recorded on writing when it is there."""
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
    recorded = _recorded_root(top, metadata)
    sample = result.arrow["image"].slice(0, 1000).to_pylist()
    root, found = locate_images(sample, top, images, recorded)
    if found == sample:  # the usual case, without making millions of Python strings
        return PairTable(result.arrow, root, name)
    root, found = locate_images(result.column("image"), top, images, recorded)
    return PairTable(result.with_column("image", pa.array(found)).arrow, root, name)


def _recorded_root(top: Path, metadata: Mapping[bytes, bytes]) -> Path | None:
    """The image folder that was written down; one that holds half the machine says nothing."""
    written = metadata[ROOT].decode(errors="replace") if ROOT in metadata else None
    if written is not None and is_remote(written):
        return Path(written)
    root = None if written is None else top / written
    return None if root is None or root.resolve() in top.resolve().parents[1:] else root


def find_fields(names: ColumnNames, schema: pa.Schema, held: Sequence[str], where: str) -> Fields:
    """The columns to read. One that holds images comes before one that names them, unless it was named."""
    given = dict(names.given)
    if held and "image" not in given:
        usual = [column for name in IMAGE_NAMES for column in held if column.lower() == name]
        names = ColumnNames((*names.given, ("image", ((usual or list(held))[0],))))
    return names.find(schema.names, where)


def shaped(
    table: pa.Table,
    schema: pa.Schema,
    fields: Fields,
    held: Sequence[str],
    stored: np.ndarray,
    path: Path,
    top: Path,
    split: str,
) -> pa.Table:
    """One file's table with the standard columns named so, one caption a row and images as names.

    `held` are the columns that hold images, of which the table has at most the paths; `stored` (N,) says
    where the image's bytes lie in the file.
    """
    if fields.image in held:
        table = _with_references(table, path.relative_to(top).as_posix(), fields.image, stored)
    table = table.drop_columns([name for name in held if name in table.column_names and name != fields.image])
    table = _with_class_names(table, schema)
    table = _without_failed(table, fields, path)
    below = path.parent.relative_to(top).as_posix()
    if path.name in METADATA_FILES and below != "." and fields.image not in held:
        names = pc.binary_join_element_wise(pa.scalar(below), table[fields.image].cast(pa.string()), "/")
        table = table.set_column(table.column_names.index(fields.image), fields.image, names)
    table = _one_caption_a_row(_renamed(table, fields), path, _per_caption(schema))
    if "split" in table.column_names:
        table = _with_usual_splits(table)
    else:
        recorded = (schema.metadata or {}).get(SPLIT, b"").decode(errors="replace")
        table = table.append_column("split", pa.repeat(pa.scalar(recorded or split), len(table)))
    kept = {key: value for key, value in (schema.metadata or {}).items() if key in (NAME, ROOT)}
    return table.replace_schema_metadata(kept)


def _with_references(table: pa.Table, file: str, column: str, stored: np.ndarray) -> pa.Table:
    """Held images as names: a reference to the row where the file holds the image, else its path."""
    rows = len(stored)
    has_paths = column in table.column_names and pa.types.is_struct(table[column].type)
    paths = pc.struct_field(table[column], PATH).to_pylist() if has_paths else [None] * rows
    references = pa.array(
        [image_reference(file, column, row) if stored[row] else paths[row] for row in range(rows)],
        pa.string(),
    )
    if column not in table.column_names:
        return table.append_column(column, references)
    table = table.set_column(table.column_names.index(column), column, references)
    if stored.any() and any(paths) and "file_name" not in table.column_names:
        table = table.append_column("file_name", pa.array(paths, pa.string()))
    return table


def _without_failed(table: pa.Table, fields: Fields, path: Path) -> pa.Table:
    """Without the rows that img2dataset could not fetch."""
    if FAILED not in table.column_names or not table[fields.image].null_count:
        return table
    fetched = pc.is_valid(table[fields.image])
    log.warning(f"{path}: {table[fields.image].null_count:,} rows without an image are left out")
    return table.filter(fetched)


def _with_class_names(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Classes that Hugging Face stores as numbers, by their names."""
    for column, names in _class_names(schema).items():
        if column not in table.column_names or not pa.types.is_integer(table[column].type):
            continue
        numbers = table[column]
        known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(names)))
        places = pc.if_else(known, numbers, pa.scalar(None, numbers.type))  # -1 where no class is known
        chosen = pa.chunked_array([pa.array(names, pa.string()).take(places.combine_chunks())])
        table = table.set_column(table.column_names.index(column), column, chosen)
    return table


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    try:
        features = json.loads((schema.metadata or {})[HUGGING_FACE])["info"]["features"]
        described = {name: each["names"] for name, each in features.items() if each["_type"] == "ClassLabel"}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {
        name: names
        for name, names in described.items()
        if isinstance(names, list) and all(isinstance(each, str) for each in names)
    }


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


def _with_usual_splits(table: pa.Table) -> pa.Table:
    """Splits by their usual names, each different one looked at once."""
    splits = table["split"]
    kind = splits.type.value_type if pa.types.is_dictionary(splits.type) else splits.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return table
    coded = splits.cast(pa.string()).combine_chunks().dictionary_encode()
    names = pa.array([None if name is None else split_called(name) for name in coded.dictionary.to_pylist()])
    if names.equals(coded.dictionary):
        return table
    column = names.cast(pa.string()).take(coded.indices)
    return table.set_column(table.column_names.index("split"), "split", column)


def _per_caption(schema: pa.Schema) -> list[str]:
    """The columns that we wrote with a value for each caption."""
    try:
        names = json.loads((schema.metadata or {}).get(PER_CAPTION, b"[]"))
    except (ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _one_caption_a_row(table: pa.Table, path: Path, per_caption: Sequence[str]) -> pa.Table:
    """Lists of captions as one row each; ids of such rows are made anew, if they are not lists themselves."""
    captions = _texts(table["caption"])
    if not is_list(captions.type):
        return table.set_column(table.column_names.index("caption"), "caption", captions)
    rows, lengths = pc.list_parent_indices(captions), pc.list_value_length(captions)
    empty = pc.index(pc.fill_null(pc.equal(lengths, 0), True), True).as_py()
    if empty >= 0:
        raise DataError(f"{path} row {empty}: no caption", fix="give at least one or remove the row")
    lists = {
        name: pc.list_flatten(table[name])
        for name in per_caption
        if name in table.column_names
        and is_list(table[name].type)
        and pc.list_value_length(table[name]).equals(lengths)
    }
    repeated = table.drop_columns(["caption", *lists]).take(rows)
    several = len(rows) > len(table)
    if several and "pair_id" in repeated.column_names:
        repeated = repeated.drop_columns(["pair_id"])
    for name, values in {"caption": _texts(pc.list_flatten(captions)), **lists}.items():
        repeated = repeated.append_column(name, values)
    return repeated


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _texts(captions: pa.ChunkedArray) -> pa.ChunkedArray:
    """Captions out of objects that hold them, such as `{"raw": ...}`."""
    if not pa.types.is_struct(captions.type):
        return captions
    inside = [field.name for field in captions.type]
    held = next((name for name in CAPTION_NAMES if name in inside), None)
    return captions if held is None else pc.struct_field(captions, held)


def _check_caption_lengths(table: PairTable, path: Path) -> None:
    row = pc.index(pc.greater(pc.utf8_length(table.arrow["caption"]), MAX_CAPTION_CHARACTERS), True).as_py()
    if row >= 0:
        raise DataError(
            f"{path} row {row}: caption over {MAX_CAPTION_CHARACTERS:,} characters",
            fix="shorten it or remove the row",
        )
