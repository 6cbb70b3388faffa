"""An image folder as Hugging Face reads it: `metadata.csv` or `metadata.jsonl` with `file_name`.

Names are relative to each metadata file, which may lie in a folder per split.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.formats.jsonl import add_json_lines
from pmpguard.data.formats.shards import write_folder
from pmpguard.data.pair_rows import PairRows, add_record, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_csv
from pmpguard.errors import DataError


def recognise_folder(file: Peek) -> bool:
    if file.path.name == "metadata.jsonl":
        return '"file_name"' in file.head.partition("\n")[0]
    return file.path.name in ("metadata.csv", "metadata.tsv") and "file_name" in file.header


def read_folder(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    top, rows = common_folder(files), PairRows(files[0])
    names = names or ColumnNames.of({"image": "file_name"})
    for path in files:
        if path.suffix == ".jsonl":
            add_json_lines(rows, path, top, names)
        else:
            header, lines = read_csv(path)
            below = path.parent.relative_to(top).as_posix()
            for number, fields in lines:
                record = dict(zip(header, fields, strict=True))
                where = f"{path} line {number}"
                add_record(rows, where, record, split_of_file(path), names, "" if below == "." else below)
    for row, image in enumerate(rows.columns["image"]):
        if PurePosixPath(image).is_absolute() or ".." in PurePosixPath(image).parts:
            raise DataError(
                f"{files[0]} pair {row + 1}: {image} leaves the folder", fix="use names relative to the file"
            )
    return rows.build(top, images, top.resolve().name, likely=top)


FOLDER = Format(
    "image folder with metadata.csv or metadata.jsonl",
    recognise_folder,
    read_folder,
    write_folder,
    names_columns=True,
    keeps_columns=True,
    copies_images=True,
)
