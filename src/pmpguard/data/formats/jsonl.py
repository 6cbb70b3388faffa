"""One JSON object per line, or a list of them, with the fields of any table; `caption` may be a list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.formats.json_fields import list_of
from pmpguard.data.pair_rows import PairRows, add_record, dataset_name, iter_rows, json_value, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import parse_json, read_json, read_lines, require_content
from pmpguard.errors import DataError
from pmpguard.files import atomic_output


def recognise_jsonl(file: Peek) -> bool:
    """By its ending, or a `.json` file that begins with an object whose fields are those of a pair."""
    if file.ending in (".jsonl", ".ndjson"):
        return True
    if not file.is_json:
        return False
    first = file.head.partition("\n")[0] if file.head.startswith("{") else _first_item(file.head)
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and file.names.fit(list(record))


def _first_item(head: str) -> str:
    """The first object of a list, as text."""
    begun = re.match(r"\[\s*(?=\{)", head)
    if begun is None:
        return ""
    try:
        record, _ = json.JSONDecoder().raw_decode(head, begun.end())
    except (ValueError, RecursionError):
        return ""
    return json.dumps(record)


def read_jsonl(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    """Image names are relative to the folder of their file, where files lie in folders named after splits."""
    rows, top = PairRows(files[0]), common_folder(files)
    for path in files:
        if path.suffix.lower() == ".json" and _is_list(path):
            records = list_of(read_json(path), str(path))
            add_records(rows, path, top, names, ((f"{path} [{n}]", each) for n, each in enumerate(records)))
        else:
            add_json_lines(rows, path, top, names)
    return rows.build(top, images, dataset_name(files[0]))


def _is_list(path: Path) -> bool:
    require_content(path)
    return Peek(path).head.startswith("[")


def add_json_lines(rows: PairRows, path: Path, top: Path, names: ColumnNames) -> None:
    lines = ((f"{path} line {number}", line) for number, line in read_lines(path) if line.strip())
    add_records(rows, path, top, names, ((where, parse_json(line, where)) for where, line in lines))


def add_records(
    rows: PairRows, path: Path, top: Path, names: ColumnNames, records: Iterable[tuple[str, Any]]
) -> None:
    """Add the pairs of objects, each with its place."""
    split, below = split_of_file(path), path.parent.relative_to(top).as_posix()
    for where, record in records:
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
    "one JSON object per line, or a list of them",
    recognise_jsonl,
    read_jsonl,
    write_jsonl,
    endings=(".jsonl", ".ndjson"),
    names_columns=True,
    keeps_columns=True,
)
