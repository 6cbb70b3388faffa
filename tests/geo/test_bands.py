"""Bands by name: no colours are swapped, and files of one band each become one scene."""

import numpy as np
import pytest

from pmpguard.geo.bands import colour_of, true_colour

pytest.importorskip("rasterio", reason="the extra geo is not installed")

import rasterio
from helpers.geo_scene_files import WHERE, cut, pixels_of, random_pixels, write_scene


def named_scene(path, names, pixels, **options):
    write_scene(path, pixels, **options)
    with rasterio.open(path, "r+") as dataset:
        dataset.descriptions = names
    return path


def shown(out, row):
    return np.moveaxis(pixels_of(out, row), -1, 0)  # (3,h,w)


def test_names_of_several_satellites():
    assert true_colour(["B1", "B2", "B3", "B4"]) == (3, 2, 1)
    assert true_colour(["SR_B1", "SR_B2", "SR_B3", "SR_B4"], "LT05_L2SP_195027_19950712") == (2, 1, 0)
    assert true_colour(["blue", "green", "red", "nir"]) == (2, 1, 0)
    assert true_colour(["red", "B04", "green", "blue"]) == (), "two reds"
    assert colour_of("B8A") is colour_of("B04A") is None


def test_bands_are_found_by_their_names_and_not_by_their_order(tmp_path):
    pixels = random_pixels((4, 30, 30))
    named_scene(tmp_path / "in" / "s2.tif", ("B02", "B03", "B04", "B08"), pixels, photometric="MINISBLACK")
    report, [row] = cut(tmp_path / "in", tmp_path / "out", size=30)
    assert np.array_equal(shown(tmp_path / "out", row), pixels[[2, 1, 0]]) and report.warnings == ()


def test_names_against_the_files_own_colours_are_followed_and_said(tmp_path):
    pixels = random_pixels((3, 30, 30))
    named_scene(tmp_path / "a.tif", ("B02", "B03", "B04"), pixels, photometric="RGB")
    report, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=30)
    assert np.array_equal(shown(tmp_path / "out", row), pixels[::-1])
    assert "red, green and blue by their names" in report.warnings[0]


def test_bands_without_names_are_shown_with_a_note(tmp_path):
    pixels = random_pixels((4, 30, 30))
    write_scene(tmp_path / "a.tif", pixels, photometric="MINISBLACK")
    report, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=30)
    assert np.array_equal(shown(tmp_path / "out", row), pixels[:3])
    assert "1, 2, 3 of 4 shown as red, green and blue" in report.warnings[0]


@pytest.mark.parametrize("asked", [("B08", "B04", "B03"), ("b8", "red", "Band 3"), (4, 3, "green")])
def test_bands_are_asked_for_by_name(tmp_path, asked):
    pixels = random_pixels((4, 30, 30))
    named_scene(tmp_path / "a.tif", ("B02", "B03", "B04", "B08"), pixels)
    _, [row] = cut(tmp_path / "a.tif", tmp_path / "out", size=30, bands=asked)
    assert np.array_equal(shown(tmp_path / "out", row), pixels[[3, 2, 1]])


def test_a_name_that_is_not_there_is_told_with_those_that_are(tmp_path):
    named_scene(tmp_path / "a.tif", ("VV", "VH"), random_pixels((2, 30, 30)))
    report, _ = cut(tmp_path / "a.tif", tmp_path / "out", bands=("B04",))
    assert report.exit_code == 1 and "no band B04" in report.problems[0].reason


def band_files(folder, pixels, names, **options):
    for name, band in zip(names, pixels, strict=True):
        write_scene(folder / f"T32TQM_20220611T100601_{name}.tif", band[None], **options)


