"""How far apart boxes of degrees lie on the globe: great-circle distances between their nearest points.

The nearest points of two boxes lie on meridians that are `gap` degrees apart, the least that their
longitudes are, and one of them is a corner: the distance shrinks with the gap, and between two meridians it
has no minimum inside both.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pmpguard.errors import ConfigError
from pmpguard.geo.footprints import Box, checked_box, parse_box, wrapped_box

EARTH_RADIUS = 6371.0088  # km, the mean
PLACE_FIX = "write longitude,latitude or west,south,east,north in degrees, such as 7.45,46.95"
MARGIN = 1e-10  # radians, less than a millimetre: what rounding may cost
DECIMALS = 6  # of kilometres

Array = npt.NDArray[np.float64]


def parse_place(text: str) -> Box:
    """A point or a box as people write it; a point is a box of no size.

    >>> parse_place("7.45, 46.95"), parse_place("5.8,45.7,10.6,47.9")
    ((7.45, 46.95, 7.45, 46.95), (5.8, 45.7, 10.6, 47.9))
    """
    if text.count(",") != 1:
        return parse_box(text)
    try:
        longitude, latitude = map(float, text.split(","))
    except ValueError as error:
        raise ConfigError(f"place {text[:200]!r}: not two numbers", fix=PLACE_FIX) from error
    return checked_box((longitude, latitude, longitude, latitude))


def checked_radius(radius: float) -> float:
    """The radius itself, or an error that says what is wrong with it."""
    if not 0 <= radius < math.inf:  # also refuses NaN
        raise ConfigError(f"radius is {radius:g} km", fix="give a number of kilometres, 0 or more")
    return radius


def distances(
    place: Box, west: npt.ArrayLike, south: npt.ArrayLike, east: npt.ArrayLike, north: npt.ArrayLike
) -> Array:
    """(N,) kilometres from `place` to each of N boxes, 0 where they meet; NaN where a box is unknown."""
    first, last = place[0], place[2] + 360.0 * (place[0] > place[2])
    west, east = np.asarray(west, np.float64), np.asarray(east, np.float64)  # (N,)
    end = np.where(west > east, east + 360.0, east)
    turns = np.array([[-360.0], [0.0], [360.0]])  # (3, 1)
    gap = np.maximum(0.0, np.maximum(west + turns - last, first - end - turns)).min(0)  # (N,)
    low, high = (np.radians(np.asarray(side, np.float64)) for side in (south, north))  # (N,)
    bottom, top = (np.full_like(gap, math.radians(side)) for side in (place[1], place[3]))
    across = np.radians(gap)
    pairs = [(corner, other) for corner in (bottom, top) for other in (low, high)]
    pairs += [(corner, nearest_latitude(corner, across, low, high)) for corner in (bottom, top)]
    pairs += [(nearest_latitude(corner, across, bottom, top), corner) for corner in (low, high)]
    least = np.minimum.reduce([haversine(one, other, across) for one, other in pairs])
    kilometres: Array = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(np.clip(least, 0.0, 1.0)))
    return kilometres.round(DECIMALS)


def nearest_latitude(latitude: Array, gap: Array, low: Array, high: Array) -> Array:
    """Where between `low` and `high` a meridian `gap` away comes nearest to a point; all in radians.

    More than a quarter turn away it may come nearest at either end instead.
    """
    nearest = np.arctan2(np.sin(latitude), np.cos(latitude) * np.cos(gap))
    return np.asarray(np.minimum(np.maximum(nearest, low), high))


def haversine(one: Array, other: Array, gap: Array) -> Array:
    """sin²(d/2) of two points at these latitudes on meridians `gap` apart; all in radians."""
    straight = np.sin((one - other) / 2) ** 2
    return np.asarray(straight + np.cos(one) * np.cos(other) * np.sin(gap / 2) ** 2)


def haversine_limit(radius: float) -> float:
    """sin²(d/2) at `radius` kilometres; more than any distance has is 1."""
    return math.sin(min(radius / (2 * EARTH_RADIUS) + MARGIN, math.pi / 2)) ** 2


def box_within(place: Box, radius: float) -> Box:
    """A box that holds every point within `radius` kilometres of `place`."""
    angle = radius / EARTH_RADIUS + MARGIN
    south, north = place[1] - math.degrees(angle), place[3] + math.degrees(angle)
    width = 180.0
    if south > -90 and north < 90:
        edge = math.radians(max(abs(place[1]), abs(place[3])))
        width = math.degrees(math.asin(min(1.0, math.sin(angle) / math.cos(edge)))) + math.degrees(MARGIN)
    end = place[2] + 360.0 * (place[0] > place[2])
    return wrapped_box(place[0] - width, south, end + width, north) or (-180.0, -90.0, 180.0, 90.0)
