"""Which items a query may find: boxes, times and metadata columns as one mask over the rows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.errors import ConfigError
from pmpguard.search.footprints import boxes_meet, checked_box, in_utc, parse_time, parse_time_range
from pmpguard.search.query import Filters
from pmpguard.search.sources import FILE_STAMP

Mask = npt.NDArray[np.bool_]
MOST_VALUES = 100  # distinct values of a column that are worth a list
UNFILTERED = frozenset({"id", "image", "image_id", "pair_id", "caption", "bounds", "geometry", FILE_STAMP})
UNLISTED = frozenset({"time", "row", "column"})  # filtered by other means, or hardly ever
BOUNDS = ("west", "south", "east", "north")
UNKNOWN_TIME = np.iinfo(np.int64).min


def parse_where(text: str) -> dict[str, tuple[str, ...]]:
    """Conditions as people write them; a column named twice may have either value.

    >>> parse_where("label=airport,label=port,split=test")
    {'label': ('airport', 'port'), 'split': ('test',)}
    """
    columns: dict[str, tuple[str, ...]] = {}
    for condition in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = condition.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"condition {condition!r} has no column", fix="write column=value,column=value")
        columns[name.strip()] = (*columns.get(name.strip(), ()), value.strip())
    return columns


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

    def check(self, filters: Filters) -> None:
        """Refuse a box or time that cannot be, and columns that are not there."""
        if filters.box is not None:
            checked_box(filters.box)
        time_limits(filters)
        for name in filters.columns:
            self.require(name)

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
        conditions += [self._equals(name, allowed) for name, allowed in filters.columns.items()]
        return np.logical_and.reduce(conditions) if conditions else None

    def _equals(self, name: str, allowed: Sequence[str]) -> Mask:
        found = pc.is_in(self.text(name), value_set=pa.array([str(value) for value in allowed], pa.string()))
        return np.asarray(found.to_numpy(zero_copy_only=False), bool)

    def text(self, name: str) -> pa.Array:
        """A column as text."""
        self.require(name)
        if name not in self._texts:
            self._texts[name] = _as_text(_whole(self.metadata[name]))
        return self._texts[name]

    @cached_property
    def bounds(self) -> tuple[npt.NDArray[np.float64], ...]:
        """West, south, east and north (N,) each, NaN where unknown; a point counts as a box."""
        boxes = [self._numbers(name) for name in BOUNDS]
        unknown = np.isnan(boxes).any(0)
        points = [self._numbers(name) for name in ("lon", "lat", "lon", "lat")]
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

    def _numbers(self, name: str) -> npt.NDArray[np.float64]:
        if name not in self.metadata.column_names:
            return np.full(len(self), np.nan)
        try:
            values = pc.cast(self.metadata[name], pa.float64()).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # some dataset's own way of writing
            values = [_number(value) for value in self.metadata[name].to_pylist()]
        return np.asarray(values, np.float64)


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


def _whole(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)


def _as_text(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # lists and other nested values
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
