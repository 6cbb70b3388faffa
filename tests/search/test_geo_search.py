"""The whole way: scenes are cut, tiles embedded and indexed, and found again by place, time and tag."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pmpguard.cli.main import run_verb
from pmpguard.cli.search import search
from pmpguard.geo.footprints import boxes_meet
from pmpguard.geo.geojson import hits_to_geojson
from pmpguard.geo.stac import hits_to_stac
from pmpguard.geo.tiles import METADATA, TileSettings, tile_scenes
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search.embed import embed_source
from pmpguard.search.index.changes import build_index
from pmpguard.search.index.updates import add_source
from pmpguard.search.query import Filters, Query
from pmpguard.search.searcher import Searcher
from pmpguard.search.sources import open_source

pytest.importorskip("rasterio", reason="the extra geo is not installed")
pytest.importorskip("pystac", reason="the extra geo is not installed")

from helpers.geo_scene_files import random_pixels, write_scene


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three scenes as tiles, and their index."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("imagery")
    scenes = folder / "scenes"
    write_scene(scenes / "zug_20220611.tif", random_pixels((3, 96, 96)), tags={"PLATFORM": "s2a"})
    fiji = (0.02, 0.0, 179.0, 0.0, -0.02, -16.0)
    write_scene(
        scenes / "fiji_20210101.tif", random_pixels((3, 96, 96), seed=1), crs="EPSG:4326", transform=fiji
    )
    write_scene(scenes / "drone.tif", random_pixels((3, 96, 96), seed=2), crs=None, transform=None)
    tile_scenes(scenes, folder / "tiles", TileSettings(size=48, overlap=0.0))
    settings = RetrieverConfig(dim=16, image_size=32, max_tokens=8)
    Retriever.create(settings, ["a pond beside a road"]).save(folder / "model")
    embed_source(
        open_source(folder / "tiles"), folder / "model", folder / "vectors", threads=0, progress=False
    )
    build_index(folder / "index", folder / "vectors")
    return folder / "tiles", folder / "index"


def found(index: Path, **filters: object) -> list[str]:
    hits = Searcher.open(index).search(Query(text="a pond"), k=50, filters=Filters(**filters))  # type: ignore[arg-type]
    return sorted(hit.id for hit in hits)


def test_a_box_finds_the_tiles_that_meet_it(tiles: tuple[Path, Path]) -> None:
    folder, index = tiles
    table = pq.read_table(folder / METADATA)
    bounds = [table[name].to_numpy(zero_copy_only=False) for name in ("west", "south", "east", "north")]
    ids = np.array(table["id"].to_pylist())
    assert len(found(index)) == len(ids) == 12
    for box in ((179.5, -17.5, -179.5, -16.5), (15.001, 48.751, 15.002, 48.76), (-180.0, -90.0, 180.0, 90.0)):
        expected = sorted(ids[boxes_meet(box, *bounds)])
        assert found(index, box=box) == expected and 0 < len(expected) < 12


def test_times_and_tags_find_their_scenes(tiles: tuple[Path, Path]) -> None:
    _, index = tiles
    assert {name.rpartition("_")[0].rpartition("_")[0] for name in found(index, start="2022")} == {
        "zug_20220611"
    }
    assert len(found(index, stop="2021")) == 4 and found(index, start="2023") == []
    assert len(found(index, columns={"platform": ("s2a",)})) == 4
    assert len(found(index, columns={"scene": ("drone", "fiji_20210101")})) == 8


def test_the_index_says_that_places_and_times_can_be_asked_for(tiles: tuple[Path, Path]) -> None:
    searcher = Searcher.open(tiles[1])
    assert searcher.has_places and searcher.has_times


def test_every_link_of_a_written_collection_leads_to_a_image(
    tiles: tuple[Path, Path], tmp_path: Path
) -> None:
    """Also when the images of an index lie in two folders."""
    import pystac

    index = tmp_path / "index"
    shutil.copytree(tiles[1], index)
    more = tmp_path / "more"
    more.mkdir()
    Image.new("RGB", (40, 40)).save(more / "black image.png")
    add_source(index, open_source(more), device="cpu", progress=False)
    words = [str(index), "a pond", "-k", "50", "--stac", str(tmp_path / "deep" / "hits")]
    assert run_verb("search", search, words) == 0
    collection = pystac.Collection.from_file(str(tmp_path / "deep" / "hits" / "collection.json"))
    items = list(collection.get_items())
    assert len(items) == 13
    for item in items:
        href = item.assets["image"].href
        assert not Path(href).is_absolute() and (Path(item.get_self_href()).parent / href).is_file(), href


def test_answers_leave_as_geojson_and_stac(tiles: tuple[Path, Path], tmp_path: Path) -> None:
    import pystac

    folder, index = tiles
    hits = Searcher.open(index).search(Query(text="a pond"), k=50)
    shapes = {feature["id"]: feature["geometry"] for feature in hits_to_geojson(hits)["features"]}
    assert sum(shape is None for shape in shapes.values()) == 4  # the drone's
    assert (
        sum(shape["type"] == "MultiPolygon" for shape in shapes.values() if shape) == 2
    )  # across 180 degrees
    collection = pystac.Collection.from_file(str(hits_to_stac(hits, tmp_path / "stac", images=folder)))
    items = {item.id: item for item in collection.get_items()}
    assert set(items) == set(shapes)
    zug = items["zug_20220611_0_48"]
    assert zug.properties["proj:code"] == "EPSG:32633" and zug.properties["proj:shape"] == [48, 48]
    assert zug.datetime is not None and zug.datetime.year == 2022
    image = Path(zug.get_self_href()).parent / zug.assets["image"].href
    assert image.resolve().is_file() and image.resolve().is_relative_to(folder)
