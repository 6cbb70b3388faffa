"""One JSON object per line, or a list of them, with the fields of any table; `caption` may be a list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
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

LINES = (".jsonl", ".ndjson")


def recognise_jsonl(file: Peek) -> bool:
    """By its ending, or a `.json` file that begins with an object whose fields are those of a pair."""
    return file.ending in LINES or (
        file.is_json and file.names.fit(list(first_record(file))) and file.image_beside is None
    )


def first_record(file: Peek) -> Mapping[str, Any]:
    """The first object of lines or of a list; an empty one where there is none."""
    try:
        if file.head.startswith("{"):
            record = json.loads(file.head.partition("\n")[0])
        else:
            begun = re.match(r"\[\s*(?=\{)", file.head)
            record = {} if begun is None else json.JSONDecoder().raw_decode(file.head, begun.end())[0]
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def read_jsonl(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    """Image names are relative to the folder of their file, where files lie in folders named after splits."""
    rows, top = PairRows(files[0]), common_folder(files)
    for path in files:
        add_records(rows, path, top, names, json_records(path))
    return rows.build(top, images, dataset_name(files[0]))


def json_records(path: Path) -> Iterator[tuple[str, Any]]:
    """What a file holds, a line each or in a list, with its place."""
    require_content(path)
    if path.suffix.lower() == ".json" and Peek(path).head.startswith("["):
        for number, record in enumerate(list_of(read_json(path), str(path))):
            yield f"{path} [{number}]", record
        return
    for number, line in read_lines(path):
        if line.strip():
            yield f"{path} line {number}", parse_json(line, f"{path} line {number}")


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
    endings=LINES,
    names_columns=True,
    keeps_columns=True,
)
