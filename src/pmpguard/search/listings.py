"""CSV files that describe images without captioning them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.data.column_names import CAPTION_NAMES, IMAGE_NAMES, ColumnNames, Columns
from pmpguard.data.pair_rows import PairRows, add_record
from pmpguard.data.pairs import PairTable, first_repeated
from pmpguard.data.text_files import looks_like_image, read_csv
from pmpguard.data.typed_columns import UNKNOWN, with_types
from pmpguard.errors import DataError

_NO_SPLIT = "none"
CSV_ENDINGS = (".csv", ".tsv")
SYNONYMS = {"latitude": "lat", "longitude": "lon", "lng": "lon"}


def find_listing(path: Path) -> Path | None:
    """A CSV file with a column of image names and none of captions: the path itself, or one in the folder."""
    if path.is_file():
        return path if _is_listing(path) else None
    if not path.is_dir():
        return None
    found = [file for file in sorted(path.iterdir()) if file.is_file() and _is_listing(file)]
    if len(found) > 1:
        names = " and ".join(file.name for file in found[:2])
        raise DataError(f"{path}: {names} both describe images", fix="name one of them, with --images FOLDER")
    return found[0] if found else None


def _is_listing(file: Path) -> bool:
    if file.suffix.lower() not in CSV_ENDINGS or not file.stat().st_size:
        return False
    header, rows = read_csv(file)
    plain = [name.lower() for name in header]
    column = next((plain.index(name) for name in IMAGE_NAMES if name in plain), None)
    if column is None or {*plain} & {*CAPTION_NAMES} or ColumnNames().fit(header):
        return False
    first = next(rows, None)
    return first is not None and looks_like_image(first[1][column])


def read_listing(file: Path, images: Path | None = None, columns: str | Columns | None = None) -> PairTable:
    """Images without captions, one a row, with every other column as it is typed."""
    rows, names = PairRows(file), ColumnNames.of(columns)
    header, lines = read_csv(file)
    lower = [name.lower() for name in header]
    renamed = {name: SYNONYMS[name] for name in lower if name in SYNONYMS and SYNONYMS[name] not in lower}
    known = [renamed.get(low, name) for low, name in zip(lower, header, strict=True)]
    if "id" in lower and "image_id" not in lower:
        known[lower.index("id")] = "image_id"
    for number, fields in lines:
        record = {**dict(zip(known, fields, strict=True)), "caption": ""}
        record = {name: "" if value in UNKNOWN else value for name, value in record.items()}
        add_record(rows, f"{file} line {number}", record, _NO_SPLIT, names)
    table = rows.build(file.parent, images, file.stem)
    twice = first_repeated(table.arrow["image"])
    if twice:
        name = table.arrow["image"][twice[0]].as_py()
        raise DataError(f"{file}: image {name} is described twice", fix="keep one of its rows")
    split = pc.if_else(pc.equal(table.arrow["split"], _NO_SPLIT), "", table.arrow["split"])
    return replace(table, arrow=with_types(table.with_column("split", split).arrow))


def describe_images(found: PairTable, listing: PairTable) -> PairTable:
    """All images of a folder with what a listing says of some of them; a row without an image is an error."""
    below = listing.root.resolve().relative_to(found.root.resolve())
    listed = pa.array([(below / name).as_posix() for name in listing.column("image")], pa.string())
    own, known = listing.arrow["image_id"], listing.arrow["image"]
    ids = pc.if_else(pc.equal(own, known), pa.chunked_array([listed]), own)
    listing = listing.with_column("image", listed).with_column("image_id", ids).with_column("pair_id", ids)
    names = found.arrow["image"].combine_chunks()
    missing = pc.invert(pc.is_in(listing.arrow["image"], value_set=names))
    if pc.any(missing).as_py():
        name = listing.arrow["image"].filter(missing)[0].as_py()
        raise DataError(
            f"{found.root / name}: no such image, and {listing.name} describes it",
            fix="correct its name, or remove the row",
        )
    rows = pc.index_in(names, value_set=listing.arrow["image"].combine_chunks())
    table = found.arrow
    for column in listing.arrow.column_names:
        values = listing.arrow[column].take(rows)
        if column in table.column_names:
            values = pc.coalesce(values, table[column].cast(values.type))
            table = table.set_column(table.column_names.index(column), column, values)
        else:
            table = table.append_column(column, values)
    return replace(found, arrow=table)
