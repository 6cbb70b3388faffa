"""Formats in plain text: the caption files of AMFMN and SWAN, and CSV in three dialects.

AMFMN and SWAN: `<split>_caps.txt`, a caption a line, and `<split>_filename.txt`, a image's name for each
caption or for each run of captions. Where `<split>_caps_verify.txt` exists, it is that split and the plain
file is training and validation together.

CSV dialects, told apart by their header: RRSITR `filename,title` with foreign absolute paths, one file per
split and `<DATASET>-NC-02.csv` for training at mismatch rate 0.2; open_clip `filepath,title`, comma or tab;
an image folder's `metadata.csv` with `file_name` and `text` or `caption`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pmpguard.data.pair_rows import (
    CAPTION_NAMES,
    IMAGE_NAMES,
    PairRows,
    add_record,
    dataset_name,
    iter_rows,
    split_in_name,
    split_of_file,
)
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_csv, read_lines
from pmpguard.errors import DataError
from pmpguard.files import atomic_output, new_directory

CAPTION_FILE = re.compile(r"(?P<split>.+)_caps(?P<verify>_verify)?\.txt")


def read_amfmn(files: list[Path], images: Path | None) -> PairTable:
    chosen: dict[str, Path] = {}
    for path in sorted(files):
        found = CAPTION_FILE.fullmatch(path.name)
        if found and (found["verify"] or found["split"] not in chosen):
            chosen[found["split"]] = path
    if not chosen:
        raise DataError(
            f"{files[0]}: no <split>_caps.txt among the files", fix="pass the caption file's path"
        )
    folder = files[0].parent
    rows = PairRows(folder)
    for split, path in chosen.items():
        names_path = path.with_name(path.name.replace("_caps", "_filename"))
        captions = [caption for _, caption in read_lines(path)]
        names = [name.strip() for _, name in read_lines(names_path)]
        repeat, rest = divmod(len(captions), len(names))
        if rest or not repeat:
            raise DataError(
                f"{path}: {len(captions)} captions, but {names_path.name} has {len(names)} lines",
                fix="give one name per caption, or one per image with the same number of captions each",
            )
        for number, caption in enumerate(captions):
            rows.add(f"{path} line {number + 1}", names[number // repeat], caption, split)
    return rows.build(folder, images, folder.resolve().name)


def write_amfmn(table: PairTable, target: Path) -> None:
    """A folder with `<split>_caps.txt` and `<split>_filename.txt`, one line per pair in both."""
    with new_directory(target) as folder:
        for split in table.splits():
            if "/" in split or split.startswith("."):
                raise DataError(f"{table.name}: split {split!r} cannot name a file", fix="rename the split")
            pairs = table.split(split)
            for kind, column in (("caps", "caption"), ("filename", "image")):
                lines = _single_lines(pairs.column(column), f"{table.name} {split} {column}")
                (folder / f"{split}_{kind}.txt").write_bytes("".join(lines).encode())


def _single_lines(values: Iterable[str], where: str) -> Iterable[str]:
    for row, value in enumerate(values):
        if "\n" in value or "\r" in value:
            raise DataError(
                f"{where} row {row}: holds a line break", fix="write jsonl, parquet or csv instead"
            )
        yield f"{value}\n"


def read_rrsitr(files: list[Path], images: Path | None) -> PairTable:
    """The paths in these files are another computer's; only the images' own names are kept."""
    rows = PairRows(files[0])
    for path in files:
        image, caption, lines = _named_columns(path, "filename", "title")
        for number, fields in lines:
            name = PurePosixPath(fields[image].replace("\\", "/")).name
            rows.add(f"{path} line {number}", name, fields[caption], split_in_name(path.name) or "train")
    return rows.build(files[0].parent, images, dataset_name(files[0]))


def read_openclip(
    files: list[Path], images: Path | None, columns: tuple[str, str] | None = None
) -> PairTable:
    """CSV or TSV with a header; `columns` names the image and the caption column when they are unusual."""
    rows = PairRows(files[0])
    for path in files:
        header, lines = read_csv(path)
        if columns:
            _named_columns(path, *columns)
        for number, fields in lines:
            record = dict(zip(header, fields, strict=True))
            if columns:
                record = {"image": record.pop(columns[0]), "caption": record.pop(columns[1]), **record}
            add_record(rows, f"{path} line {number}", record, split_of_file(path))
    return rows.build(files[0].parent, images, dataset_name(files[0]))


def _named_columns(path: Path, image: str, caption: str) -> tuple[int, int, Iterable[tuple[int, list[str]]]]:
    header, lines = read_csv(path)
    for column in (image, caption):
        if column not in header:
            raise DataError(f"{path} line 1: no column {column!r}", fix=f"found {', '.join(header)}")
    return header.index(image), header.index(caption), lines


def write_openclip(table: PairTable, path: Path) -> None:
    """`filepath,title`, the other standard columns and further ones; tabs when the name ends in .tsv.

    A further column that names images or captions, too, is left out: a reader could not tell them apart.
    """
    names = ["image", "caption", "split", "pair_id", "image_id", "label"]
    known = {*names, *IMAGE_NAMES, *CAPTION_NAMES}
    names += [name for name in table.arrow.column_names if name not in known]
    separator = "\t" if path.suffix == ".tsv" else ","
    with atomic_output(path) as stream, io.StringIO() as text:
        writer = csv.writer(text, delimiter=separator)
        writer.writerow(["filepath", "title", *names[2:]])
        for row in iter_rows(table):
            writer.writerow(["" if row[name] is None else row[name] for name in names])
            stream.write(text.getvalue().encode())
            text.seek(text.truncate(0))


def read_folder(files: list[Path], images: Path | None) -> PairTable:
    """An image folder; names are relative to each `metadata.csv`, which may lie in a folder per split."""
    top = files[0].parent if len(files) == 1 else files[0].parent.parent
    rows = PairRows(files[0])
    for path in files:
        header, lines = read_csv(path)
        below = path.parent.relative_to(top)
        for number, fields in lines:
            record = dict(zip(header, fields, strict=True))
            where = f"{path} line {number}"
            if "file_name" not in record:
                raise DataError(f"{where}: no column 'file_name'", fix=f"found {', '.join(header)}")
            name = PurePosixPath(record["file_name"])
            if name.is_absolute() or ".." in name.parts:
                raise DataError(
                    f"{where}: {name} leaves the folder", fix="use names relative to metadata.csv"
                )
            add_record(rows, where, {**record, "file_name": str(below / name)}, split_of_file(path))
    return rows.build_below(images or top, rows.columns["image"], top.resolve().name)
