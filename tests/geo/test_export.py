"""Answers written as GeoJSON and as STAC."""

import datetime
import json

import numpy as np
import pytest
from helpers.stac_schemas import PROJECTION

from pmpguard.errors import DataError
from pmpguard.files import plain_value
from pmpguard.geo.geojson import hits_to_geojson
from pmpguard.search.query import SearchHit


def hit(name, metadata, probability=0.5, image="tiles/a.png"):
    return SearchHit(name, 1.25, probability, "image", None, image, metadata)


ZUG = {
    "west": 8.4,
    "south": 47.1,
    "east": 8.5,
    "north": 47.2,
    "crs": "EPSG:32632",
    "left": 454_000.0,
    "bottom": 5_216_000.0,
    "right": 456_560.0,
    "top": 5_218_560.0,
    "transform": [10.0, 0.0, 454_000.0, 0.0, -10.0, 5_218_560.0],
    "width": 256,
    "height": 256,
    "resolution": 10.0,
    "time": "2022-06-11T10:06:01Z",
    "cloud_cover": float("nan"),
}
FIJI = {"west": 178.0, "south": -19.0, "east": -179.0, "north": -16.0, "time": "2021-01-01T00:00:00Z"}
HITS = [
    hit("zug_0_0", ZUG),
    hit("fiji", FIJI, probability=None),
    hit("point", {"lon": 8.0, "lat": 47.0, "time": datetime.datetime(2020, 5, 1)}),
    hit("../nowhere/ü", {"class": "pond", "count": np.int64(3)}, image=None),
]


def test_geojson_has_every_hit_in_order_with_its_geometry():
    collection = json.loads(json.dumps(hits_to_geojson(HITS), allow_nan=False))
    assert collection["type"] == "FeatureCollection"
    zug, fiji, point, nowhere = collection["features"]
    assert zug["geometry"] == {
        "type": "Polygon",
        "coordinates": [[[8.4, 47.1], [8.5, 47.1], [8.5, 47.2], [8.4, 47.2], [8.4, 47.1]]],
    }
    assert zug["bbox"] == [8.4, 47.1, 8.5, 47.2]
    assert [ring[0][0] for ring in fiji["geometry"]["coordinates"]] == [[178.0, -19.0], [-180.0, -19.0]]
    assert fiji["geometry"]["type"] == "MultiPolygon" and fiji["bbox"] == [178.0, -19.0, -179.0, -16.0]
    assert point["geometry"] == {"type": "Point", "coordinates": [8.0, 47.0]}
    assert nowhere["geometry"] is None and "bbox" not in nowhere
    assert [feature["id"] for feature in collection["features"]] == [hit.id for hit in HITS]


def test_geojson_properties():
    features = hits_to_geojson(HITS)["features"]
    assert {name: features[0]["properties"][name] for name in ("id", "score", "probability", "image")} == {
        "id": "zug_0_0",
        "score": 1.25,
        "probability": 0.5,
        "image": "tiles/a.png",
    }
    assert features[0]["properties"]["cloud_cover"] is None
    assert json.loads(features[0]["properties"]["transform"]) == ZUG["transform"]
    assert features[1]["properties"]["probability"] is None
    assert features[2]["properties"]["time"] == "2020-05-01T00:00:00"
    assert features[3]["properties"] == {
        "rank": 4, "id": "../nowhere/ü", "score": 1.25, "probability": 0.5, "caption": None, "image": None,
        "class": "pond", "count": 3,
    }  # fmt: skip
    flat = [value for feature in features for value in feature["properties"].values()]
    assert not any(isinstance(value, list | dict) for value in flat)


def test_no_hits_make_an_empty_collection():
    assert hits_to_geojson([]) == {"type": "FeatureCollection", "features": []}


def test_any_value_becomes_plain():
    assert plain_value([np.array([1.0, np.inf]), b"x", {"a"}, True]) == [[1.0, None], "b'x'", ["a"], True]


@pytest.fixture
def pystac():
    return pytest.importorskip("pystac", reason="the extra geo is not installed")


def written_items(pystac, path):
    return {item.id: item for item in pystac.Collection.from_file(str(path)).get_items()}


