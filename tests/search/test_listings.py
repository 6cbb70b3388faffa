"""CSV files that describe images."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from PIL import Image

from pmpguard.errors import DataError
from pmpguard.search.sources import open_source

HEADER = "filename,Latitude,longitude,cloud_cover,acquired,code,sensor,notes\n"
ROWS = (
    "port/1.png,47.5,8.5,12,2024-05-01,007,A,\n"
    "port/2.png,,,3.5,2024-06-01,012,B,windy\n"
    "farm/3.png,-10,170,NA,2023-01-31,100,A,\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("port/1.png", "port/2.png", "farm/3.png", "4.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "places.csv").write_text(HEADER + ROWS)
    return tmp_path


def test_a_csv_without_captions_describes_images_and_its_columns_are_typed(folder):
    source = open_source(folder / "places.csv")
    assert source.ids == ["port/1.png", "port/2.png", "farm/3.png"] and source.captions is None
    columns = {name: source.images.column(name) for name in ("lat", "lon", "cloud_cover", "acquired", "code")}
    assert columns["lat"] == [47.5, None, -10.0] and columns["lon"] == [8.5, None, 170.0]
    assert columns["cloud_cover"] == [12.0, 3.5, None] and columns["code"] == ["007", "012", "100"]
    assert columns["acquired"][2] == datetime.date(2023, 1, 31)
    assert source.images.column("sensor") == ["A", "B", "A"]


def test_in_a_folder_all_images_are_there_described_or_not_and_their_folders_too(folder):
    source = open_source(folder)
    assert source.ids == ["4.png", "farm/3.png", "port/1.png", "port/2.png"]
    assert source.images.column("folder") == ["", "farm", "port", "port"]
    assert source.images.column("cloud_cover") == [None, None, 12.0, 3.5]
    assert source.images.column("split") == [""] * 4


def test_images_below_the_listing_are_found_with_the_names_it_uses(folder):
    inside = folder / "set"
    inside.mkdir()
    for name in ("port", "farm"):
        (folder / name).rename(inside / name)
    source = open_source(folder)
    assert source.ids == ["4.png", "set/farm/3.png", "set/port/1.png", "set/port/2.png"]
    assert source.images.column("cloud_cover") == [None, None, 12.0, 3.5]


def test_what_cannot_be_meant_is_named(folder):
    listing = folder / "places.csv"
    listing.write_text(HEADER + ROWS + "port/9.png,1,1,1,2024-01-01,1,A,\n")
    with pytest.raises(DataError, match=r"port/9\.png: no such image, and places describes it"):
        open_source(folder)
    listing.write_text(HEADER + ROWS + ROWS)
    with pytest.raises(DataError, match=r"places\.csv: image port/1\.png is described twice"):
        open_source(folder)
    listing.write_text(HEADER + "port/1.png,95,8,1,2024-01-01,1,A,\n")
    with pytest.raises(DataError, match=r"places\.csv line 2: lat is 95, outside ±90"):
        open_source(folder)
    listing.write_text(HEADER + ROWS)
    (folder / "more.csv").write_text("image,x\n4.png,1\n")
    with pytest.raises(DataError, match=r"more\.csv and places\.csv both describe images"):
        open_source(folder)


def test_numbers_of_a_csv_with_captions_are_typed_too(folder):
    (folder / "places.csv").unlink()
    (folder / "pairs.csv").write_text("image,caption,clouds,id\nport/1.png,a port,5,01\nport/2.png,two,,02\n")
    images = open_source(folder / "pairs.csv").images
    assert images.column("clouds") == [5, None] and images.column("id") == ["01", "02"]


def test_a_csv_of_something_else_is_no_listing(folder):
    (folder / "places.csv").write_text("name,count\nport,2\nfarm,1\n")
    assert (
        open_source(folder).ids[0] == "4.png" and "count" not in open_source(folder).images.arrow.column_names
    )
