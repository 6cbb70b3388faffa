"""Tiles cut from generated scenes: pixels, places, looks, damage, resuming."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.files import verify_manifest
from pmpguard.search.geo_tiles import METADATA, TileSettings, offsets, tile_scenes

pytest.importorskip("rasterio", reason="the extra geo is not installed")

import rasterio
from geo_scene_files import UTM, WHERE, random_pixels, write_scene
from rasterio.transform import Affine, array_bounds
from rasterio.warp import transform_bounds
from rasterio.windows import Window
from rasterio.windows import transform as window_transform


def cut(scenes, out, **settings):
    """Cut scenes; the report and the rows of metadata.parquet."""
    report = tile_scenes(scenes, out, TileSettings(**settings))
    return report, pq.read_table(out / METADATA).to_pylist()


def pixels_of(out, row):
    return np.asarray(Image.open(out / row["image"]))  # (height,width,3)


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


def test_damaged_scenes_are_named_and_the_rest_is_cut(tmp_path):
    folder = tmp_path / "in"
    whole = write_scene(folder / "whole.tif", random_pixels((3, 64, 64)))
    data = write_scene(folder / "truncated.tif", random_pixels((3, 64, 64))).read_bytes()
    (folder / "truncated.tif").write_bytes(data[: len(data) // 2])
    (folder / "empty.tif").write_bytes(b"")
    (folder / "text.tif").write_text("not a picture")
    (folder / "virtual.tif").write_text(
        f'<VRTDataset rasterXSize="64" rasterYSize="64"><VRTRasterBand dataType="Byte" band="1">'
        f"<SimpleSource><SourceFilename>{whole}</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>"
    )
    write_scene(folder / "radar.tif", np.ones((1, 8, 8), np.complex64))
    report, rows = cut(folder, tmp_path / "out", size=32, overlap=0)
    assert report.exit_code == 1 and {row["scene"] for row in rows} == {"whole"} and len(rows) == 4
    reasons = {problem.scene.rpartition("/")[2]: problem.reason for problem in report.problems}
    assert set(reasons) == {"truncated.tif", "empty.tif", "text.tif", "virtual.tif", "radar.tif"}
    assert all(name in reason for name, reason in reasons.items())
    assert "complex" in reasons["radar.tif"] and "damaged" in reasons["truncated.tif"]
    text = report.as_text()
    assert "truncated.tif" in text and report.as_dict()["problems"][0]["scene"].endswith("empty.tif")
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith((".tmp", "truncated"))]


def test_a_scene_in_huge_blocks_is_refused(tmp_path):
    side = 16_384
    with rasterio.open(
        tmp_path / "a.tif",
        "w",
        driver="GTiff",
        width=side,
        height=side,
        count=3,
        dtype="uint16",
        interleave="pixel",
        tiled=True,
        blockxsize=side,
        blockysize=side,
        sparse_ok=True,
        crs=UTM,
        transform=Affine(*WHERE),
    ):
        pass
    report, rows = cut(tmp_path / "a.tif", tmp_path / "out")
    assert rows == [] and "too large to read in parts" in report.problems[0].reason


def test_a_second_run_finds_its_work_done_and_adds_what_is_new(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    write_scene(folder / "a.tif", random_pixels((3, 16, 16)))
    cut(folder, out, size=16)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*.png")}
    write_scene(folder / "sub" / "a.tif", random_pixels((3, 16, 16), seed=1))
    report, rows = cut(folder, out, size=16)
    assert (report.cut, report.found_done, report.tiles) == (1, 1, 2)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert len({row["id"] for row in rows}) == 2 and all("/" not in row["id"] for row in rows)
    assert {row["id"] for row in rows} == {row["id"] for row in cut(folder, out, size=16)[1]}


def test_a_changed_scene_or_setting_is_cut_anew_and_replaces_the_old(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    write_scene(folder / "a.tif", random_pixels((3, 16, 16)))
    cut(folder, out, size=16)
    assert [cut(folder, out, size=8, overlap=0)[0].cut, len(list(out.rglob("*.png")))] == [1, 4]
    pixels = random_pixels((3, 16, 16), seed=9)
    write_scene(folder / "a.tif", pixels)
    report, rows = cut(folder, out, size=8, overlap=0)
    assert report.cut == 1 and len(list(out.rglob("*.png"))) == 4
    assert np.array_equal(pixels_of(out, rows[0]), np.moveaxis(pixels[:, :8, :8], 0, -1))
    (folder / "a.tif").write_bytes(b"broken")
    report, rows = cut(folder, out, size=8, overlap=0)
    assert report.exit_code == 1 and len(rows) == 4, "the tiles of the scene before it broke are kept"


def test_tiles_outlive_their_scene_and_another_of_its_name_is_refused(tmp_path):
    out = tmp_path / "out"
    first = write_scene(tmp_path / "one" / "a.tif", random_pixels((3, 8, 8)))
    write_scene(tmp_path / "two" / "a.tif", random_pixels((3, 8, 8), seed=1))
    cut(tmp_path / "one", out, size=8)
    report, _ = cut(tmp_path / "two", out, size=8)
    assert report.exit_code == 1 and f"another scene of this name, {first}" in report.problems[0].reason
    first.unlink()
    write_scene(tmp_path / "one" / "b.tif", random_pixels((3, 8, 8)))
    report, rows = cut(tmp_path / "one", out, size=8)
    assert report.exit_code == 0 and {row["scene"] for row in rows} == {"a", "b"}


def test_every_scene_folder_verifies(tmp_path):
    write_scene(tmp_path / "a.tif", random_pixels((3, 16, 16)))
    _, rows = cut(tmp_path / "a.tif", tmp_path / "out", size=16)
    folder = (tmp_path / "out" / rows[0]["image"]).parent
    verify_manifest(folder)
    (tmp_path / "out" / rows[0]["image"]).write_bytes(b"x")
    with pytest.raises(PmpguardError, match="content differs"):
        verify_manifest(folder)


def test_a_folder_without_scenes_and_a_missing_one(tmp_path):
    with pytest.raises(DataError, match="no GeoTIFF files"):
        cut(tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="no such file or folder"):
        cut(tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize(
    "wrong",
    [{"size": 0}, {"overlap": 1.0}, {"overlap": -0.1}, {"min_valid": 1.5}, {"bands": (1, 2)}, {"quality": 0}],
)
def test_settings_out_of_range(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TileSettings(**wrong)


MEASURE = """
import resource, sys
from pathlib import Path
from pmpguard.search.geo_tiles import TileSettings, tile_scenes
import rasterio, PIL.Image, rasterio.warp, rasterio.windows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = tile_scenes(Path(sys.argv[1]), Path(sys.argv[2]), TileSettings(size=1024, overlap=0))
print(report.tiles, report.left_out, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_scene_is_never_in_memory_at_once(tmp_path):
    """12,000 x 12,000 pixels of three 16-bit bands are 864 MB; most blocks of this file are not there."""
    side = 12_000
    with rasterio.open(
        tmp_path / "a.tif",
        "w",
        driver="GTiff",
        width=side,
        height=side,
        count=3,
        dtype="uint16",
        crs=UTM,
        transform=Affine(*WHERE),
        nodata=0,
        tiled=True,
        blockxsize=512,
        blockysize=512,
        sparse_ok=True,
        compress="deflate",
        bigtiff="yes",
    ) as dataset:
        dataset.write(random_pixels((3, 1024, 1024), "uint16"), window=Window(5120, 10_240, 1024, 1024))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "a.tif"), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    tiles, left_out, kilobytes = map(int, result.stdout.split())
    assert (tiles, left_out) == (1, 12 * 12 - 1)
    assert kilobytes < 450_000
