"""Text files from strangers: UTF-8 lines, CSV and JSON read with errors that name the line.

Every reader of a text format goes through here, so an invalid byte, an endless line or broken JSON gives the
same kind of message everywhere.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmpguard.errors import DataError

MAX_LINE_BYTES = 1_000_000
_BOM = b"\xef\xbb\xbf"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its ending); only `\\n` and `\\r\\n` end a line."""
    return ((number, line.removesuffix("\n").removesuffix("\r")) for number, line in _whole_lines(path))


def _whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    require_content(path)
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{path} line {number}: longer than {MAX_LINE_BYTES:,} bytes",
                    fix="check that the file is text with one record per line",
                )
            if number == 1:
                line = line.removeprefix(_BOM)
            yield number, decode(line, f"{path} line {number}")


def decode(data: bytes, where: str) -> str:
    """Bytes as UTF-8 text, or an error naming the place and the byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not valid UTF-8 (byte 0x{data[error.start]:02x} at position {error.start})",
            fix="save the file as UTF-8",
        ) from error


def read_csv(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header and an iterator of (line number, fields); a tab in the header means tab-separated."""
    first = next(read_lines(path))[1]
    reader = csv.reader(
        (line for _, line in _whole_lines(path)), delimiter="\t" if "\t" in first else ",", strict=True
    )
    try:
        header = [name.strip() for name in next(reader)]
    except csv.Error as error:
        raise _csv_fault(path, 1, error) from error
    return header, _csv_rows(path, reader, len(header))


def _csv_rows(path: Path, reader: Any, width: int) -> Iterator[tuple[int, list[str]]]:
    start = reader.line_num + 1
    try:
        for fields in reader:
            if fields and len(fields) != width:
                raise DataError(
                    f"{path} line {start}: {len(fields)} fields where the header has {width}",
                    fix="quote fields that contain the separator",
                )
            if fields:
                yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        raise _csv_fault(path, start, error) from error


def _csv_fault(path: Path, line: int, error: csv.Error) -> DataError:
    return DataError(f"{path} line {line}: {error}", fix="quote fields as CSV asks")


def read_json(path: Path) -> Any:
    """The whole file as JSON."""
    require_content(path)
    return parse_json(decode(path.read_bytes().removeprefix(_BOM), str(path)), str(path))


def parse_json(text: str, where: str) -> Any:
    """Parsed JSON, or an error naming the place, line and column."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON ({error.msg}, line {error.lineno} column {error.colno})",
            fix="correct or download the file again",
        ) from error
    except RecursionError as error:
        raise DataError(f"{where}: JSON nested too deeply") from error


def require_content(path: Path) -> None:
    """Refuse a path that is no file, and an empty file."""
    if not path.is_file():
        raise DataError(f"{path}: file not found", fix="check the path")
    if not path.stat().st_size:
        raise DataError(f"{path}: file is empty", fix="download or write it again")
