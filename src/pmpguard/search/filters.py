"""Which items a query may find: boxes, times and metadata columns as one mask over the rows."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.errors import ConfigError
from pmpguard.geo.distance import box_within, checked_radius, distances
from pmpguard.geo.footprints import (
    Box,
    boxes_meet,
    checked_box,
    in_utc,
    parse_period,
    parse_time,
    parse_time_range,
)
from pmpguard.search.query import Comparison, Condition, Filters
from pmpguard.search.sources import FILE_STAMP

Mask = npt.NDArray[np.bool_]
MOST_VALUES = 100  # distinct values of a column that are worth a list
UNFILTERED = frozenset({"id", "image", "image_id", "pair_id", "caption", "bounds", "geometry", FILE_STAMP})
UNLISTED = frozenset({"time", "row", "column"})  # filtered by other means, or hardly ever
BOUNDS, POINT = ("west", "south", "east", "north"), ("lon", "lat")
UNKNOWN_TIME = np.iinfo(np.int64).min
FIRST_TIME, LAST_TIME = UNKNOWN_TIME + 1, np.iinfo(np.int64).max  # microseconds that no limit excludes
_CONDITION = re.compile(r"([^=<>]*[^=<>\s])\s*(<=|>=|=|<|>)\s*(.*)", re.DOTALL)
_NEXT_CONDITION = re.compile(r",(?=[^,=<>]*[^,=<>\s]\s*[=<>])")
_COMPARED = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


def parse_where(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Conditions as people write them, all of which must hold.

    Several may be written as one text, with commas between them; a column named twice in one may have either
    value. A comma that no further condition follows belongs to the value.

    >>> parse_where(["label=airport,label=port", "cloud_cover<20"])[0].values
    ('airport', 'port')
    """
    conditions: list[Condition] = []
    for text in texts:
        values: dict[str, tuple[str, ...]] = {}
        for part in filter(str.strip, _NEXT_CONDITION.split(text)):
            condition = parse_condition(part)
            if condition.comparison == "=":
                values[condition.column] = values.get(condition.column, ()) + condition.values
            else:
                conditions.append(condition)
        conditions += [Condition(name, "=", allowed) for name, allowed in values.items()]
    return tuple(conditions)


def parse_condition(text: str) -> Condition:
    """A single condition.

    >>> parse_condition("cloud_cover <= 20")
    Condition(column='cloud_cover', comparison='<=', values=('20',))
    """
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        fix = "write column=value, or column<number (also <=, > and >=)"
        raise ConfigError(f"condition {text[:200]!r} has no column", fix=fix)
    name, value = found[1], found[3]
    comparison: Comparison = found[2]  # type: ignore[assignment]  # the pattern allows no other
    if comparison != "=" and not np.isfinite(_number(value)) and _time(value) == UNKNOWN_TIME:
        fix = "write column<20, or column<2024-05-01"
        raise ConfigError(f"condition {text[:200]!r}: {value[:100]!r} is no number and no time", fix=fix)
    return Condition(name, comparison, (value,))


