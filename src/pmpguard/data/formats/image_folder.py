"""An image folder as Hugging Face reads it: `metadata.csv` or `metadata.jsonl` with `file_name`.

Names are relative to each metadata file, which may lie in a folder per split, or above such folders. They are
what `load_dataset("imagefolder")` and the Hub's viewer take.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.dataset_card import CARD, dataset_card
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.formats.jsonl import add_records, json_records
from pmpguard.data.formats.shards import check_split_name, image_bytes, image_ending
from pmpguard.data.pair_rows import PairRows, iter_rows, split_in_name
from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import split_reference
from pmpguard.data.text_files import read_csv
from pmpguard.errors import DataError
from pmpguard.files import atomic_output, new_directory, write_atomic


def recognise_folder(file: Peek) -> bool:
    if file.path.name == "metadata.jsonl":
        return '"file_name"' in file.head.partition("\n")[0]
    return file.path.name in ("metadata.csv", "metadata.tsv") and "file_name" in file.header


def read_folder(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    top, rows = common_folder(files), PairRows(files[0])
    names = names or ColumnNames.of({"image": "file_name"})
    for path in files:
        records = json_records(path) if path.suffix == ".jsonl" else _csv_records(path)
        if split_in_name(path.parent.name) is None:
            records = ((where, _with_split(record, names, where)) for where, record in records)
        add_records(rows, path, top, names, records)
    for row, image in enumerate(rows.columns["image"]):
        if PurePosixPath(image).is_absolute() or ".." in PurePosixPath(image).parts:
            raise DataError(
                f"{files[0]} pair {row + 1}: {image} leaves the folder", fix="use names relative to the file"
            )
    return rows.build(top, images, top.resolve().name, likely=top)


def _csv_records(path: Path) -> Iterator[tuple[str, Any]]:
    header, lines = read_csv(path)
    for number, fields in lines:
        yield f"{path} line {number}", dict(zip(header, fields, strict=True))


def _with_split(record: Any, names: ColumnNames, where: str) -> Any:
    """The record of a list above the folders of the splits: `test/a.jpg` is of the split test."""
    if not isinstance(record, Mapping):
        return record
    fields = names.find(list(record), where)
    image = record[fields.image]
    split = split_in_name(image.partition("/")[0]) if isinstance(image, str) and "/" in image else None
    return record if split is None or "split" in fields.standard else {**record, "split": split}


def write_folder(table: PairTable, target: Path, about: Sequence[str] = ()) -> None:
    """A card, and a folder per split: images and `metadata.csv` (`file_name,text,...`, a line per pair)."""
    further = [name for name in table.arrow.column_names if name not in ("image", "caption")]
    splits = list(table.splits())
    with new_directory(target) as folder:
        for split in splits:
            check_split_name(table, split)
            with atomic_output(folder / split / "metadata.csv") as stream, io.StringIO() as text:
                writer, placed = csv.writer(text), dict[str, str]()
                writer.writerow(["file_name", "text", *further])
                for row in iter_rows(table.split(split)):
                    image = row["image"]
                    if image not in placed:
                        placed[image] = place_image(table, image, folder / split)
                    values = ["" if row[name] is None else str(row[name]) for name in further]
                    writer.writerow([placed[image], row["caption"], *values])
                    stream.write(text.getvalue().encode())
                    text.seek(text.truncate(0))
        card = dataset_card(table, {split: f"{split}/**" for split in splits}, about)
        write_atomic(folder / CARD, card)


def place_image(table: PairTable, image: str, folder: Path) -> str:
    """Copy one image below `folder/images` under its own relative name, and return that name."""
    data = image_bytes(table, image)
    file, member = split_reference(image)
    inside = file if member is None else f"{file.partition('.')[0]}/{member}"
    parts = [part for part in PurePosixPath(inside).parts if part not in ("/", "..")]
    name = PurePosixPath("images", *parts)
    if name.suffix.lower() in ("", ".img_content"):
        name = name.with_suffix(f".{image_ending(data)}")
    path = folder / name
    if path.exists():
        raise DataError(f"{table.name}: two images would be stored as {name}", fix="rename one of them")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(name)


FOLDER = Format(
    "image folder with metadata.csv or metadata.jsonl",
    recognise_folder,
    read_folder,
    write_folder,
    names_columns=True,
    keeps_columns=True,
    copies_images=True,
    has_card=True,
)
