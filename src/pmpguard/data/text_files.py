"""Text files from strangers: UTF-8 lines, CSV and JSON read with errors that name the line.

Every reader of a text format goes through here, so an invalid byte, an endless line or broken JSON gives the
same kind of message everywhere.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import logging
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pmpguard.errors import DataError
from pmpguard.remote import is_remote

log = logging.getLogger("pmpguard")
MAX_LINE_BYTES = 1_000_000
SEPARATORS = ",;|"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".gif", ".jp2")
IMAGE_SUFFIXES = (*_SUFFIXES, *(suffix.upper() for suffix in _SUFFIXES))
_BOM = b"\xef\xbb\xbf"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its ending); only `\\n` and `\\r\\n` end a line."""
    return ((number, line.removesuffix("\n").removesuffix("\r")) for number, line in _whole_lines(path))


def _whole_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    require_content(path)
    if encoding == "utf-16":
        yield from _wide_lines(path)
        return
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
            yield number, decode(line, f"{path} line {number}", encoding)


def _wide_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The same of Excel's "Unicode text", whose line breaks are two bytes."""
    number = 0
    try:
        with path.open(encoding="utf-16", newline="\n") as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise DataError(f"{path} line {number}: longer than {MAX_LINE_BYTES:,} characters")
                yield number, line
    except UnicodeError as error:
        raise DataError(
            f"{path} line {number + 1}: not valid UTF-16", fix="save the file as UTF-8"
        ) from error


def decode(data: bytes, where: str, encoding: str = "utf-8") -> str:
    """Bytes as text, or an error naming the place and the byte."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not valid UTF-8 (byte 0x{data[error.start]:02x} at position {error.start})",
            fix="save the file as UTF-8",
        ) from error


def csv_encoding(path: Path) -> str:
    """`utf-16` by its first bytes; `cp1252` where some line is not UTF-8, and no line needs to be; `utf-8`.

    A file with lines of both kinds is damaged UTF-8, and read as such, with an error for the damaged line.
    """
    status = path.stat()
    return _csv_encoding(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _csv_encoding(path: Path, modified: int, size: int) -> str:
    foreign = False
    with path.open("rb") as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        stream.seek(0)
        while line := stream.readline(MAX_LINE_BYTES + 1):
            if line.isascii():
                continue
            try:
                line.decode("utf-8")
                return "utf-8"
            except UnicodeDecodeError:
                foreign = True
    if foreign:
        log.warning(f"{path}: not UTF-8, read as Windows-1252; save it as UTF-8 if letters look wrong")
    return "cp1252" if foreign else "utf-8"


def read_csv(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header and an iterator of (line number, fields).

    A tab in the first line separates fields, else the first comma, semicolon or bar in it. Where a field of
    the first line is an image's name, there is no header: columns are called "1", "2" and so on. A first line
    `sep=;`, which Excel asks for, names the separator.
    """
    first, rows = read_first_row(path), _csv_rows(path)
    if any(looks_like_image(field) for field in first):
        return [str(number) for number in range(1, len(first) + 1)], rows
    next(rows)
    return different([name.strip() for name in first]), rows


def different(names: Sequence[str]) -> list[str]:
    """Column names without repetition.

    >>> different(["image", "caption", "caption"])
    ['image', 'caption', 'caption_2']
    """
    result: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        result.append(next(each for each in itertools.chain([name], numbered) if each not in result))
    return result


def read_first_row(path: Path) -> list[str]:
    """The fields of the first line that is not empty."""
    found = next(_csv_rows(path), None)
    if found is None:
        raise DataError(f"{path}: holds no rows", fix="check that this is the right file")
    return found[1]


def looks_like_image(field: str) -> bool:
    """
    >>> looks_like_image("a/1.JPG"), looks_like_image("file_name")
    (True, False)
    """
    return field.strip().lower().endswith(IMAGE_SUFFIXES)


def is_numbered(header: list[str]) -> bool:
    """Whether a header stands for one that is not there."""
    return header[:1] == ["1"] and header == [str(number) for number in range(1, len(header) + 1)]


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    encoding = csv_encoding(path) if path.is_file() else "utf-8"
    lines = (line for _, line in _whole_lines(path, encoding))
    first = next(lines)
    asked = re.fullmatch(r"sep=([,;|\t])\s*", first)
    separator = "\t" if "\t" in first else next((mark for mark in first if mark in SEPARATORS), ",")
    separator, kept = (asked[1], []) if asked else (separator, [first])
    reader = csv.reader(itertools.chain(kept, lines), delimiter=separator, strict=True)
    skipped = 1 - len(kept)
    start, width = 1 + skipped, 0
    try:
        for fields in reader:
            width = width or len(fields)
            if fields and len(fields) != width:
                raise DataError(
                    f"{path} line {start}: {len(fields)} fields where the header has {width}",
                    fix="quote fields that contain the separator",
                )
            if fields:
                yield start, fields
            start = reader.line_num + skipped + 1
    except csv.Error as error:
        raise DataError(f"{path} line {start}: {error}", fix="quote fields as CSV asks") from error


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
        raise DataError(f"{where}: JSON nested too deeply", fix="write flat objects") from error
    except ValueError as error:  # a number of thousands of digits
        raise DataError(
            f"{where}: not readable as JSON ({error!s:.100})", fix="correct the number"
        ) from error


def require_content(path: Path) -> None:
    """Refuse a path that is no file, and an empty file."""
    if is_remote(path):
        return
    if not path.is_file():
        raise DataError(f"{path}: file not found", fix="check the path")
    if not path.stat().st_size:
        raise DataError(f"{path}: file is empty", fix="download or write it again")