def microseconds(moment: datetime.datetime) -> int:
    """Since 1970, exactly."""
    return (in_utc(moment) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(
        microseconds=1
    )


def time_limits(filters: Filters) -> tuple[int, int] | None:
    """First and last microsecond allowed, None when any time is, and none too."""
    if filters.start is None and filters.stop is None:
        return None
    first, last = parse_time_range(filters.start, filters.stop)
    return (
        int(FIRST_TIME) if first is None else microseconds(first),
        int(LAST_TIME) if last is None else microseconds(last),
    )


def circle(filters: Filters) -> tuple[Box, float] | None:
    """The place and the kilometres around it that may be found, None where it may be anywhere."""
    if filters.near is None and filters.radius is not None:
        raise ConfigError("a radius without a place", fix="say near what (--near LON,LAT)")
    if filters.near is not None:
        checked_box(filters.near)
    if filters.near is None or filters.radius is None:
        return None
    return filters.near, checked_radius(filters.radius)


def allowed_spans(condition: Condition) -> tuple[tuple[int, int], ...]:
    """The microseconds a condition on times allows, of which any will do; a day or a year counts as a whole.

    >>> allowed_spans(parse_condition("acquired=1970-01-01"))
    ((0, 86399999999),)
    """
    spans = []
    for value in condition.values:
        first, last = (microseconds(moment) for moment in parse_period(value))
        spans.append(
            {
                "=": (first, last),
                "<": (int(FIRST_TIME), first - 1),
                "<=": (int(FIRST_TIME), last),
                ">": (last + 1, int(LAST_TIME)),
                ">=": (first, int(LAST_TIME)),
            }[condition.comparison]
        )
    return tuple(spans)


@dataclass(frozen=True)
class ValueRange:
    """The least and the greatest value of a column that is filtered by a range; of times, as ISO 8601."""

    kind: Literal["integer", "number", "time"]
    least: float | str
    greatest: float | str


class FilterColumns:
    """The metadata of N items, ready to be filtered; what a filter needs is prepared when first asked for."""

    def __init__(self, metadata: pa.Table) -> None:
        self.metadata = metadata
        self._texts: dict[str, pa.Array] = {}
        self._numbers: dict[str, npt.NDArray[np.float64]] = {}
        self._moments: dict[str, npt.NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return int(self.metadata.num_rows)

    @property
    def names(self) -> list[str]:
        return [name for name in self.metadata.column_names if name not in UNFILTERED]

    @cached_property
    def values(self) -> Mapping[str, tuple[str, ...]]:
        """Columns of words to filter by, each with its distinct values, or none when there are many."""
        found = {}
        for name in self.names:
            kind = self.metadata.schema.field(name).type
            if name in UNLISTED or pa.types.is_nested(kind) or _is_number(kind) or _is_time(kind):
                continue
            distinct = [value for value in pc.unique(self.text(name)).to_pylist() if value]
            if distinct:
                found[name] = tuple(sorted(distinct)) if len(distinct) <= MOST_VALUES else ()
        return found

    def checked(self, filters: Filters) -> Filters:
        """The filters with values as the columns write them; refuses what cannot be, or is not there."""
        if filters.box is not None:
            checked_box(filters.box)
        circle(filters)
        time_limits(filters)
        return replace(filters, columns={}, conditions=tuple(map(self._checked, filters.all_conditions)))

    def _checked(self, condition: Condition) -> Condition:
        self.require(condition.column)
        kind = self.metadata.schema.field(condition.column).type
        if _is_time(kind):
            return replace(condition, spans=allowed_spans(condition))
        if condition.comparison != "=":
            self.numbers(condition.column)
            if not np.isfinite(_number(condition.values[0])):
                value = f"{condition.values[0][:100]!r} is no number"
                raise ConfigError(f"column {condition.column!r} holds numbers, and {value}", fix="write one")
            return condition
        return replace(condition, values=tuple(_as_written(value, kind) for value in condition.values))

    def require(self, name: str) -> None:
        if name not in self.names:
            raise ConfigError(
                f"no metadata column {name!r}", fix=f"columns here: {', '.join(self.names) or 'none'}"
            )

    def mask(self, filters: Filters) -> Mask | None:
        """(N,) true where every condition holds; None when there is no condition."""
        conditions: list[Mask] = []
        if filters.box is not None:
            west, south, east, north = self.bounds
            conditions.append(boxes_meet(checked_box(filters.box), west, south, east, north))
        around = circle(filters)
        if around is not None:
            conditions.append(self._within(*around))
        limits = time_limits(filters)
        if limits is not None:
            conditions.append((self.times >= limits[0]) & (self.times <= limits[1]))
        conditions += [self._holds(self._checked(condition)) for condition in filters.all_conditions]
        return np.logical_and.reduce(conditions) if conditions else None

    def distances(self, place: Box) -> npt.NDArray[np.float64]:
        """(N,) kilometres from a place to each item's bounds, NaN where they are unknown."""
        return distances(checked_box(place), *self.bounds)

    def _within(self, place: Box, radius: float) -> Mask:
        """(N,) true where an item's bounds come within `radius` kilometres of a place."""
        close = boxes_meet(box_within(place, radius), *self.bounds)
        rows = np.flatnonzero(close)
        close[rows] = distances(place, *(side[rows] for side in self.bounds)) <= radius
        return close

    def _holds(self, condition: Condition) -> Mask:
        """(N,) true where a single condition holds."""
        if condition.spans:
            moments = self.moments(condition.column)
            within = [(moments >= first) & (moments <= last) for first, last in condition.spans]
            return np.asarray(np.logical_or.reduce(within), bool)
        if condition.comparison == "=":
            allowed = pa.array(list(condition.values), pa.string())
            found = pc.is_in(self.text(condition.column), value_set=allowed)
            return np.asarray(found.to_numpy(zero_copy_only=False), bool)
        compared = _COMPARED[condition.comparison](self.numbers(condition.column), float(condition.values[0]))
        return np.asarray(compared, bool)  # never true of a number that is unknown

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """A column as numbers (N,), NaN where there is none; an error when there is none at all."""
        self.require(name)
        if name not in self._numbers:
            self._numbers[name] = self.any_numbers(name)
        if np.isnan(self._numbers[name]).all() and len(self):
            numbers = [name for name, found in self.ranges.items() if found.kind != "time"]
            fix = f"columns of numbers here: {', '.join(numbers) or 'none'}"
            raise ConfigError(f"column {name!r} holds no numbers to compare", fix=fix)
        return self._numbers[name]

    @cached_property
    def ranges(self) -> Mapping[str, ValueRange]:
        """Columns of numbers and times worth filtering by a range; places are filtered by other means."""
        others = {*UNLISTED, *BOUNDS, *POINT}
        found = {name: self._range(name) for name in self.names if name not in others}
        return {name: values for name, values in found.items() if values is not None}

    def _range(self, name: str) -> ValueRange | None:
        kind = self.metadata.schema.field(name).type
        if _is_time(kind):
            moments = self.moments(name)
            known = moments[moments != UNKNOWN_TIME]
            ends = [_moment(end).isoformat() for end in (known.min(), known.max())] if len(known) else []
            return ValueRange("time", *ends) if ends else None
        if not _is_number(kind):
            return None
        numbers = self.any_numbers(name)
        known = numbers[np.isfinite(numbers)]
        whole: Literal["integer", "number"] = "integer" if pa.types.is_integer(kind) else "number"
        return ValueRange(whole, float(known.min()), float(known.max())) if len(known) else None

    def moments(self, name: str) -> npt.NDArray[np.int64]:
        """A column of times (N,) in microseconds since 1970; without a zone they are UTC."""
        if name not in self._moments:
            moments = pc.cast(_joined(self.metadata[name]), pa.timestamp("us"), safe=False).cast(pa.int64())
            self._moments[name] = np.asarray(pc.fill_null(moments, int(UNKNOWN_TIME)).to_numpy(), np.int64)
        return self._moments[name]

    def text(self, name: str) -> pa.Array:
        """A column as text."""
        self.require(name)
        if name not in self._texts:
            self._texts[name] = _as_text(_joined(self.metadata[name]))
        return self._texts[name]

    @cached_property
    def bounds(self) -> tuple[npt.NDArray[np.float64], ...]:
        """West, south, east and north (N,) each, NaN where unknown; a point counts as a box."""
        boxes = [self.any_numbers(name) for name in BOUNDS]
        unknown = np.isnan(boxes).any(0)
        points = [self.any_numbers(name) for name in (*POINT, *POINT)]
        return tuple(np.where(unknown, point, side) for side, point in zip(boxes, points, strict=True))

    @cached_property
    def times(self) -> npt.NDArray[np.int64]:
        """(N,) microseconds since 1970, the smallest number where the time is unknown."""
        if "time" not in self.metadata.column_names:
            return np.full(len(self), UNKNOWN_TIME)
        return np.array([_time(value) for value in self.metadata["time"].to_pylist()], np.int64)

    @cached_property
    def has_places(self) -> bool:
        """Whether any item has bounds to filter by."""
        return not bool(np.isnan(self.bounds).any(0).all())

    @cached_property
    def has_times(self) -> bool:
        """Whether any item has a time to filter by; found without reading all of them, as `times` does."""
        known = "time" in self.metadata.column_names
        return known and any(_time(value) != UNKNOWN_TIME for value in self.metadata["time"].to_pylist())

    def any_numbers(self, name: str) -> npt.NDArray[np.float64]:
        """A column as numbers (N,), NaN where there is none, or no such column."""
        if name not in self.metadata.column_names:
            return np.full(len(self), np.nan)
        if _is_time(self.metadata.schema.field(name).type):
            moments = self.moments(name)
            return np.where(moments == UNKNOWN_TIME, np.nan, moments.astype(np.float64))
        try:
            values = pc.cast(self.metadata[name], pa.float64()).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # some dataset's own way of writing
            values = [_number(value) for value in self.metadata[name].to_pylist()]
        return np.asarray(values, np.float64)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _moment(microseconds: Any) -> datetime.datetime:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(microseconds=int(microseconds))


def _as_written(value: str, kind: pa.DataType) -> str:
    """A value as a column of this kind has it as text: 1.0 is 1 among numbers."""
    number = _number(value)
    if not _is_number(kind) or np.isnan(number) or (pa.types.is_integer(kind) and not number.is_integer()):
        return value
    try:
        exact = _whole(value, number) if pa.types.is_integer(kind) else number
        return str(pa.scalar(exact, kind).cast(pa.string()))
    except (OverflowError, pa.ArrowInvalid):  # no such number in a column of this kind
        return value


def _whole(value: str, number: float) -> int:
    """A whole number without loss: floats end at 2^53."""
    try:
        return int(value)
    except ValueError:  # written as 1.0 or 1e3
        return int(number)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _time(value: Any) -> int:
    if value is None or value == "":
        return int(UNKNOWN_TIME)
    try:
        return microseconds(value if isinstance(value, datetime.datetime) else parse_time(str(value)))
    except ConfigError:  # some dataset's own way of writing: unknown to us
        return int(UNKNOWN_TIME)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)


def _as_text(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # lists and other nested values
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
