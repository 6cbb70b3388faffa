import datetime
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.errors import ConfigError
from pmpguard.geo.footprints import (
    bounds_of,
    box_around,
    box_geometry,
    boxes_meet,
    parse_box,
    parse_period,
    parse_time,
    parse_time_range,
    wrapped_box,
)

UTC = datetime.UTC
longitude = st.integers(-18, 18).map(lambda tens: tens * 10.0)
latitude = st.integers(-9, 9).map(lambda tens: tens * 10.0)
boxes = st.tuples(longitude, latitude, longitude, latitude).map(
    lambda box: (box[0], min(box[1], box[3]), box[2], max(box[1], box[3]))
)


def cells(box):
    """The points of a 10-degree grid a box holds, found one by one; -180 and 180 are one meridian."""
    west, south, east, north = box
    inside = set()
    for x in range(-180, 181, 10):
        held = west <= x <= east if west <= east else (x >= west or x <= east)
        if held:
            inside |= {((x + 180) % 360, y) for y in range(-90, 91, 10) if south <= y <= north}
    return inside


@given(boxes, st.lists(boxes, min_size=1, max_size=8))
def test_boxes_meet_where_they_share_a_point(box, others):
    columns = np.array(others).T
    assert boxes_meet(box, *columns).tolist() == [bool(cells(box) & cells(other)) for other in others]


def test_an_unknown_box_meets_nothing():
    unknown = np.array([np.nan, 0.0])
    known = np.array([0.0, 0.0])
    assert boxes_meet((-180, -90, 180, 90), unknown, known, known, known).tolist() == [False, True]
    assert boxes_meet((-180, -90, 180, 90), known, known, known, unknown).tolist() == [False, True]
    assert (
        boxes_meet((170, -90, -170, 90), np.array([]), np.array([]), np.array([]), np.array([])).tolist()
        == []
    )


def strips(box):
    """The ten-degree strips of longitude a box covers, numbered from 0 at -180."""
    west, _, east, _ = box
    edges = range(-180, 180, 10)
    if west > east:
        return {n for n, x in enumerate(edges) if x >= west or x + 10 <= east}
    return {n for n, x in enumerate(edges) if x >= west and x + 10 <= east}


@given(st.lists(boxes.filter(strips), min_size=1, max_size=6))
def test_the_box_around_holds_every_box_and_leaves_the_widest_gap_out(held):
    around = box_around(held)
    covered = set().union(*map(strips, held))
    assert covered <= strips(around)
    assert (around[1], around[3]) == (min(box[1] for box in held), max(box[3] for box in held))
    run = widest = 0
    for number in range(72):  # twice round
        run = 0 if number % 36 in covered else run + 1
        widest = max(widest, run)
    assert len(strips(around)) == 36 - widest


def test_no_boxes_have_no_box_around():
    assert box_around([]) is None
    assert box_around([(170.1, -5.0, -179.9, 5.0), (-179.95, 0.0, -170.2, 9.0)]) == (170.1, -5.0, -170.2, 9.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1,2,3", "3 values where four"),
        ("1,2,3,x", "not four numbers"),
        ("", "1 values"),
        ("1,2,3,91", "north is 91"),
        ("181,2,3,4", "west is 181"),
        ("1,5,3,4", "south 5 is above north 4"),
        ("nan,2,3,4", "west is nan"),
        ("1,-inf,3,4", "south is -inf"),
    ],
)
def test_a_wrong_box_is_refused_with_the_way_to_write_it(text, complaint):
    with pytest.raises(ConfigError, match=complaint) as flagged:
        parse_box(text)
    assert "west,south,east,north" in flagged.value.fix


def test_a_box_may_cross_the_antimeridian():
    assert parse_box("170,-20.5,-170,-10") == (170.0, -20.5, -170.0, -10.0)


@given(st.floats(-1000, 1000), st.floats(0, 359))
def test_wrapped_longitudes_keep_the_place_and_the_width(west, width):
    box = wrapped_box(west, 0.0, west + width, 1.0)
    assert box is not None and -180 <= box[0] <= 180 and -180 <= box[2] <= 180
    # the width grows by one turn where east is the same meridian as west
    assert (box[2] - box[0]) % 360 == pytest.approx(width % 360, abs=1e-9) or width == pytest.approx(360)
    assert abs((box[0] - west + 180) % 360 - 180) < 1e-9


def test_wrapping_of_whole_turns_and_of_nothing():
    assert wrapped_box(-200.0, -95.0, 200.0, 95.0) == (-180.0, -90, 180.0, 90)
    assert wrapped_box(0.0, 0.0, 360.0, 10.0) == (-180.0, 0.0, 180.0, 10.0)
    assert wrapped_box(float("inf"), 0.0, 1.0, 1.0) is None


def signed_area(ring):
    return sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in itertools.pairwise(ring)) / 2


@given(boxes)
def test_geometries_are_closed_counterclockwise_and_within_the_world(box):
    geometry = box_geometry(box)
    if geometry["type"] == "Point":
        assert geometry["coordinates"] == [box[0], box[1]] and box[0] == box[2]
        return
    polygons = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
    for [ring] in polygons:
        assert len(ring) == 5 and ring[0] == ring[-1]
        assert all(-180 <= x <= 180 and -90 <= y <= 90 for x, y in ring)
        assert signed_area(ring) >= 0
    width = (box[2] - box[0]) % 360 if box[0] > box[2] else box[2] - box[0]
    assert sum(signed_area(ring) for [ring] in polygons) == pytest.approx(width * (box[3] - box[1]))


def test_metadata_give_bounds_or_a_point_or_nothing():
    assert bounds_of({"west": 1, "south": "2", "east": 3.0, "north": 4}) == (1, 2, 3, 4)
    assert bounds_of({"west": None, "lon": 8.5, "lat": 47.0}) == (8.5, 47.0, 8.5, 47.0)
    for nothing in (
        {},
        {"west": 1, "south": 2, "east": 3},
        {"lon": "x", "lat": 1},
        {"lon": float("nan"), "lat": 1},
    ):
        assert bounds_of(nothing) is None


def test_times_in_all_their_spellings():
    noon = datetime.datetime(2024, 5, 1, 12, tzinfo=UTC)
    for text in ("2024-05-01T12:00:00Z", "2024-05-01T12:00", "2024-05-01 14:00:00+02:00", "20240501T120000Z"):
        assert parse_time(text) == noon and parse_time(text).tzinfo == UTC
    midnight = datetime.datetime(2024, 5, 1, tzinfo=UTC)
    assert parse_time("2024-05-01") == parse_time("20240501") == parse_time("2024-05") == midnight


def test_a_period_holds_the_whole_of_what_it_names():
    last = datetime.time.max
    assert parse_period("2024-02")[1] == datetime.datetime.combine(datetime.date(2024, 2, 29), last, UTC)
    assert parse_period("2023")[1] == datetime.datetime.combine(datetime.date(2023, 12, 31), last, UTC)
    assert parse_period("2024-05-01T00:00:00Z")[0] == parse_period("2024-05-01T00:00:00Z")[1]


@pytest.mark.parametrize("text", ["", "yesterday", "2024-13-01", "2024-13", "0000", "2024-05-01T25:00"])
def test_a_wrong_time_is_refused(text):
    with pytest.raises(ConfigError, match="ISO 8601"):
        parse_time(text)


def test_a_range_must_run_forward():
    with pytest.raises(ConfigError, match="2024-05-02 is after 2024-05-01"):
        parse_time_range("2024-05-02", "2024-05-01")
    assert parse_time_range(None, None) == (None, None)
