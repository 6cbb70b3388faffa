"""GeoParquet 1.1: the footer, footprints, boxes, order."""

import datetime
import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pmpguard.geo.footprints import box_geometry
from pmpguard.geo.geoparquet import hilbert_distance, hits_to_geoparquet, write_geoparquet
from pmpguard.search.query import SearchHit

PEERS = os.environ.get("PMPGUARD_EXPORT_PEERS")  # a Python that has geopandas
READER = Path(__file__).parents[1] / "peers" / "geopandas_reads.py"

# What GeoParquet 1.1.0 asks of footers of this kind; written here, not the published schema.
SIDES = ("xmin", "xmax", "ymin", "ymax")
FOOTER = {
    "type": "object",
    "required": ["version", "primary_column", "columns"],
    "properties": {
        "version": {"const": "1.1.0"},
        "primary_column": {"type": "string", "minLength": 1},
        "columns": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {
                "type": "object",
                "required": ["encoding", "geometry_types"],
                "properties": {
                    "encoding": {"const": "WKB"},
                    "geometry_types": {
                        "type": "array",
                        "uniqueItems": True,
                        "items": {"enum": ["Point", "Polygon", "MultiPolygon"]},
                    },
                    "orientation": {"const": "counterclockwise"},
                    "bbox": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
                    "covering": {
                        "type": "object",
                        "required": ["bbox"],
                        "properties": {
                            "bbox": {
                                "type": "object",
                                "required": list(SIDES),
                                "properties": {side: {"const": ["bbox", side]} for side in SIDES},
                                "additionalProperties": False,
                            }
                        },
                    },
                },
                "additionalProperties": False,
            },
        },
    },
}


def read_wkb(data):
    """A geometry as GeoJSON, read number by number."""
    order, kind = struct.unpack_from("<BI", data)
    assert order == 1
    place = 5

    def number():
        nonlocal place
        place += 4
        return struct.unpack_from("<I", data, place - 4)[0]

    def point():
        nonlocal place
        place += 16
        return list(struct.unpack_from("<2d", data, place - 16))

    def polygon():
        return [[point() for _ in range(number())] for _ in range(number())]

    if kind == 1:
        found = {"type": "Point", "coordinates": point()}
    elif kind == 3:
        found = {"type": "Polygon", "coordinates": polygon()}
    else:
        parts = []
        for _ in range(number()):
            assert struct.unpack_from("<BI", data, place) == (1, 3)
            place += 5
            parts.append(polygon())
        found = {"type": "MultiPolygon", "coordinates": parts}
    assert place == len(data)
    return found


def scattered(count, seed=0):
    """Boxes of half a degree, one across the antimeridian, one point and one unknown."""
    random = np.random.default_rng(seed)
    west, south = random.uniform(-180, 179, count), random.uniform(-80, 79, count)
    bounds = np.stack([west, south, west + 0.5, south + 0.5], 1)
    bounds[:3] = (179.5, 0, -179.5, 1), (5, 6, 5, 6), (np.nan,) * 4
    return bounds


@pytest.fixture
def written(tmp_path):
    bounds = scattered(300)
    table = pa.table({"id": [str(row) for row in range(300)], "geometry": ["mine"] * 300})
    vectors = np.random.default_rng(1).normal(size=(300, 6)).astype(np.float32)
    path = write_geoparquet(
        tmp_path / "new" / "x.parquet", table, bounds, vectors=lambda rows: vectors[rows], dim=6, emb={"a": 1}
    )
    return path, bounds, vectors


def test_every_row_has_its_footprint_box_middle_and_vector(written):
    path, bounds, vectors = written
    rows = pq.read_table(path).to_pylist()
    assert sorted(int(row["id"]) for row in rows) == list(range(300))
    for row in rows:
        number = int(row["id"])
        assert row["embedding"] == vectors[number].tolist() and row["source_geometry"] == "mine"
        if number == 2:
            assert row["geometry"] is None and row["bbox"] is None and row["centre_lat"] is None
            continue
        assert read_wkb(row["geometry"]) == box_geometry(tuple(bounds[number].tolist()))
        west, south, east, north = bounds[number].tolist()
        west, east = (-180, 180) if west > east else (west, east)  # of both halves
        assert row["bbox"] == {"xmin": west, "ymin": south, "xmax": east, "ymax": north}
        assert abs(row["centre_lat"] - (south + north) / 2) < 1e-9
    assert rows[-1]["id"] == "2", "what has no place comes last"
    across = next(row for row in rows if row["id"] == "0")
    assert abs(across["centre_lon"]) == 180


