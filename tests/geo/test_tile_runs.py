"""Cutting scenes again and again: damage, resuming, replacing, memory."""

import os
import subprocess
import sys

import numpy as np
import pytest

from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.files import verify_manifest
from pmpguard.geo.tiles import TileSettings, tile_scenes

pytest.importorskip("rasterio", reason="the extra geo is not installed")

import rasterio
from helpers.geo_scene_files import UTM, WHERE, cut, pixels_of, random_pixels, write_scene
from rasterio.transform import Affine
from rasterio.windows import Window


def test_damaged_scenes_are_named_and_the_rest_is_cut(tmp_path):
    folder = tmp_path / "in"
    whole = write_scene(folder / "whole.tif", random_pixels((3, 64, 64)))
    data = write_scene(folder / "truncated.tif", random_pixels((3, 64, 64))).read_bytes()
    (folder / "truncated.tif").write_bytes(data[: len(data) // 2])
    (folder / "empty.tif").write_bytes(b"")
    (folder / "text.tif").write_text("not an image")
    (folder / "virtual.tif").write_text(
        f'<VRTDataset rasterXSize="64" rasterYSize="64"><VRTRasterBand dataType="Byte" band="1">'
        f"<SimpleSource><SourceFilename>{whole}</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>"
    )
    write_scene(folder / "radar.tif", np.ones((1, 8, 8), np.complex64))
    report, rows = cut(folder, tmp_path / "out", size=32, overlap=0)
    assert report.exit_code == 1 and {row["scene"] for row in rows} == {"whole"} and len(rows) == 4
    reasons = {problem.image.rpartition("/")[2]: problem.reason for problem in report.problems}
    assert set(reasons) == {"truncated.tif", "empty.tif", "text.tif", "virtual.tif", "radar.tif"}
    assert all(name in reason for name, reason in reasons.items())
    assert "complex" in reasons["radar.tif"] and "damaged" in reasons["truncated.tif"]
    text = report.as_text()
    assert "truncated.tif" in text and report.problems[0].image.endswith("empty.tif")
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
from pmpguard.geo.tiles import TileSettings, tile_scenes
import rasterio, PIL.Image, rasterio.warp, rasterio.windows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = tile_scenes(Path(sys.argv[1]), Path(sys.argv[2]), TileSettings(size=1024, overlap=0))
print(report.tiles, report.left_out, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
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


def test_what_other_scenes_have_left_can_be_forgotten(tmp_path):
    for name in ("a", "b"):
        write_scene(tmp_path / "in" / f"{name}.tif", random_pixels((3, 40, 40)))
    cut(tmp_path / "in", tmp_path / "out", size=20, overlap=0.0)
    (tmp_path / "in" / "b.tif").unlink()
    report = tile_scenes(tmp_path / "in", tmp_path / "out", TileSettings(20, 0.0), forget_others=True)
    assert (report.tiles, report.cut, report.found_done) == (4, 0, 1)
    assert [path.name[0] for path in (tmp_path / "out").iterdir() if path.is_dir()] == ["a"]
