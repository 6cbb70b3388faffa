"""Tiles cut from generated scenes: pixels, places, looks, times."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.geo.tiles import offsets

pytest.importorskip("rasterio", reason="the extra geo is not installed")

import rasterio
from helpers.geo_scene_files import UTM, WHERE, cut, pixels_of, random_pixels, write_scene
from rasterio.transform import Affine, array_bounds
from rasterio.warp import transform_bounds
from rasterio.windows import Window
from rasterio.windows import transform as window_transform


@given(st.integers(1, 400), st.integers(1, 150), st.floats(0, 0.99))
def test_every_pixel_lies_in_a_tile_and_no_tile_leaves_the_scene(extent, size, overlap):
    starts = offsets(extent, size, overlap)
    length = min(size, extent)
    covered = np.zeros(extent, int)
    for start in starts:
        assert 0 <= start <= extent - length
        covered[start : start + length] += 1
    assert covered.min() >= 1
    assert len(set(starts)) == len(starts) and starts == sorted(starts)


def test_neighbours_overlap_by_the_share_asked_for():
    assert offsets(1000, 100, 0.25)[:3] == [0, 75, 150]
    assert offsets(1000, 100, 0.0) == list(range(0, 1000, 100))


@pytest.mark.parametrize(("size", "overlap"), [(32, 0.25), (50, 0.0), (17, 0.9), (500, 0.5)])
def test_tiles_hold_exactly_the_pixels_of_their_place(tmp_path, size, overlap):
    pixels = random_pixels((3, 70, 95))
    write_scene(tmp_path / "in" / "town.tif", pixels)
    report, rows = cut(tmp_path / "in", tmp_path / "out", size=size, overlap=overlap)
    assert report.exit_code == 0 and report.tiles == len(rows) > 0
    covered = np.zeros((70, 95), bool)
    for row in rows:
        place = np.s_[row["row"] : row["row"] + row["height"], row["column"] : row["column"] + row["width"]]
        assert np.array_equal(pixels_of(tmp_path / "out", row), np.moveaxis(pixels, 0, -1)[place])
        assert row["id"] == f"town_{row['row']}_{row['column']}"
        covered[place] = True
    assert covered.all()


NORTH_UP = WHERE
TURNED = tuple(Affine.translation(500_000, 5_400_000) @ Affine.rotation(30) @ Affine.scale(10, -10))[:6]


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (UTM, NORTH_UP),
        (UTM, TURNED),
        ("EPSG:4326", (0.001, 0, 8.0, 0, -0.001, 47.0)),
        ("EPSG:4326", (0.001, 0, 8.0, 0, 0.001, 47.0)),  # south up
        ("EPSG:3857", (10.0, 0, 900_000.0, 0, -10.0, 6_000_000.0)),
        ("EPSG:3031", (100.0, 0, 1_000_000.0, 0, -100.0, 900_000.0)),
    ],
)
def test_places_are_those_rasterio_gives(tmp_path, crs, transform):
    write_scene(tmp_path / "a.tif", random_pixels((3, 80, 60)), crs=crs, transform=transform)
    _, rows = cut(tmp_path / "a.tif", tmp_path / "out", size=32, overlap=0.5)
    for row in rows:
        window = Window(row["column"], row["row"], row["width"], row["height"])
        place = window_transform(window, Affine(*transform))
        assert row["crs"] == crs
        assert row["transform"] == pytest.approx(tuple(place)[:6])
        west, south, east, north = array_bounds(row["height"], row["width"], place)
        assert [row[name] for name in ("left", "bottom", "right", "top")] == pytest.approx(
            [min(west, east), min(south, north), max(west, east), max(south, north)]
        )
        own = [row[name] for name in ("left", "bottom", "right", "top")]
        degrees = [row[name] for name in ("west", "south", "east", "north")]
        assert degrees == pytest.approx(transform_bounds(crs, "EPSG:4326", *own))
        # every point of the tile lies in its box
        xs, ys = zip(*[place @ (c, r) for c in (0, 7.5, 32) for r in (0, 20, 32)], strict=True)
        for x, y in zip(*rasterio.warp.transform(crs, "EPSG:4326", xs, ys), strict=True):
            assert degrees[0] - 1e-9 <= x <= degrees[2] + 1e-9 and degrees[1] - 1e-9 <= y <= degrees[3] + 1e-9


@pytest.mark.parametrize(
    ("crs", "transform", "metres"),
    [
        (UTM, NORTH_UP, 10.0),
        (UTM, TURNED, 10.0),
        ("EPSG:4326", (0.001, 0, 8.0, 0, -0.001, 60.0), 111.3 * math.sqrt(0.5)),
        ("EPSG:3857", (10.0, 0, 900_000.0, 0, -10.0, 8_399_738.0), 5.0),  # at 60 degrees north
    ],
)
def test_resolution_is_metres_on_the_ground(tmp_path, crs, transform, metres):
    write_scene(tmp_path / "a.tif", random_pixels((3, 20, 20)), crs=crs, transform=transform)
    _, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=20)
    assert row["resolution"] == pytest.approx(metres, rel=0.005)


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        ("EPSG:4326", (0.1, 0, 178.0, 0, -0.1, 10.0)),  # goes on to 182 degrees
        ("EPSG:3857", (10_000.0, 0, 19_850_000.0, 0, -10_000.0, 1_000_000.0)),
        ("EPSG:32660", (10_000.0, 0, 600_000.0, 0, -10_000.0, 1_000_000.0)),
    ],
)
def test_scenes_across_the_antimeridian(tmp_path, crs, transform):
    write_scene(tmp_path / "fiji.tif", random_pixels((3, 40, 40)), crs=crs, transform=transform)
    _, [row] = cut(tmp_path / "fiji.tif", tmp_path / "out", size=40)
    assert 170 < row["west"] <= 180 and -180 <= row["east"] < -170
    assert (row["east"] - row["west"]) % 360 < 10
    assert -10 < row["south"] < row["north"] < 15


def test_longitudes_counted_to_360_are_brought_back(tmp_path):
    write_scene(
        tmp_path / "a.tif",
        random_pixels((3, 10, 10)),
        crs="EPSG:4326",
        transform=(0.1, 0, 200.0, 0, -0.1, 5.0),
    )
    _, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=10)
    assert [row["west"], row["east"]] == pytest.approx([-160.0, -159.0])


def test_a_tile_over_the_pole_has_all_longitudes(tmp_path):
    write_scene(
        tmp_path / "a.tif",
        random_pixels((3, 20, 20)),
        crs="EPSG:3995",
        transform=(1000.0, 0, -10_000.0, 0, -1000.0, 10_000.0),
    )
    _, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=20)
    assert (row["west"], row["east"], row["north"]) == (-180, 180, 90) and 89 < row["south"] < 90


@pytest.mark.parametrize(("crs", "transform"), [(None, None), (None, WHERE), (UTM, None)])
def test_a_scene_without_a_place_is_cut_without_coordinates(tmp_path, crs, transform):
    write_scene(tmp_path / "drone.tif", random_pixels((3, 20, 20)), crs=crs, transform=transform)
    report, [row] = cut(tmp_path / "drone.tif", tmp_path / "out", size=20)
    assert (
        report.exit_code == 0 and "no coordinates" in report.warnings[0] and "drone.tif" in report.warnings[0]
    )
    assert [row[name] for name in ("west", "crs", "left", "transform", "resolution")] == [None] * 5
    assert (row["row"], row["column"]) == (0, 0)


def test_a_scene_of_another_planet_is_cut_without_coordinates(tmp_path):
    moon = "+proj=longlat +R=1737400 +no_defs"
    write_scene(tmp_path / "moon.tif", random_pixels((3, 8, 8)), crs=moon, transform=(0.1, 0, 5, 0, -0.1, 5))
    report, [row] = cut(tmp_path / "moon.tif", tmp_path / "out", size=8)
    assert row["west"] is None and "no way from its reference system" in report.warnings[0]


def test_tiles_mostly_without_data_are_left_out_and_counted(tmp_path):
    pixels = random_pixels((3, 40, 40))
    pixels[:, :20, :20] = 0  # one of four tiles
    pixels[:, :10, 20:] = 0  # half of another
    pixels[0, 25, 25] = 0  # one band of one pixel: still data
    write_scene(tmp_path / "a.tif", pixels, nodata=0)
    report, rows = cut(tmp_path / "a.tif", tmp_path / "half", size=20, overlap=0)
    assert report.left_out == 1 and {(row["row"], row["column"]): row["valid"] for row in rows} == {
        (0, 20): 0.5,
        (20, 0): 1.0,
        (20, 20): 1.0,
    }
    report, rows = cut(tmp_path / "a.tif", tmp_path / "most", size=20, overlap=0, min_valid=0.6)
    assert report.left_out == 2 and len(rows) == 2
    report, rows = cut(tmp_path / "a.tif", tmp_path / "any", size=20, overlap=0, min_valid=0)
    assert report.left_out == 1, "a tile without any data is never written"


def test_nodata_may_be_named_where_the_scene_does_not_say(tmp_path):
    pixels = random_pixels((3, 20, 40))
    pixels[:, :, :20] = 0
    write_scene(tmp_path / "a.tif", pixels)
    assert len(cut(tmp_path / "a.tif", tmp_path / "all", size=20, overlap=0)[1]) == 2
    assert len(cut(tmp_path / "a.tif", tmp_path / "named", size=20, overlap=0, nodata=0.0)[1]) == 1


def test_an_alpha_band_says_where_there_is_data(tmp_path):
    pixels = random_pixels((4, 20, 40))
    pixels[3] = 255
    pixels[3, :, :20] = 0
    write_scene(tmp_path / "a.tif", pixels, colours=("red", "green", "blue", "alpha"))
    _, rows = cut(tmp_path / "a.tif", tmp_path / "out", size=20, overlap=0)
    assert [row["column"] for row in rows] == [20]


def test_16_bit_bands_are_stretched_alike_over_the_scene_without_its_nodata(tmp_path):
    pixels = random_pixels((4, 60, 80), "uint16") // 20 + 1000
    pixels[:, :, :30] = 65_535
    write_scene(tmp_path / "s.tif", pixels, nodata=65_535)
    report, rows = cut(tmp_path / "s.tif", tmp_path / "out", size=40, overlap=0, min_valid=0.2)
    valid = pixels[0] != 65_535
    expected = np.zeros((60, 80, 3), np.uint8)
    for band in range(3):
        low, high = np.percentile(pixels[band][valid], (2, 98))
        for y, x in zip(*np.nonzero(valid), strict=True):
            expected[y, x, band] = round(
                min(max((float(pixels[band, y, x]) - low) / (high - low), 0), 1) * 255
            )
    assert report.left_out == 0
    for row in rows:
        place = np.s_[row["row"] : row["row"] + 40, row["column"] : row["column"] + 40]
        assert np.array_equal(pixels_of(tmp_path / "out", row), expected[place])


@pytest.mark.parametrize(
    ("kind", "stretch", "expected"),
    [
        ("uint8", "auto", [10, 100, 200]),
        ("uint8", "none", [10, 100, 200]),
        ("uint8", "minmax", [0, 121, 255]),
        ("uint16", "none", [10, 100, 200]),
        ("uint16", "minmax", [0, 121, 255]),
        ("float32", "minmax", [0, 121, 255]),
        ("int16", "auto", [0, 121, 255]),
    ],
)
def test_stretches(tmp_path, kind, stretch, expected):
    values = np.array([[[10, 100, 200]]], kind).repeat(3, axis=0)
    write_scene(tmp_path / "a.tif", values)
    _, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=8, stretch=stretch)
    if (kind, stretch) == ("int16", "auto"):  # percentiles of three values
        low, high = np.percentile([10, 100, 200], (2, 98))
        expected = [0, round((100 - low) / (high - low) * 255), 255]
    assert pixels_of(tmp_path / "out", row)[0].tolist() == [[value] * 3 for value in expected]


def test_values_that_are_no_numbers_count_as_no_data(tmp_path):
    values = np.full((1, 4, 4), np.nan, np.float32)
    values[0, :2] = [[0.0, 1.0, 0.5, 1.0], [0.0, np.inf, 0.0, 1.0]]
    write_scene(tmp_path / "a.tif", values)
    _, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=4, stretch="minmax", min_valid=0.4)
    assert row["valid"] == 7 / 16
    assert pixels_of(tmp_path / "out", row)[..., 0].tolist() == [
        [0, 255, 128, 255],
        [0, 0, 0, 255],
        [0] * 4,
        [0] * 4,
    ]


def test_bands_by_name_by_number_and_as_grey(tmp_path):
    pixels = random_pixels((4, 8, 8))
    write_scene(tmp_path / "a.tif", pixels, colours=("blue", "green", "red", "undefined"))
    wanted = {(): (2, 1, 0), (4, 3, 2): (3, 2, 1), (4,): (3, 3, 3)}
    for number, (bands, expected) in enumerate(wanted.items()):
        _, [row] = cut(tmp_path / "a.tif", tmp_path / f"out{number}", size=8, bands=bands)
        assert np.array_equal(
            pixels_of(tmp_path / f"out{number}", row), np.moveaxis(pixels[list(expected)], 0, -1)
        )
    write_scene(tmp_path / "two.tif", pixels[:2], colours=("gray", "undefined"))
    _, [row] = cut(tmp_path / "two.tif", tmp_path / "grey", size=8)
    assert np.array_equal(pixels_of(tmp_path / "grey", row), pixels[0][..., None].repeat(3, axis=-1))


def test_a_band_the_scene_lacks_is_reported_for_that_scene_only(tmp_path):
    write_scene(tmp_path / "in" / "rgb.tif", random_pixels((3, 8, 8)))
    write_scene(
        tmp_path / "in" / "four.tif", random_pixels((4, 8, 8)), colours=("red", "green", "blue", "undefined")
    )
    report, rows = cut(tmp_path / "in", tmp_path / "out", size=8, bands=(4, 2, 1))
    assert report.exit_code == 1 and "rgb.tif: no band 4" in report.problems[0].reason
    assert [row["scene"] for row in rows] == ["four"]


def test_a_palette_gives_its_colours(tmp_path):
    indices = np.array([[[0, 1, 2, 7]]], np.uint8)
    palette = {0: (10, 20, 30, 255), 1: (200, 100, 50, 255), 2: (0, 255, 0, 255)}
    write_scene(tmp_path / "classes.tif", indices, palette=palette)
    _, [row] = cut(tmp_path / "classes.tif", tmp_path / "out", size=4)
    assert pixels_of(tmp_path / "out", row)[0].tolist() == [
        [10, 20, 30],
        [200, 100, 50],
        [0, 255, 0],
        [0, 0, 0],
    ]


def test_jpeg_tiles_are_close_to_the_scene(tmp_path):
    ramp = np.linspace(0, 255, 64).astype(np.uint8)
    pixels = np.broadcast_to(ramp, (3, 64, 64)).copy()
    write_scene(tmp_path / "a.tif", pixels)
    _, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=64, format="jpeg", quality=95)
    assert row["image"].endswith(".jpg")
    assert np.abs(pixels_of(tmp_path / "out", row).astype(int) - np.moveaxis(pixels, 0, -1)).max() < 8


def test_time_cloud_cover_and_tags(tmp_path):
    folder = tmp_path / "in"
    pixels = random_pixels((3, 8, 8))
    write_scene(folder / "tagged_20200101.tif", pixels, tags={"TIFFTAG_DATETIME": "2021:06:05 10:20:30"})
    write_scene(
        folder / "acquired.tif", pixels, tags={"ACQUISITION_DATE": "2019-03-04", "CLOUD_COVER": "12.5"}
    )
    write_scene(folder / "T32_20220611T100601_TCI.tif", pixels, tags={"SENSOR": "MSI", "TITLE": "Zug"})
    write_scene(
        folder / "item.tif", pixels, tags={"TIFFTAG_DATETIME": "2021:06:05 10:20:30", "PLATFORM": "x"}
    )
    properties = {
        "datetime": "2023-01-02T03:04:05+01:00",
        "eo:cloud_cover": 7,
        "platform": "s2a",
        "bands": [1],
    }
    item = {"type": "Feature", "stac_version": "1.0.0", "properties": properties}
    (folder / "item.json").write_text(json.dumps(item))
    write_scene(folder / "unknown.tif", pixels)
    (folder / "unknown.json").write_text("{")
    report, rows = cut(folder, tmp_path / "out", size=8)
    found = {row["scene"]: row for row in rows}
    assert {name: (row["time"], row["time_source"]) for name, row in found.items()} == {
        "tagged_20200101": ("2021-06-05T10:20:30Z", "tag"),
        "acquired": ("2019-03-04T00:00:00Z", "tag"),
        "T32_20220611T100601_TCI": ("2022-06-11T10:06:01Z", "name"),
        "item": ("2023-01-02T02:04:05Z", "stac"),
        "unknown": (None, None),
    }
    assert {name: row["cloud_cover"] for name, row in found.items() if row["cloud_cover"]} == {
        "acquired": 12.5,
        "item": 7.0,
    }
    assert found["item"]["platform"] == "s2a" and found["unknown"]["platform"] is None
    assert found["T32_20220611T100601_TCI"]["sensor"] == "MSI"
    assert found["T32_20220611T100601_TCI"]["scene_title"] == "Zug", "a title is no caption of a tile"
    assert any("unknown.json" in warning for warning in report.warnings)
