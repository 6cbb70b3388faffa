"""Columns of texts that are numbers or times.

A text file knows no types: a column of it holds numbers where every value is written as one, and times where
every value is written as ISO 8601. `007` stays text, for it is a name.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.data.pairs import TEXT

UNKNOWN = ("", "NA", "N/A", "NaN", "nan", "null", "None")
WHOLE = r"^[+-]?(0|[1-9][0-9]{0,17})$"
NUMBER = r"^[+-]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?$"
DIGIT = r"[0-9]"
DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
ZONE = r"(Z|[+-][0-9]{2}:[0-9]{2})$"
MOMENT = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?$"
)


def with_types(table: pa.Table) -> pa.Table:
    """A table with its further columns of texts as numbers or times, where all of one are written so."""
    for place, name in enumerate(table.column_names):
        if name not in TEXT and pa.types.is_string(table.schema.field(name).type):
            table = table.set_column(place, name, typed(table[name]))
    return table


def typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as whole numbers, numbers, days or moments; as they are where some are something else.

    >>> typed(pa.chunked_array([["1", "20", ""]])).type, typed(pa.chunked_array([["1", "007"]])).type
    (DataType(int64), DataType(string))
    """
    known = pc.if_else(pc.is_in(column, value_set=pa.array(UNKNOWN)), pa.scalar(None, pa.string()), column)
    if known.null_count == len(known):
        return column
    for pattern, kind in ((WHOLE, pa.int64()), (NUMBER, pa.float64()), (DAY, pa.date32())):
        if _all_match(known, pattern) and (kind != pa.float64() or _all_match(known, DIGIT)):
            return _cast(column, known, kind)
    if _all_match(known, MOMENT):
        return _cast(column, known, pa.timestamp("us", "UTC" if _all_match(known, ZONE) else None))
    return column


def _cast(column: pa.ChunkedArray, known: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return pc.cast(known, kind)
    except pa.ArrowInvalid:  # no such day, or of mixed zones
        return column


def _all_match(column: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(column, pattern)).as_py())
