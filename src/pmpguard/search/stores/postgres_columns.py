"""The columns of a collection's table: places, times and typed attributes; and filters on them."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pmpguard.errors import ConfigError, require
from pmpguard.geo.distance import box_within, haversine_limit
from pmpguard.geo.footprints import Box, checked_box, parse_time
from pmpguard.search.filters import FIRST_TIME, LAST_TIME, UNKNOWN_TIME, FilterColumns, circle, time_limits
from pmpguard.search.query import Condition, Filters
from pmpguard.search.stores import FULL_TURN

FIXED = (
    "row",
    "item",
    "vector",
    "removed",
    "box_west",
    "box_south",
    "box_end",
    "box_north",
    "area",
    "moment",
)
PLACES = ("box_west", "box_south", "box_end", "box_north")
MAX_NAME_BYTES = 60  # PostgreSQL cuts names at 63
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
# How to make an area of west, south, end and north, in both kinds of servers.
POSTGIS = ("geometry", "ST_MakeEnvelope({}, {}, {}, {}, 4326)")
PLAIN = ("box", "box(point({}, {}), point({}, {}))")


def column_name(attribute: str) -> str:
    """The column of an attribute: its own name where that can be.

    >>> column_name("label"), column_name("row")
    ('label', 'attribute_634768dae1474506')
    """
    is_taken = attribute in FIXED or attribute.startswith("attribute_")
    if not is_taken and not set(attribute) & set("\0%") and len(attribute.encode()) <= MAX_NAME_BYTES:
        return attribute
    return f"attribute_{hashlib.sha256(attribute.encode()).hexdigest()[:16]}"


def column_type(kind: pa.DataType) -> str:
    """The type of PostgreSQL that holds a column's values as they are; text where there is none."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_uint64(kind):
        return "numeric"
    if pa.types.is_integer(kind):
        return "bigint"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "timestamptz"
    if pa.types.is_float32(kind):
        return "real"
    return "double precision" if pa.types.is_float64(kind) else "text"


READ: Mapping[str, Callable[[str], Any]] = {
    "numeric": int,
    "bigint": int,
    "real": float,
    "double precision": float,
    "boolean": {"true": True, "false": False}.__getitem__,
    "timestamptz": parse_time,
    "text": str,
}


def attribute_types(columns: FilterColumns) -> dict[str, str]:
    """Columns of the table and their types, for every attribute that can be filtered by."""
    return {
        column_name(name): column_type(columns.metadata.schema.field(name).type) for name in columns.names
    }


def fixed_types(area: tuple[str, str], dim: int) -> dict[str, str]:
    """The columns that every table has."""
    kind, make = area
    return {
        "row": "bigint PRIMARY KEY",
        "item": "text NOT NULL",
        "vector": f"halfvec({dim}) NOT NULL",
        "removed": "integer",  # the generation from which on it is not found any more
        **dict.fromkeys(PLACES, "double precision"),
        "area": f"{kind} GENERATED ALWAYS AS ({make.format(*PLACES)}) STORED",
        "moment": "timestamptz",
    }


def rows_of(columns: FilterColumns) -> Iterator[tuple[Any, ...]]:
    """Of every item: west, south, end, north, moment, then attributes as `attribute_types` has them."""
    west, south, east, north = columns.bounds
    known = np.logical_not(np.isnan(columns.bounds).any(0)).tolist()
    end = east + FULL_TURN * (west > east)
    sides = [
        [float(value) if is_known else None for value, is_known in zip(side, known, strict=True)]
        for side in (west, south, end, north)
    ]
    moments = _moments(columns.times)
    attributes = [_values(columns, name) for name in columns.names]
    return zip(*sides, moments, *attributes, strict=True)


def _moments(times: npt.NDArray[np.int64]) -> list[datetime.datetime | None]:
    return [
        None if time == UNKNOWN_TIME else EPOCH + datetime.timedelta(microseconds=int(time)) for time in times
    ]


def _values(columns: FilterColumns, name: str) -> list[Any]:
    column = columns.metadata[name]
    kind = column_type(column.type)
    if kind == "text":
        return columns.text(name).to_pylist()  # type: ignore[no-any-return]
    if kind == "timestamptz":
        return list(_moments(columns.moments(name)))
    return [None if value != value else value for value in column.to_pylist()]


