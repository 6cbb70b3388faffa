"""CSV of RRSITR: `filename,title` with foreign absolute paths.

One file per split, and `<DATASET>-NC-02.csv` for training at mismatch rate 0.2.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.pair_rows import PairRows, dataset_name, split_in_name
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_csv

COLUMNS = ColumnNames.of({"image": "filename", "caption": "title"})


def recognise_rrsitr(file: Peek) -> bool:
    return not file.names and {"filename", "title"} <= set(file.header)


def read_rrsitr(files: list[Path], images: Path | None) -> PairTable:
    """The paths in these files are another computer's; only the images' own names are kept."""
    rows = PairRows(files[0])
    for path in files:
        header, lines = read_csv(path)
        COLUMNS.find(header, f"{path} line 1")
        image, caption = header.index("filename"), header.index("title")
        for number, fields in lines:
            name = PurePosixPath(fields[image].replace("\\", "/")).name
            rows.add(f"{path} line {number}", name, fields[caption], split_in_name(path.name) or "train")
    return rows.build(files[0].parent, images, dataset_name(files[0]))


RRSITR = Format("CSV of RRSITR: filename,title", recognise_rrsitr, read_rrsitr)
