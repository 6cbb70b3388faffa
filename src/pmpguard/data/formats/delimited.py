"""CSV and TSV with a header, such as open_clip's `filepath,title`; comma, tab, semicolon or bar.

Columns are found by their usual names or named by the user. A file without a header has its columns numbered
from 1 on; of two columns, the one with image names is the image.
"""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.pair_rows import PairRows, add_record, dataset_name, iter_rows, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import is_numbered, looks_like_image, read_csv, read_first_row
from pmpguard.files import atomic_output

log = logging.getLogger("pmpguard")


def recognise_csv(file: Peek) -> bool:
    if file.ending == ".txt":
        return not is_numbered(file.header) and bool(file.header) and file.names.fit(file.header)
    names = _numbered_names(file.path, file.names) if is_numbered(file.header) else file.names
    return bool(file.header) and names.fit(file.header)


def read_delimited(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    rows, top = PairRows(files[0]), common_folder(files)
    for path in files:
        header, lines = read_csv(path)
        chosen = _numbered_names(path, names) if is_numbered(header) else names
        chosen.find(header, f"{path} line 1")
        if "" in header:  # the index of a data frame
            log.info(f"{path}: the column without a name is left out")
        split, below = split_of_file(path), path.parent.relative_to(top).as_posix()
        for number, fields in lines:
            record = {name: field for name, field in zip(header, fields, strict=True) if name}
            add_record(rows, f"{path} line {number}", record, split, chosen, "" if below == "." else below)
    return rows.build(top, images, dataset_name(files[0]))


def _numbered_names(path: Path, names: ColumnNames) -> ColumnNames:
    """Which of two columns without names is the image."""
    first = read_first_row(path)
    if names or len(first) != 2:
        return names
    image = "1" if looks_like_image(first[0]) else "2"
    return ColumnNames.of({"image": image, "caption": "2" if image == "1" else "1"})


def write_delimited(table: PairTable, path: Path) -> None:
    """`filepath,title`, the other standard columns and further ones; tabs when the name ends in .tsv."""
    names = ["image", "caption", "split", "pair_id", "image_id", "label"]
    header = ["filepath", "title", *names[2:]]
    further = [name for name in table.arrow.column_names if name not in {*names, *header}]
    separator = "\t" if path.suffix == ".tsv" else ","
    with atomic_output(path) as stream, io.StringIO() as text:
        writer = csv.writer(text, delimiter=separator)
        writer.writerow([*header, *further])
        for row in iter_rows(table):
            writer.writerow(["" if row[name] is None else row[name] for name in (*names, *further)])
            stream.write(text.getvalue().encode())
            text.seek(text.truncate(0))


CSV = Format(
    "CSV or TSV with a header, as open_clip's filepath,title",
    recognise_csv,
    read_delimited,
    write_delimited,
    (".csv", ".tsv"),
    names_columns=True,
    keeps_columns=True,
)