def test_one_file_per_band_is_one_scene(tmp_path):
    pixels = random_pixels((4, 40, 40))
    band_files(tmp_path / "in", pixels, ("B02_10m", "B03_10m", "B04_10m", "B08_10m"))
    write_scene(tmp_path / "in" / "other.tif", random_pixels((3, 40, 40)))
    report, rows = cut(tmp_path / "in", tmp_path / "out", size=40)
    assert {row["scene"] for row in rows} == {"T32TQM_20220611T100601", "other"} and len(rows) == 2
    row = next(row for row in rows if row["scene"] != "other")
    assert np.array_equal(shown(tmp_path / "out", row), pixels[[2, 1, 0]])
    assert row["time"] == "2022-06-11T10:06:01Z" and row["crs"] == "EPSG:32633"
    assert report.warnings == ()
    again, _ = cut(tmp_path / "in", tmp_path / "out", size=40)
    assert (again.cut, again.found_done) == (0, 2)
    infrared, rows = cut(tmp_path / "in", tmp_path / "more", size=40, bands=("B08", "B04", "B03"))
    assert np.array_equal(shown(tmp_path / "more", rows[0]), pixels[[3, 2, 1]])
    assert infrared.exit_code == 1, "the other scene has no such bands, and is named"


def test_a_changed_band_is_cut_again(tmp_path):
    pixels = random_pixels((3, 40, 40))
    band_files(tmp_path / "in", pixels, ("red", "green", "blue"))
    cut(tmp_path / "in", tmp_path / "out", size=40)
    band_files(tmp_path / "in", pixels[::-1], ("red", "green", "blue"))
    report, [row] = cut(tmp_path / "in", tmp_path / "out", size=40)
    assert report.cut == 1 and np.array_equal(shown(tmp_path / "out", row), pixels[::-1])


def test_a_coarser_band_is_read_on_the_grid_of_the_finest(tmp_path):
    fine, coarse = random_pixels((2, 40, 40)), np.full((1, 20, 20), 77, np.uint8)
    band_files(tmp_path, fine, ("B02", "B03"))
    twice = (20.0, 0.0, WHERE[2], 0.0, -20.0, WHERE[5])
    write_scene(tmp_path / "T32TQM_20220611T100601_B04.tif", coarse, transform=twice)
    _, rows = cut(tmp_path, tmp_path / "out", size=30, overlap=0)
    assert len(rows) == 4
    for row in rows:
        red, green, blue = shown(tmp_path / "out", row)
        place = np.s_[row["row"] : row["row"] + 30, row["column"] : row["column"] + 30]
        assert np.array_equal(blue, fine[0][place]) and np.array_equal(green, fine[1][place])
        assert (red == 77).all()


def test_bands_that_do_not_belong_together_stay_apart(tmp_path):
    """Of other ground, of several bands, or without the colours: grey as before, and the last is said."""
    elsewhere = (10.0, 0.0, 600_000.0, 0.0, -10.0, 5_400_000.0)
    for name, place in (("B02", WHERE), ("B03", elsewhere), ("B04", WHERE)):
        write_scene(tmp_path / "grid" / f"dem_{name}.tif", random_pixels((1, 30, 30)), transform=place)
    for name in ("red", "green", "blue"):
        write_scene(tmp_path / "roofs" / f"{name}.tif", random_pixels((3, 30, 30)))
    band_files(tmp_path / "radar", random_pixels((2, 30, 30)), ("B11", "B12"))
    report, rows = cut(tmp_path, tmp_path / "out", size=30)
    assert len(rows) == 8 and report.exit_code == 0
    [note] = [warning for warning in report.warnings if "single bands" in warning]
    assert "B11, B12" in note


def test_a_stack_whose_band_is_damaged_is_named(tmp_path):
    band_files(tmp_path / "in", random_pixels((3, 40, 40)), ("B02", "B03", "B04"))
    (tmp_path / "in" / "T32TQM_20220611T100601_B03.tif").write_bytes(b"II*\0 and then nothing")
    report, rows = cut(tmp_path / "in", tmp_path / "out", size=40)
    assert report.exit_code == 1 and "B03" in report.problems[0].reason and len(rows) == 2
