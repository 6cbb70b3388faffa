"""A text file beside each image, `a.jpg` and `a.txt`, as image generators are tuned on: a caption a line."""

from __future__ import annotations

from pathlib import Path

from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.pair_rows import PairRows, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_lines
from pmpguard.errors import DataError


def recognise_caption_files(file: Peek) -> bool:
    return file.ending == ".txt" and file.image_beside is not None


def read_caption_files(files: list[Path], images: Path | None) -> PairTable:
    """Images without a text, or with an empty one, are left out."""
    rows, top = PairRows(files[0]), common_folder(files)
    for path in files:
        image = Peek(path).image_beside
        if image is None:
            raise DataError(f"{path}: no image of this name lies beside it", fix="give another --format")
        name, split = image.relative_to(top).as_posix(), split_of_file(path)
        for number, line in read_lines(path):
            if line.strip():
                rows.add(f"{path} line {number}", name, line, split)
    return rows.build(top, images, top.resolve().name, likely=top)


CAPTION_FILES = Format(
    "a text file beside each image", recognise_caption_files, read_caption_files, several_files=True
)