def test_the_footer_holds_to_the_rules_of_its_format(written):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    footer = pq.read_schema(written[0]).metadata
    geo = json.loads(footer[b"geo"])
    jsonschema.validate(geo, FOOTER)
    assert geo["columns"]["geometry"]["geometry_types"] == ["MultiPolygon", "Point", "Polygon"]
    assert json.loads(footer[b"emb"]) == {"a": 1}
    described = pq.ParquetFile(written[0]).metadata.row_group(0).column(0)
    assert described.compression == "ZSTD"


@pytest.mark.slow
@pytest.mark.skipif(not PEERS, reason="PMPGUARD_EXPORT_PEERS names no Python with geopandas")
def test_the_real_geopandas_reads_it_and_an_area_of_it(written, record_property):
    path, bounds, _ = written
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(PEERS), str(READER), str(path)]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["crs"] == "OGC:CRS84" and found["valid"] and found["counterclockwise"]
    assert found["rows"] == 300 and len(found["bounds"]) == 299
    for row, box in found["bounds"].items():
        if row != "0":  # it crosses the antimeridian and is in two halves
            assert np.allclose(box, bounds[int(row)])
    west, south, east, north = bounds[3:].T
    inside = (west <= 40) & (east >= 0) & (south <= 40) & (north >= 0)
    # an area is read by rows' boxes, and that of both halves goes around the globe
    assert found["in_box"] == sorted(["0", "1", *(str(3 + row) for row in np.flatnonzero(inside))])
    record_property("rows in geopandas", found["rows"])


def test_neighbours_on_the_curve_are_neighbours_on_the_grid():
    side = np.arange(32)
    x, y = (axis.ravel() for axis in np.meshgrid(side, side))
    distance = hilbert_distance(x, y)
    assert sorted(distance) == list(range(32 * 32))
    along = np.argsort(distance)
    steps = np.abs(np.diff(x[along])) + np.abs(np.diff(y[along]))
    assert set(steps.tolist()) == {1}


def test_rows_near_each_other_lie_near_each_other_in_the_file(written):
    """An area needs few of the file's parts: far fewer than at random."""
    boxes = pq.read_table(written[0])["bbox"].to_pylist()[:-1]
    middles = np.array([[(box["xmin"] + box["xmax"]) / 2, box["ymin"]] for box in boxes])
    steps = np.abs(np.diff(middles, axis=0)).sum(1)
    shuffled = np.random.default_rng(0).permutation(middles)
    assert np.median(steps) < 0.3 * np.median(np.abs(np.diff(shuffled, axis=0)).sum(1))


def test_hits_keep_their_rank_and_columns(tmp_path):
    box = {"west": 8.0, "south": 47.0, "east": 8.1, "north": 47.1}
    hits = [
        SearchHit(
            "far", 2.0, 0.5, "image", "=1", "a.png", {"west": -100.0, "south": 0, "east": -99, "north": 1}
        ),
        SearchHit("near", 1.0, None, "image", None, "b.png", {**box, "mixed": 1, "day": "2024-05-01"}),
        SearchHit("nowhere", 0.5, None, "image", None, "c.png", {"mixed": "two"}),
    ]
    path = hits_to_geoparquet(hits, tmp_path / "hits.parquet")
    rows = {row["id"]: row for row in pq.read_table(path).to_pylist()}
    assert [rows[name]["rank"] for name in ("far", "near", "nowhere")] == [1, 2, 3]
    assert rows["near"]["mixed"] == "1" and rows["nowhere"]["mixed"] == "two"
    assert rows["nowhere"]["geometry"] is None and rows["far"]["caption"] == "=1"
    assert rows["near"]["day"] == datetime.date(2024, 5, 1) and rows["far"]["day"] is None


def test_no_hits_make_an_empty_file_of_the_format(tmp_path):
    path = hits_to_geoparquet([], tmp_path / "hits.parquet")
    assert len(pq.read_table(path)) == 0 and b"geo" in pq.read_schema(path).metadata
