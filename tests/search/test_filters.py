"""Boxes, times and columns against loops over the rows."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from pmpguard.errors import ConfigError
from pmpguard.search.filters import FilterColumns, ValueRange, microseconds, parse_where, time_limits
from pmpguard.search.query import Condition, Filters

ROWS = [
    # west, south, east, north, lon, lat, time, label, floor
    (0.0, 0.0, 10.0, 10.0, None, None, "2024-05-01", "port", 1),
    (175.0, -5.0, -175.0, 5.0, None, None, "2024-05-01T12:00:00+02:00", "farm", 2),
    (None, None, None, None, 5.0, 5.0, "2024-06", "port", None),
    (None, None, None, None, None, None, None, None, 3),
    (-60.0, -30.0, -50.0, -20.0, 100.0, 0.0, "not a time", "city, old", 1),
]
NAMES = ("west", "south", "east", "north", "lon", "lat", "time", "label", "floor")


@pytest.fixture
def columns() -> FilterColumns:
    values = dict(zip(NAMES, map(list, zip(*ROWS, strict=True)), strict=True))
    return FilterColumns(
        pa.table({"id": list("abcde"), "image": list("abcde"), "caption": [None] * 5, **values})
    )


def kept(table: FilterColumns, /, **conditions: object) -> str:
    mask = table.mask(Filters(**conditions))  # type: ignore[arg-type]
    assert mask is not None and mask.shape == (5,)
    return "".join(np.array(list("abcde"))[mask])


def test_boxes_meet_bounds_and_points(columns):
    assert kept(columns, box=(9, 9, 20, 20)) == "a"
    assert kept(columns, box=(4, 4, 6, 6)) == "ac"
    assert kept(columns, box=(10.5, 0, 20, 20)) == ""
    assert kept(columns, box=(-180, -90, 180, 90)) == "abce"
    assert kept(columns, box=(178, -1, -178, 1)) == "b" == kept(columns, box=(-179, 0, -178, 1))
    assert kept(columns, box=(-55, -25, -54, -24)) == "e"  # bounds count, not the point beside them


def test_a_radius_around_a_place(columns):
    assert (
        kept(columns, near=(11, 5, 11, 5), radius=110) == ""
        and kept(columns, near=(11, 5, 11, 5), radius=111) == "a"
    )  # a degree of longitude is 110.8 km there
    assert kept(columns, near=(5, 5, 5, 5), radius=0) == "ac"
    assert kept(columns, near=(-174.5, 0, -174.5, 0), radius=60) == "b"
    assert kept(columns, near=(0, 0, 0, 0), radius=30_000) == "abce"
    assert (
        columns.mask(Filters(near=(0, 0, 0, 0))) is None
    )  # without a radius it orders, and leaves nothing out
    assert np.isnan(columns.distances((0, 0, 0, 0))[3])
    with pytest.raises(ConfigError, match="a radius without a place"):
        columns.checked(Filters(radius=3.0))
    with pytest.raises(ConfigError, match="outside ±90"):
        columns.checked(Filters(near=(0, 91, 0, 91)))


def test_whether_there_is_any_place_or_time_to_filter_by(columns):
    assert columns.has_places and columns.has_times
    assert not FilterColumns(pa.table({"id": ["a"]})).has_places
    nowhere = pa.table({"id": ["a", "b"], "west": [1.0, None], "time": [None, "not a time"]})
    assert not FilterColumns(nowhere).has_places and not FilterColumns(nowhere).has_times
    point = FilterColumns(pa.table({"id": ["a", "b"], "lon": ["unknown", "5"], "lat": ["n/a", " 6.5 "]}))
    assert point.has_places  # numbers written as text count, other words do not
    mask = point.mask(Filters(box=(4, 6, 6, 7)))
    assert mask is not None and mask.tolist() == [False, True]


def test_times_are_inclusive_periods_in_utc(columns):
    assert kept(columns, start="2024-05-01", stop="2024-05-01") == "ab"
    assert kept(columns, start="2024-05-01T10:00:00Z") == "bc"
    assert kept(columns, stop="2024-05-01T09:59:59Z") == "a"
    assert kept(columns, stop="2024") == "abc"
    with pytest.raises(ConfigError, match="not an ISO 8601 time"):
        columns.checked(Filters(start="yesterday"))
    assert time_limits(Filters()) is None
    moment = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    assert microseconds(moment) == int(moment.timestamp() * 1e6)


def test_timestamps_are_times_too():
    moments = pa.array([datetime.datetime(2024, 5, 1, 12), None], pa.timestamp("us"))
    mask = FilterColumns(pa.table({"id": ["a", "b"], "time": moments})).mask(Filters(start="2024-05"))
    assert mask is not None and mask.tolist() == [True, False]


def test_columns_by_the_text_of_their_values(columns):
    assert kept(columns, columns={"label": ("port",)}) == "ac"
    assert kept(columns, columns={"label": ("port", "farm")}) == "abc"
    assert kept(columns, columns={"floor": ("1",)}) == "ae"
    assert kept(columns, columns={"floor": ("1",), "label": ("port",)}, box=(0, 0, 1, 1)) == "a"
    assert kept(columns, columns={"label": ("none such",)}) == ""
    assert columns.mask(Filters()) is None
    for name in ("height", "image", "id"):
        with pytest.raises(ConfigError, match=f"no metadata column '{name}'(.|\n)*label"):
            columns.mask(Filters(columns={name: ("1",)}))


def test_columns_worth_offering(columns):
    assert columns.values == {"label": ("city, old", "farm", "port")}
    assert columns.ranges == {"floor": ValueRange("integer", 1.0, 3.0)}
    many = FilterColumns(pa.table({"id": list(map(str, range(300))), "code": list(map(str, range(300)))}))
    assert many.values == {"code": ()}
    nested = FilterColumns(pa.table({"id": ["a"], "transform": [[1.0, 2.0]]}))
    assert nested.values == {} and nested.text("transform").to_pylist() == ["[1.0, 2.0]"]


def test_conditions_as_people_write_them():
    assert parse_where([]) == () == parse_where(["", " "])
    assert parse_where([" label = port , label=farm,a=b=c"]) == (
        Condition("label", "=", ("port", "farm")),
        Condition("a", "=", ("b=c",)),
    )
    assert parse_where(["label=city, old", "cloud cover <= 2e1,floor>-3"]) == (
        Condition("label", "=", ("city, old",)),
        Condition("cloud cover", "<=", ("2e1",)),
        Condition("floor", ">", ("-3",)),
    )
    for text in ("label", "=port", "<3"):
        with pytest.raises(ConfigError, match="has no column"):
            parse_where([text])
    for text in ("floor<high", "floor>=nan", "floor<"):
        with pytest.raises(ConfigError, match="is no number"):
            parse_where([text])


def where(table: FilterColumns, *texts: str) -> str:
    return kept(table, conditions=parse_where(texts))


def test_repeated_conditions_must_all_hold(columns):
    assert where(columns, "label=port,label=farm") == "abc"
    assert where(columns, "label=port,label=farm", "floor=1") == "a"
    assert where(columns, "label=port", "label=farm") == ""
    assert where(columns, "label=city, old") == "e"
    assert kept(columns, columns={"label": ("port",)}, conditions=parse_where(["floor=1"])) == "a"


def test_numbers_are_compared_and_equal_as_numbers(columns):
    for row, (*_, floor) in zip("abcde", ROWS, strict=True):
        for sign, holds in (
            ("<", float.__lt__),
            ("<=", float.__le__),
            (">", float.__gt__),
            (">=", float.__ge__),
        ):
            expected = floor is not None and holds(float(floor), 2.0)
            assert (row in where(columns, f"floor{sign}2")) == expected, (row, sign)
    assert where(columns, "floor=1.0") == "ae" == where(columns, "floor=+1") == where(columns, "floor = 1e0")
    assert where(columns, "floor=1.5") == "" == where(columns, "floor=9" + "9" * 30)
    assert where(columns, "west>-61", "west<1") == "ae"
    with pytest.raises(ConfigError, match=r"'label' holds no numbers(.|\n)*numbers here: floor"):
        where(columns, "label<3")
    with pytest.raises(ConfigError, match="no metadata column 'height'"):
        where(columns, "height<3")


def test_equal_numbers_whatever_a_column_stores():
    large = 2**53 + 1
    table = FilterColumns(
        pa.table(
            {
                "id": list("abcde"),
                "valid": [1.0, 0.5, 0.0, None, 0.1],
                "coarse": pa.array([1.0, 0.5, 0.0, None, 0.1], pa.float32()),
                "code": [large, large - 1, 0, None, 7],
                "text": ["1", "1.0", "x", None, "0.1"],
            }
        )
    )
    assert where(table, "valid=1") == "a" == where(table, "valid=1.0") == where(table, "coarse=1.00")
    assert where(table, "valid=.5,valid=0.10") == "be" == where(table, "coarse=.5,coarse=0.10")
    assert where(table, f"code={large}") == "a" and where(table, f"code={large - 1}") == "b"
    assert where(table, "text=1") == "a"  # text stays text, but can be compared where it holds numbers
    assert where(table, "text<0.5") == "e"
    assert {name: (found.kind, found.greatest) for name, found in table.ranges.items()} == {
        "valid": ("number", 1.0), "coarse": ("number", 1.0), "code": ("integer", float(large)),
    }  # fmt: skip


def test_times_of_any_column_are_periods():
    moments = [
        "2024-04-30T23:59:59.999999",
        "2024-05-01T00:00:00",
        "2024-05-31T23:59:59",
        "2024-06-01T00:00:00",
    ]
    days = [None, datetime.date(2023, 12, 31), datetime.date(2024, 1, 1), datetime.date(2024, 2, 29)]
    table = FilterColumns(
        pa.table(
            {
                "id": list("abcde"),
                "seen": pa.array([*map(datetime.datetime.fromisoformat, moments), None], pa.timestamp("ms")),
                "day": [*days, None],
            }
        )
    )
    assert where(table, "seen=2024-05") == "bc" and where(table, "seen=2024-04,seen=2024-06-01") == "ad"
    assert where(table, "seen<2024-05") == "a" and where(table, "seen<=2024-05") == "abc"
    assert where(table, "seen>2024-05") == "d" and where(table, "seen>=2024-05-01T00:00:01Z") == "cd"
    assert where(table, "day>2023", "day<2024-02-29") == "c" and where(table, "day=2024-02-29") == "d"
    assert table.ranges["day"] == ValueRange("time", "2023-12-31T00:00:00+00:00", "2024-02-29T00:00:00+00:00")
    assert table.values == {}
    with pytest.raises(ConfigError, match="not an ISO 8601 time"):
        where(table, "day<20")


def test_a_number_is_not_compared_with_a_time():
    table = FilterColumns(pa.table({"id": ["a"], "floor": [1]}))
    with pytest.raises(ConfigError, match="'floor' holds numbers, and '2024-05-01' is no number"):
        table.mask(Filters(conditions=parse_where(["floor<2024-05-01"])))
