"""The caption files of AMFMN and SWAN.

`<split>_caps.txt` has a caption a line, and `<split>_filename.txt` an image's name for each caption or for
each run of captions. Where `<split>_caps_verify.txt` exists, it is that split and the plain file is training
and validation together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.formats.shards import check_split_name
from pmpguard.data.pair_rows import PairRows
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_lines
from pmpguard.errors import DataError
from pmpguard.files import new_directory

CAPTION_FILE = re.compile(r"(?P<split>.+)_caps(?P<verify>_verify)?\.txt")


def recognise_amfmn(file: Peek) -> bool:
    return CAPTION_FILE.fullmatch(file.path.name) is not None


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
            check_split_name(table, split)
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


AMFMN = Format(
    "<split>_caps.txt and <split>_filename.txt of AMFMN and SWAN",
    recognise_amfmn,
    read_amfmn,
    write_amfmn,
    several_files=True,
)