def test_a_stac_collection_reads_back_as_it_was(pystac, tmp_path):
    from pmpguard.geo.stac import hits_to_stac

    path = hits_to_stac(HITS, tmp_path / "stac", images=tmp_path / "images")
    assert path == tmp_path / "stac" / "collection.json"
    items = written_items(pystac, path)
    assert set(items) == {hit.id for hit in HITS}
    zug = items["zug_0_0"]
    assert zug.bbox == [8.4, 47.1, 8.5, 47.2] and zug.datetime == datetime.datetime(
        2022, 6, 11, 10, 6, 1, tzinfo=datetime.UTC
    )
    assert zug.properties["proj:code"] == "EPSG:32632" and zug.properties["proj:shape"] == [256, 256]
    assert zug.properties["proj:transform"] == ZUG["transform"]
    assert zug.properties["proj:bbox"] == [454_000.0, 5_216_000.0, 456_560.0, 5_218_560.0]
    assert any("projection" in uri for uri in zug.stac_extensions)
    assert zug.properties["gsd"] == 10.0 and zug.properties["pmpguard:rank"] == 1
    assert zug.properties["pmpguard:score"] == 1.25 and zug.properties["pmpguard:probability"] == 0.5
    asset = zug.assets["image"]
    assert (asset.href, asset.media_type) == ("../../images/tiles/a.png", "image/png")
    assert items["fiji"].geometry["type"] == "MultiPolygon"
    nowhere = items["../nowhere/ü"]
    assert nowhere.geometry is None and nowhere.bbox is None and nowhere.datetime is None
    assert nowhere.properties["start_datetime"] < nowhere.properties["end_datetime"]
    assert nowhere.properties["pmpguard:time_known"] is False and not nowhere.assets


def test_every_stac_file_lies_in_its_folder_and_is_sound(pystac, tmp_path):
    from pmpguard.geo.stac import hits_to_stac

    path = hits_to_stac(HITS, tmp_path / "deep" / "stac")
    assert {file.name for file in tmp_path.iterdir()} == {"deep"}
    assert {file.name for file in (tmp_path / "deep").iterdir()} == {"stac"}
    collection = json.loads(path.read_text())
    required = ("type", "stac_version", "id", "description", "license", "extent", "links")
    assert not [name for name in required if name not in collection]
    [box], [span] = collection["extent"]["spatial"]["bbox"], collection["extent"]["temporal"]["interval"]
    assert box == [8.0, -19.0, -179.0, 47.2], "from Zug eastward to Fiji is the shorter way round"
    assert len(span) == 2 and span[0] < span[1]
    files = sorted((path.parent / "items").glob("*.json"))
    assert len(files) == len(HITS)
    links = {link["href"] for link in collection["links"] if link["rel"] == "item"}
    assert links == {f"./items/{file.name}" for file in files}
    for file in files:
        item = json.loads(file.read_text())
        assert item["type"] == "Feature" and item["stac_version"] and item["id"] and "assets" in item
        assert ("bbox" in item) == (item["geometry"] is not None)
        properties = item["properties"]
        assert properties["datetime"] or {"start_datetime", "end_datetime"} <= set(properties)
        relations = {link["rel"]: link["href"] for link in item["links"]}
        assert relations["collection"] == relations["parent"] == "../collection.json"
        assert item["collection"] == "search-results"


def test_stac_files_hold_to_the_published_schemas(pystac, tmp_path):
    """The schemas that come with pystac; those of extensions would have to be downloaded."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    from pmpguard.geo.stac import hits_to_stac

    collection = pystac.Collection.from_file(str(hits_to_stac(HITS, tmp_path / "stac")))
    validator = pystac.validation.RegisteredValidator.get_validator()
    for thing in [collection, *collection.get_items()]:
        kind = (
            pystac.STACObjectType.ITEM if isinstance(thing, pystac.Item) else pystac.STACObjectType.COLLECTION
        )
        validator.validate_core(thing.to_dict(), kind, pystac.get_stac_version())
    projected = [
        item for item in collection.get_items() if any("projection" in uri for uri in item.stac_extensions)
    ]
    assert [item.id for item in projected] == ["zug_0_0"]
    properties = json.loads(json.dumps(projected[0].to_dict()))["properties"]
    jsonschema.validate(properties, PROJECTION)
    for wrong in ({"proj:shape": [256]}, {"proj:epsg": 32632}, {"proj:transform": [1, 2]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(properties | wrong, PROJECTION)


def test_a_reference_system_without_a_code_is_kept_as_text(pystac, tmp_path):
    from pmpguard.geo.stac import hits_to_stac

    path = hits_to_stac([hit("a", {**ZUG, "crs": 'PROJCRS["mine"]', "width": None})], tmp_path / "stac")
    properties = written_items(pystac, path)["a"].properties
    assert properties["proj:wkt2"] == 'PROJCRS["mine"]' and not properties.get("proj:code")
    assert "proj:shape" not in properties


def test_stac_replaces_its_own_folder_only(pystac, tmp_path):
    from pmpguard.geo.stac import hits_to_stac

    hits_to_stac(HITS, tmp_path / "stac")
    assert set(written_items(pystac, hits_to_stac(HITS[:1], tmp_path / "stac"))) == {"zug_0_0"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="no STAC collection"):
        hits_to_stac(HITS, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    with pytest.raises(DataError, match="several hits have the id 'zug_0_0'"):
        hits_to_stac([HITS[0], HITS[0]], tmp_path / "twice")


def test_no_hits_make_a_collection_of_the_whole_earth(pystac, tmp_path):
    from pmpguard.geo.stac import hits_to_stac

    collection = json.loads(hits_to_stac([], tmp_path / "stac").read_text())
    assert collection["extent"]["spatial"]["bbox"] == [[-180.0, -90.0, 180.0, 90.0]]
