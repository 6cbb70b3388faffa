"""Great-circle distances against points on both boxes, compared one by one as vectors in space."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pmpguard.errors import ConfigError
from pmpguard.geo.distance import (
    EARTH_RADIUS,
    box_within,
    checked_radius,
    distances,
    haversine_limit,
    parse_place,
)
from pmpguard.geo.footprints import boxes_meet

longitude = st.floats(-180, 180).map(lambda value: round(value, 3))
latitude = st.floats(-90, 90).map(lambda value: round(value, 3))


@st.composite
def boxes(draw):
    """Points, narrow boxes and wide ones, across the antimeridian and at the poles."""
    west, south = draw(longitude), draw(latitude)
    wide, tall = draw(st.sampled_from([0.0, 0.5, 30.0, 200.0])), draw(st.sampled_from([0.0, 0.5, 30.0]))
    east = west + wide - 360.0 * (west + wide > 180)
    return (west, south, east, min(90.0, south + tall))


def points(box, steps=41):
    """(P, 3) unit vectors of a grid over the box."""
    west, south, east, north = box
    end = east + 360 * (west > east)
    along, up = np.meshgrid(
        np.radians(np.linspace(west, end, steps)), np.radians(np.linspace(south, north, steps))
    )
    return np.stack([np.cos(up) * np.cos(along), np.cos(up) * np.sin(along), np.sin(up)], -1).reshape(-1, 3)


def naive(one, other):
    """Kilometres between the nearest points of two grids, by the angle between vectors."""
    chord = np.linalg.norm(points(one)[:, None] - points(other)[None], axis=-1).min()
    return 2 * EARTH_RADIUS * math.asin(min(1.0, chord / 2))


@settings(max_examples=60, deadline=None)
@given(boxes(), boxes())
@example((0.0, 60.0, 0.0, 60.0), (100.0, 50.0, 130.0, 80.0))  # nearest inside a meridian's span
@example((-10.0, -40.0, 10.0, -20.0), (170.0, 10.0, -170.0, 30.0))  # over the far side
@example((179.0, -1.0, 179.5, 1.0), (-179.5, -1.0, -179.0, 1.0))
@example((0.0, 60.0, 0.0, 90.0), (1.0, 60.0, 1.0, 90.0))  # they share the pole and no longitude
def test_distances_are_those_of_the_nearest_points(one, other):
    (found,) = distances(one, *([side] for side in other))
    by_points = naive(one, other)
    assert found <= by_points + 1e-6  # no point of the grids is nearer
    coarse = EARTH_RADIUS * math.radians(200 / 40 + 30 / 40)  # to the next point of a grid, in each box
    assert by_points <= found + 2 * coarse
    if one[0] == one[2] and other[0] == other[2] and one[1] == one[3] and other[1] == other[3]:
        assert found == pytest.approx(by_points, abs=2e-3)
    assert distances(other, *([side] for side in one)) == pytest.approx(found, abs=1e-5)
    pole = (one[1] == other[1] == -90) or (one[3] == other[3] == 90)
    assert (found == 0) == (pole or bool(boxes_meet(one, *(np.array([side]) for side in other))[0]))


@pytest.mark.parametrize("gap", [0.5, 20.0, 89.0, 120.0, 180.0])
def test_a_tall_box_is_as_near_as_its_nearest_latitude(gap):
    """The grid is so fine here that the two must agree."""
    place = (10.0, 50.0, 10.0, 50.0)
    box = (10.0 + gap, -80.0, 10.0 + gap, 85.0)
    if box[0] > 180:
        box = (box[0] - 360, -80.0, box[0] - 360, 85.0)
    along = np.radians(np.linspace(-80, 85, 200_001))
    turned = math.radians(gap)
    cosine = np.sin(math.radians(50)) * np.sin(along) + np.cos(math.radians(50)) * np.cos(along) * np.cos(
        turned
    )
    assert distances(place, *([side] for side in box))[0] == pytest.approx(
        EARTH_RADIUS * math.acos(cosine.max()), abs=1e-2
    )


def test_known_distances():
    bern, zurich = (7.4474, 46.948, 7.4474, 46.948), (8.5417, 47.3769)
    west, south = np.array([zurich[0], np.nan, -172.5526]), np.array([zurich[1], 0.0, -46.948])
    found = distances(bern, west, south, west, south)
    assert found[0] == pytest.approx(95.5, abs=0.5) and np.isnan(found[1])
    assert found[2] == pytest.approx(math.pi * EARTH_RADIUS, abs=1e-3)  # the other side of the world


@settings(max_examples=100, deadline=None)
@given(boxes(), boxes(), st.sampled_from([0.0, 1.0, 300.0, 4000.0, 11000.0, 30000.0]))
def test_a_box_around_a_place_holds_what_is_near(place, other, radius):
    near = distances(place, *([side] for side in other))[0] <= radius
    around = box_within(place, radius)
    assert not near or boxes_meet(around, *(np.array([side]) for side in other))[0]


def test_the_limit_of_a_radius_is_that_of_its_angle():
    assert haversine_limit(0.0) < 1e-19 and haversine_limit(1e6) == 1.0
    quarter = math.pi / 2 * EARTH_RADIUS
    assert haversine_limit(quarter) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("7.4", "four are needed"), ("7.4,x", "not two numbers"), ("7,95", "outside"), ("1,2,3", "four are")],
)
def test_a_wrong_place_is_refused(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_place(text)


@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
def test_a_wrong_radius_is_refused(radius):
    assert checked_radius(2.5) == 2.5
    with pytest.raises(ConfigError, match="radius is"):
        checked_radius(radius)
