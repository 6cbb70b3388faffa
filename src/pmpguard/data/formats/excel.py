"""The first sheet of an Excel workbook, with a header row; columns are found as in CSV."""

from __future__ import annotations

import datetime
import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmpguard.data.column_names import ColumnNames
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.pair_rows import PairRows, add_record, dataset_name, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import different, require_content
from pmpguard.errors import DataError, MissingExtraError, require

log = logging.getLogger("pmpguard")
ENDINGS = (".xlsx", ".xlsm")
MAX_UNPACKED_BYTES = 1 << 30


def recognise_excel(file: Peek) -> bool:
    """A workbook's columns are not looked at: `read_excel` names those that are missing."""
    return file.ending in ENDINGS and not file.path.name.startswith("~$")  # of a workbook that is open


def read_excel(files: list[Path], images: Path | None, names: ColumnNames) -> PairTable:
    rows, top = PairRows(files[0]), common_folder(files)
    for path in files:
        lines = _first_sheet(path)
        first = next(lines, None)
        if first is None:
            raise DataError(f"{path}: the first sheet is empty", fix="put the pairs on the first sheet")
        header = different([str(cell).strip() if cell is not None else "" for cell in first[1]])
        names.find([name for name in header if name], f"{path} row {first[0]}")
        for number, cells in lines:
            record = {name: cell for name, cell in zip(header, cells, strict=False) if name}
            if any(cell is not None for cell in record.values()):
                add_record(rows, f"{path} row {number}", record, split_of_file(path), names)
    return rows.build(top, images, dataset_name(files[0]))


def _first_sheet(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """(row number, cells) of the rows that hold something."""
    require_content(path)
    openpyxl = require("openpyxl", "excel")
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            raise DataError(f"{path}: {unpacked:,} bytes unpacked", fix="save it as CSV")
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        if len(book.worksheets) > 1:
            log.warning(f"{path}: only the first of {len(book.worksheets)} sheets is read")
        for number, cells in enumerate(book.worksheets[0].iter_rows(values_only=True), 1):
            if any(cell is not None for cell in cells):
                yield number, [_plain(cell) for cell in cells]
    except (DataError, MissingExtraError):
        raise
    except Exception as error:  # of a library that raises whatever a damaged file leads it to
        why = f"{type(error).__name__}: {error!s:.200}"
        raise DataError(f"{path}: not a readable workbook ({why})", fix="save it again, or as CSV") from error


def _plain(cell: Any) -> Any:
    """Dates as text; numbers stay numbers."""
    return cell.isoformat() if isinstance(cell, datetime.date | datetime.time) else cell


EXCEL = Format(
    "Excel workbook, first sheet", recognise_excel, read_excel, names_columns=True, keeps_columns=True
)
