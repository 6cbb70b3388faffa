"""Which items a query may find: boxes, times and metadata columns as one mask over the rows."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.errors import ConfigError
from pmpguard.geo.footprints import boxes_meet, checked_box, in_utc, parse_time, parse_time_range
from pmpguard.search.query import Comparison, Condition, Filters
from pmpguard.search.sources import FILE_STAMP

Mask = npt.NDArray[np.bool_]
MOST_VALUES = 100  # distinct values of a column that are worth a list
UNFILTERED = frozenset({"id", "image", "image_id", "pair_id", "caption", "bounds", "geometry", FILE_STAMP})
UNLISTED = frozenset({"time", "row", "column"})  # filtered by other means, or hardly ever
BOUNDS, POINT = ("west", "south", "east", "north"), ("lon", "lat")
UNKNOWN_TIME = np.iinfo(np.int64).min
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
    if comparison != "=" and not np.isfinite(_number(value)):
        raise ConfigError(f"condition {text[:200]!r}: {value[:100]!r} is no number", fix="write column<20")
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
    limits = np.iinfo(np.int64)
    return (
        limits.min + 1 if first is None else microseconds(first),
        limits.max if last is None else microseconds(last),
    )


class FilterColumns:
    """The metadata of N items, ready to be filtered; what a filter needs is prepared when first asked for."""

    def __init__(self, metadata: pa.Table) -> None:
        self.metadata = metadata
        self._texts: dict[str, pa.Array] = {}
        self._numbers: dict[str, npt.NDArray[np.float64]] = {}

    def __len__(self) -> int:
        return int(self.metadata.num_rows)

    @property
    def names(self) -> list[str]:
        return [name for name in self.metadata.column_names if name not in UNFILTERED]

    @cached_property
    def values(self) -> Mapping[str, tuple[str, ...]]:
        """Columns worth offering as filters, each with its distinct values, or none when there are many."""
        found = {}
        for name in self.names:
            kind = self.metadata.schema.field(name).type
            if name in UNLISTED or pa.types.is_nested(kind) or pa.types.is_floating(kind):
                continue
            distinct = [value for value in pc.unique(self.text(name)).to_pylist() if value]
            if distinct:
                found[name] = tuple(sorted(distinct)) if len(distinct) <= MOST_VALUES else ()
        return found

    def checked(self, filters: Filters) -> Filters:
        """The filters with values as the columns write them; refuses what cannot be, or is not there."""
        if filters.box is not None:
            checked_box(filters.box)
        time_limits(filters)
        return replace(filters, columns={}, conditions=tuple(map(self._checked, filters.all_conditions)))

    def _checked(self, condition: Condition) -> Condition:
        self.require(condition.column)
        if condition.comparison != "=":
            self.numbers(condition.column)
            return condition
        kind = self.metadata.schema.field(condition.column).type
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
        limits = time_limits(filters)
        if limits is not None:
            conditions.append((self.times >= limits[0]) & (self.times <= limits[1]))
        conditions += [self._holds(self._checked(condition)) for condition in filters.all_conditions]
        return np.logical_and.reduce(conditions) if conditions else None

    def _holds(self, condition: Condition) -> Mask:
        """(N,) true where a single condition holds."""
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
            fix = f"columns of numbers here: {', '.join(self.number_names) or 'none'}"
            raise ConfigError(f"column {name!r} holds no numbers to compare", fix=fix)
        return self._numbers[name]

    @property
    def number_names(self) -> list[str]:
        """Columns worth comparing with a number; places are filtered by other means."""
        schema, others = self.metadata.schema, {*UNLISTED, *BOUNDS, *POINT}
        return [name for name in self.names if _is_number(schema.field(name).type) and name not in others]

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
        try:
            values = pc.cast(self.metadata[name], pa.float64()).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # some dataset's own way of writing
            values = [_number(value) for value in self.metadata[name].to_pylist()]
        return np.asarray(values, np.float64)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


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
