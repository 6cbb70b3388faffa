"""One JSON object per line, with the fields of any table of pairs; `caption` may be a list."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.pair_rows import PairRows, add_record, dataset_name, iter_rows, json_value, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import parse_json, read_lines
from pmpguard.errors import DataError
from pmpguard.files import atomic_output


def recognise_jsonl(file: Peek) -> bool:
    if file.ending in (".jsonl", ".ndjson"):
        return True
    first = file.head.partition("\n")[0] if file.is_json else ""
    return re.match(r"\{.*\}\s*$", first) is not None and '"image"' in first and '"caption"' in first


def read_jsonl(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    """Image names are relative to the folder of their file, where files lie in folders named after splits."""
    rows, top = PairRows(files[0]), common_folder(files)
    for path in files:
        add_json_lines(rows, path, top, names)
    return rows.build(top, images, dataset_name(files[0]))


def add_json_lines(rows: PairRows, path: Path, top: Path, names: ColumnNames) -> None:
    split, below = split_of_file(path), path.parent.relative_to(top).as_posix()
    for number, line in read_lines(path):
        if line.strip():
            where = f"{path} line {number}"
            record = parse_json(line, where)
            if not isinstance(record, Mapping):
                raise DataError(f"{where}: not an object", fix='write {"image": ..., "caption": ...}')
            add_record(rows, where, record, split, names, "" if below == "." else below)


def write_jsonl(table: PairTable, path: Path) -> None:
    """One object a line with every column; unknown values are left out."""
    with atomic_output(path) as stream:
        for row in iter_rows(table):
            known = {name: value for name, value in row.items() if value is not None}
            stream.write(json.dumps(known, ensure_ascii=False, default=json_value).encode() + b"\n")


JSONL = Format(
    "one JSON object per line",
    recognise_jsonl,
    read_jsonl,
    write_jsonl,
    endings=(".jsonl", ".ndjson"),
    names_columns=True,
    keeps_columns=True,
)