@dataclass
class Conditions:
    """Conditions that must all hold, with the values they name."""

    parts: list[Any] = field(default_factory=list)  # psycopg.sql.Composable
    values: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sql: Any = require("psycopg.sql", "postgres")

    def add(self, text: str, *values: Any, **names: Any) -> None:
        self.parts.append(self.sql.SQL(text).format(**names))
        self.values += values

    def add_filters(self, filters: Filters, types: Mapping[str, str], area: tuple[str, str]) -> None:
        """The conditions of a search, on a table whose attributes have these types."""
        if filters.box is not None:
            self._add_box(checked_box(filters.box), area)
        around = circle(filters)
        if around is not None:
            self._add_box(box_within(*around), area)
            self._add_circle(*around)
        limits = time_limits(filters)
        if limits is not None:
            self._add_spans("moment", (limits,))
        for condition in filters.all_conditions:
            self._add_condition(condition, types)

    def _add_spans(self, time: str, spans: Sequence[tuple[int, int]], **names: Any) -> None:
        """Times within one of several spans of microseconds."""
        parts, values = [], []
        for span in spans:
            limits = [
                (limit, comparison)
                for limit, comparison, edge in zip(span, (">=", "<="), (FIRST_TIME, LAST_TIME), strict=True)
                if limit != edge
            ]
            words = [f"{time} IS NOT NULL", *(f"{time} {comparison} %s" for _, comparison in limits)]
            parts.append(f"({' AND '.join(words)})")
            values += [EPOCH + datetime.timedelta(microseconds=limit) for limit, _ in limits]
        self.add(f"({' OR '.join(parts)})", *values, **names)

    def _add_box(self, box: tuple[float, float, float, float], area: tuple[str, str]) -> None:
        """Boxes that meet this one. Longitudes are arcs of a circle, compared after a whole turn too.

        The area's index is quick and generous by a rounding; the plain columns are exact.
        """
        first, last = box[0], box[2] + FULL_TURN * (box[0] > box[2])
        envelope = area[1].format(*["%s::float8"] * 4)
        turned = f"(area && {envelope} AND box_west <= %s AND box_end >= %s)"
        self.add("box_south <= %s AND box_north >= %s", box[3], box[1])
        values = [
            (first - turn, box[1], last - turn, box[3], last - turn, first - turn)
            for turn in (-FULL_TURN, 0.0, FULL_TURN)
        ]
        self.add(f"({' OR '.join([turned] * 3)})", *(value for some in values for value in some))

    def _add_circle(self, place: Box, radius: float) -> None:
        """Boxes within `radius` kilometres of a place: `pmpguard.geo.distance` in SQL."""
        first, last = place[0], place[2] + FULL_TURN * (place[0] > place[2])
        bottom, top = (f"{math.radians(side)!r}::float8" for side in (place[1], place[3]))
        gaps = [
            f"GREATEST(0, box_west + {turn!r} - {last!r}, {first!r} - box_end - {turn!r})"
            for turn in (-FULL_TURN, 0.0, FULL_TURN)
        ]
        pairs = [(corner, other) for corner in (bottom, top) for other in ("low", "high")]
        pairs += [(corner, _nearest(corner, "low", "high")) for corner in (bottom, top)]
        pairs += [(corner, _nearest(corner, bottom, top)) for corner in ("low", "high")]
        apart = [
            f"sin(({one} - {other}) / 2) ^ 2 + cos({one}) * cos({other}) * sin(gap / 2) ^ 2"
            for one, other in pairs
        ]
        self.add(
            f"EXISTS (SELECT FROM (SELECT radians(LEAST({', '.join(gaps)})::float8) AS gap, "
            "radians(box_south) AS low, radians(box_north) AS high) AS sides "
            f"WHERE LEAST({', '.join(apart)}) <= %s)",
            haversine_limit(radius),
        )

    def _add_condition(self, condition: Condition, types: Mapping[str, str]) -> None:
        name = column_name(condition.column)
        kind, column = types[name], self.sql.Identifier(name)
        if condition.spans:
            time = "{column}" if kind == "timestamptz" else "{column}::timestamptz"
            self._add_spans(time, condition.spans, column=column)
        elif condition.comparison == "=":
            allowed = [value for value in map(_reader(kind), condition.values) if value is not None]
            self.add(f"{{column}} = ANY(%s::{kind}[])", allowed, column=column)
        elif kind == "text":  # some dataset's own way of writing numbers; float8 has no place for 1e999
            number = f"CASE WHEN {{column}} ~ '{NUMBER}' THEN {{column}}::numeric END"
            self.add(
                f"{number} {condition.comparison} %s::float8::numeric",
                float(condition.values[0]),
                column=column,
            )
        else:
            cast = "::int" if kind == "boolean" else ""
            self.add(
                f"{{column}}{cast}::float8 {condition.comparison} %s::float8",
                float(condition.values[0]),
                column=column,
            )

    @property
    def where(self) -> Any:
        return self.sql.SQL(" AND ").join(self.parts)


def _nearest(latitude: str, low: str, high: str) -> str:
    """Where between two latitudes a meridian `gap` away comes nearest to a point of this latitude."""
    nearest = f"atan2(sin({latitude}), cos({latitude}) * cos(gap))"
    return f"LEAST(GREATEST({nearest}, {low}), {high})"


def _reader(kind: str) -> Callable[[str], Any]:
    """Reads a value that a column of this type may hold, None where it cannot hold it."""

    def read(text: str) -> Any:
        try:
            value = READ[kind](text)
        except (ValueError, KeyError, OverflowError, ConfigError):
            return None
        is_too_large = kind == "bigint" and not -(2**63) <= value < 2**63
        return None if is_too_large or "\0" in text else value

    return read
