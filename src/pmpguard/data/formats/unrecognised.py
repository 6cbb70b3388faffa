"""What to say of a path that no format reads: what is there, and the option or step that would read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pmpguard.data.column_names import OPTION, ColumnNames
from pmpguard.data.formats.format import Peek
from pmpguard.data.formats.jsonl import first_record
from pmpguard.data.shards import is_shard
from pmpguard.data.text_files import looks_like_image
from pmpguard.errors import DataError

MAX_LISTED = 12
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst", ".7z", ".rar")
OTHERS = {
    **dict.fromkeys(PACKED, "unpack it and give what was in it"),
    **dict.fromkeys((".xls", ".xlsb", ".ods", ".numbers"), "save it as .xlsx or .csv"),
    **dict.fromkeys(
        (".pkl", ".pickle", ".pt", ".pth"), "a pickle can run code and is not opened; write parquet"
    ),
}

_RECORDS = re.compile(r"\[|\{.*\n\s*\{")  # a list, or an object a line


def not_recognised(
    path: Path, files: list[Path], format: str | None, names: ColumnNames, formats: Sequence[str]
) -> DataError:
    """The error for a path with these files, none of which is annotations that a format knows."""
    said = f"{path}: format not recognised{f' as {format}' if format else ''}"
    for file in files:
        if not file.is_file():
            continue
        error = _of_file(said, file, names, formats, alone=file == path)
        if error is not None:
            return error
    if _holds_images(files):
        return DataError(
            f"{said}; found images without captions{_archives_only(path)}",
            fix="captions go into a metadata.csv (file_name,text) beside them, or into a .txt beside each; "
            "images alone are taken by pmpguard up, embed and tile",
        )
    listed = ", ".join(file.name for file in files[:MAX_LISTED]) or "nothing"
    advice = next((OTHERS[end] for file in files if (end := file.suffix.lower()) in OTHERS), None)
    return DataError(
        f"{said}; found {listed}{_archives_only(path)}",
        fix=advice or f"say which with --format, one of {', '.join(formats)}; name columns with {OPTION}",
    )


def _of_file(
    said: str, file: Path, names: ColumnNames, formats: Sequence[str], alone: bool
) -> DataError | None:
    """What one file says by itself: its columns, its members or its fields."""
    peek = Peek(file, names)
    columns = peek.header or (list(first_record(peek)) if peek.is_json and _RECORDS.match(peek.head) else [])
    if columns and (peek.ending != ".txt" or alone) and not names.fit(columns):
        try:
            names.find(columns, "")
        except DataError as error:
            return DataError(f"{said}; {file.name}{error.message}", fix=error.fix)
    if is_shard(file) and peek.members:
        members = ", ".join(f".{ending}" for ending in sorted(peek.members)[:MAX_LISTED])
        return DataError(
            f"{said}; {file.name} holds members {members}{_archives_only(file)}",
            fix="a shard has an image and a .txt, .caption or .json for each sample; others are named by "
            "--columns caption=ENDING",
        )
    if peek.is_json:
        keys = list(dict.fromkeys(re.findall(r'"([^"\\]{1,60})"\s*:', peek.head)))
        return DataError(
            f"{said}; {file.name} has the fields {', '.join(keys[:MAX_LISTED]) or 'of no object'}",
            fix=f"say which with --format, one of {', '.join(formats)}, or write jsonl or csv",
        )
    return None


def _holds_images(files: Sequence[Path]) -> bool:
    """Whether images lie there, or one folder further down."""
    folders = [file for file in files[:MAX_LISTED] if file.is_dir() and not file.name.startswith(".")]
    inner = (file for folder in folders for file, _ in zip(folder.iterdir(), range(MAX_LISTED), strict=False))
    return any(looks_like_image(file.name) for file in (*files, *inner))


def _archives_only(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    archives = [file.name for file in sorted(folder.glob("*.tar"))] if folder.is_dir() else []
    return (
        f" ({archives[0]} holds images without captions: extract it beside the annotations)"
        if archives
        else ""
    )
