"""What a search found as flat rows, one plain value a column: what map programs and spreadsheets expect."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pmpguard.data.shards import split_reference
from pmpguard.files import plain_value
from pmpguard.safe_text import spreadsheet_text

_OWN = ("rank", "id", "score", "probability", "caption", "image")


class FoundImage(Protocol):
    """What a search found, as far as maps and catalogues ask; `metadata` may hold bounds, crs and time."""

    @property
    def id(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def probability(self) -> float | None: ...
    @property
    def caption(self) -> str | None: ...
    @property
    def image(self) -> str | None: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


def hit_rows(hits: Sequence[FoundImage]) -> list[dict[str, Any]]:
    """A row for every hit, best first; rows may have different columns.

    A column of the metadata that has a name taken here is called `metadata_NAME`. Lists and mappings become
    JSON. An image that lies in a parquet file is named by `parquet_url` and `parquet_row` too, as Major TOM
    does.
    """
    return [_row(hit, rank) for rank, hit in enumerate(hits, start=1)]


def _row(hit: FoundImage, rank: int) -> dict[str, Any]:
    known = (rank, hit.id, hit.score, hit.probability, hit.caption, hit.image)
    row = dict(zip(_OWN, map(plain_value, known), strict=True))
    for name, value in {**parquet_place(hit.image), **plain_value(hit.metadata)}.items():
        flat = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
        row[f"metadata_{name}" if name in _OWN else name] = flat
    return row


def parquet_place(image: str | None) -> dict[str, Any]:
    """Where an image lies inside a parquet file; nothing of one that is a file by itself.

    >>> parquet_place("part-0.parquet#image/17"), parquet_place("a.png")
    ({'parquet_url': 'part-0.parquet', 'parquet_row': 17}, {})
    """
    file, member = split_reference(image or "")
    row = (member or "").rpartition("/")[2]
    return {"parquet_url": file, "parquet_row": int(row)} if file.endswith(".parquet") and row else {}


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of all rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def hits_to_csv(hits: Sequence[FoundImage]) -> str:
    """The hits as CSV with a header. No text can be taken for a formula: one that could begins with '."""
    rows = hit_rows(hits)
    names = columns_of(rows) or list(_OWN)
    with io.StringIO() as stream:
        writer = csv.writer(stream)
        writer.writerow(map(_cell, names))
        writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
        return stream.getvalue()


def _cell(value: Any) -> Any:
    return spreadsheet_text(value) if isinstance(value, str) else "" if value is None else value
