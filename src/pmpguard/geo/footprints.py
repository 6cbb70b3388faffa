"""Where and when an image was taken: boxes of degrees and spans of time, without any map library.

A box is (west, south, east, north) in degrees of EPSG:4326. West of a box that crosses the antimeridian is
larger than its east, as RFC 7946 writes it.
"""

from __future__ import annotations

import calendar
import datetime
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pmpguard.errors import ConfigError

Box = tuple[float, float, float, float]
_BOX_FIX = "write west,south,east,north in degrees, such as 5.8,45.7,10.6,47.9"
_TIME_FIX = "write 2024, 2024-05, 2024-05-01 or 2024-05-01T12:00:00Z"
_YEAR_MONTH = re.compile(r"(\d{4})(?:-(\d{2}))?")


def parse_box(text: str) -> Box:
    """The box a person wrote as `west,south,east,north`.

    >>> parse_box("170, -20, -170, -10")
    (170.0, -20.0, -170.0, -10.0)
    """
    parts = text.split(",")
    if len(parts) != 4:
        raise ConfigError(f"box {text!r}: {len(parts)} values where four are needed", fix=_BOX_FIX)
    try:
        west, south, east, north = map(float, parts)
    except ValueError as error:
        raise ConfigError(f"box {text!r}: not four numbers", fix=_BOX_FIX) from error
    return checked_box((west, south, east, north))


def checked_box(box: Box) -> Box:
    """The box itself, or an error that names the value that cannot be."""
    west, south, east, north = box
    for name, value, limit in (
        ("west", west, 180),
        ("south", south, 90),
        ("east", east, 180),
        ("north", north, 90),
    ):
        if not abs(value) <= limit:  # also refuses NaN
            raise ConfigError(f"box: {name} is {value:g}, outside ±{limit} degrees", fix=_BOX_FIX)
    if south > north:
        raise ConfigError(f"box: south {south:g} is above north {north:g}", fix=_BOX_FIX)
    return box


def boxes_meet(
    box: Box, west: np.ndarray, south: np.ndarray, east: np.ndarray, north: np.ndarray
) -> np.ndarray:
    """(N,) bool: which of N boxes share at least one point with `box`; an unknown (NaN) one never does.

    Longitudes are arcs of a circle: a box that crosses the antimeridian ends 360 degrees further on, and two
    arcs meet when they do so after a whole turn of either.
    """
    first, last = box[0], box[2] + 360.0 * (box[0] > box[2])
    west = np.asarray(west, np.float64)  # (N,)
    end = np.where(west > east, np.add(east, 360.0), east)  # (N,)
    turns = np.array([[-360.0], [0.0], [360.0]])  # (3,1)
    along = ((west + turns <= last) & (end + turns >= first)).any(axis=0)  # (N,)
    across = np.less_equal(south, box[3]) & np.greater_equal(north, box[1])  # (N,)
    return np.asarray(along & across)


def wrapped_box(west: float, south: float, east: float, north: float) -> Box | None:
    """A box whose longitudes may lie beyond ±180, brought back; None where it is not finite.

    >>> wrapped_box(179, 10, 181, 11)
    (179, 10, -179, 11)
    >>> wrapped_box(190, -91, 200, 0)
    (-170, -90, -160, 0)
    """
    if not all(map(math.isfinite, (west, south, east, north))):
        return None
    south, north = max(south, -90), min(north, 90)
    if east - west >= 360:
        return -180.0, south, 180.0, north
    if west < -180 or west >= 180:
        turned = (west + 180) % 360 - 180
        west, east = turned, east + turned - west
    return west, south, east - 360 if east > 180 else east, north


def bounds_of(metadata: Mapping[str, Any]) -> Box | None:
    """The box an item's metadata hold: west, south, east and north, or the point lon and lat."""
    names = ("west", "south", "east", "north")
    if any(metadata.get(name) is None for name in names):
        names = ("lon", "lat", "lon", "lat")
    try:
        west, south, east, north = (float(metadata[name]) for name in names)
        return checked_box((west, south, east, north))
    except (KeyError, TypeError, ValueError, ConfigError):
        return None


def box_geometry(box: Box) -> dict[str, Any]:
    """The box as an RFC 7946 geometry: counterclockwise, cut in two where it crosses the antimeridian."""
    west, south, east, north = box
    if west == east and south == north:
        return {"type": "Point", "coordinates": [west, south]}
    if west <= east:
        return {"type": "Polygon", "coordinates": [_ring(west, south, east, north)]}
    halves = [_ring(first, south, last, north) for first, last in _arcs(west, east) if first < last]
    return {"type": "MultiPolygon", "coordinates": [[half] for half in halves]}


def _ring(west: float, south: float, east: float, north: float) -> list[list[float]]:
    return [[west, south], [east, south], [east, north], [west, north], [west, south]]


def box_around(boxes: Iterable[Box]) -> Box | None:
    """The narrowest box that holds all of them, which may cross the antimeridian; None of none.

    The widest gap between the boxes' longitudes stays outside.
    """
    held = list(boxes)
    if not held:
        return None
    south, north = min(box[1] for box in held), max(box[3] for box in held)
    arcs = sorted(arc for west, _, east, _ in held for arc in _arcs(west, east))
    furthest, gaps = arcs[0][1], []
    for start, stop in arcs[1:]:
        gaps.append((start - furthest, furthest, start))
        furthest = max(furthest, stop)
    gap, east, west = max([*gaps, (arcs[0][0] + 360.0 - furthest, furthest, arcs[0][0])])
    return (west, south, east, north) if gap > 0 else (-180.0, south, 180.0, north)


def _arcs(west: float, east: float) -> list[tuple[float, float]]:
    """A span of longitudes as one arc within ±180, or two where it crosses the antimeridian."""
    return [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]


def parse_time(text: str) -> datetime.datetime:
    """The first moment an ISO 8601 text speaks of, in UTC; a time without a zone is UTC.

    >>> parse_time("2024-05-01T12:00:00+02:00").isoformat(), parse_time("2024-05").isoformat()
    ('2024-05-01T10:00:00+00:00', '2024-05-01T00:00:00+00:00')
    """
    return parse_period(text)[0]


def parse_period(text: str) -> tuple[datetime.datetime, datetime.datetime]:
    """The first and last moment of what an ISO 8601 text names: a year, a month, a day or one moment."""
    text = text.strip()
    try:
        if part := _YEAR_MONTH.fullmatch(text):
            year, month = int(part[1]), part[2] and int(part[2])
            first = datetime.date(year, month or 1, 1)
            last = datetime.date(year, month or 12, calendar.monthrange(year, month or 12)[1])
        else:
            try:
                first = last = datetime.date.fromisoformat(text)
            except ValueError:
                moment = in_utc(datetime.datetime.fromisoformat(text))
                return moment, moment
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"time {text!r} is not an ISO 8601 time", fix=_TIME_FIX) from error
    return (
        datetime.datetime.combine(first, datetime.time.min, datetime.UTC),
        datetime.datetime.combine(last, datetime.time.max, datetime.UTC),
    )


def in_utc(moment: datetime.datetime) -> datetime.datetime:
    """The same moment in UTC; one without a zone is taken to be UTC."""
    return moment.astimezone(datetime.UTC) if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def parse_time_range(
    start: str | None, stop: str | None
) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    """Both ends of a span, either open; a stop that names a day, month or year holds all of it."""
    first = None if start is None else parse_period(start)[0]
    last = None if stop is None else parse_period(stop)[1]
    if first and last and first > last:
        raise ConfigError(f"time range: {start} is after {stop}", fix="give the earlier time first")
    return first, last
