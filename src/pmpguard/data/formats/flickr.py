"""Flickr8k and Flickr30k: `results_20130124.token` and `results.csv`.

A line is `1000092795.jpg#0<TAB>Two young guys` or `1000092795.jpg| 0| Two young guys`, in which one published
line lacks its second bar. Flickr8k lists its splits beside that: `Flickr_8k.trainImages.txt`, of names.
"""

from __future__ import annotations

import re
from pathlib import Path

from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.pair_rows import PairRows, dataset_name, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_lines
from pmpguard.errors import DataError

_TOKEN = re.compile(r"(?P<image>[^\t]+?)#\d+\t(?P<caption>.*)")
_BARS = re.compile(r"(?P<image>[^|]+?)\s*\|\s*\d+\s*\|?\s*(?P<caption>.*)")
_BARS_HEADER = re.compile(r"image_name\s*\|\s*comment_number\s*\|\s*comment\s*")


def recognise_flickr(file: Peek) -> bool:
    if file.ending not in (".token", ".csv", ".txt") or ".lemma." in file.path.name:
        return False
    first = file.head.partition("\n")[0].rstrip("\r")
    return (_TOKEN if file.ending != ".csv" else _BARS_HEADER).fullmatch(first) is not None


def read_flickr(files: list[Path], images: Path | None) -> PairTable:
    rows = PairRows(files[0])
    for path in files:
        split_of = _listed_splits(path.parent)
        split = "unlisted" if split_of else split_of_file(path)
        for number, line in read_lines(path):
            if not line.strip() or (number == 1 and _BARS_HEADER.fullmatch(line)):
                continue
            found = _TOKEN.fullmatch(line) or _BARS.fullmatch(line)
            if found is None:
                raise DataError(
                    f"{path} line {number}: neither IMAGE#NUMBER<TAB>CAPTION nor IMAGE|NUMBER|CAPTION",
                    fix="correct the line",
                )
            image = found["image"]
            rows.add(f"{path} line {number}", image, found["caption"], split_of.get(image, split))
    return rows.build(files[0].parent, images, dataset_name(files[0]))


def _listed_splits(folder: Path) -> dict[str, str]:
    """The splits of the images that are listed beside the captions."""
    found = {}
    for split, called in (("train", "train"), ("val", "dev"), ("test", "test")):
        for path in folder.glob(f"*.{called}Images.txt"):
            found.update({name.strip(): split for _, name in read_lines(path)})
    return found


FLICKR = Format(".token or .csv of Flickr8k and Flickr30k", recognise_flickr, read_flickr)
