"""Embeddings of an index as GeoParquet with a STAC collection."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.search_examples import embed, only_images
from helpers.stac_schemas import EMB_COLLECTION, EMB_FOOTER, EMB_ITEM

from pmpguard.cli.index import export
from pmpguard.cli.main import run_verb
from pmpguard.errors import DataError
from pmpguard.geo.geoparquet import hits_to_geoparquet
from pmpguard.search.export import FILE, export_embeddings
from pmpguard.search.index.changes import build_index, remove_from_index
from pmpguard.search.index.version import IndexVersion
from pmpguard.search.query import Query
from pmpguard.search.searcher import Searcher

pytest.importorskip("pystac", reason="the extra geo is not installed")


@pytest.fixture(scope="module")
def placed(small_search, tmp_path_factory) -> Path:
    """An index of ten tiles with places and times, of which one was removed."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("placed")
    images = only_images(small_search.world, folder / "images", 10)
    names = sorted(path.name for path in images.iterdir())
    numbers = list(range(10))
    columns = {
        "id": [f"tile-{number}" for number in numbers],
        "image": names,
        "scene": ["zug"] * 10,
        "west": [8.0 + 0.1 * number for number in numbers],
        "south": [47.0] * 10,
        "east": [8.1 + 0.1 * number for number in numbers],
        "north": [47.1] * 9 + [None],
        "width": [64] * 10,
        "height": [48] * 10,
        "time": [f"2024-05-{number + 1:02d}" for number in numbers],
    }
    pq.write_table(pa.table(columns), images / "metadata.parquet")
    embed(images, small_search.model, folder / "vectors")
    build_index(folder / "index", folder / "vectors")
    remove_from_index(folder / "index", ["tile-4"])
    return folder


def test_the_file_holds_every_image_with_its_vector_place_and_time(placed, tmp_path):
    report = export_embeddings(placed / "index", tmp_path / "out")
    assert (report.images, report.placed) == (9, 8)
    rows = {row["unique_id"]: row for row in pq.read_table(tmp_path / "out" / FILE).to_pylist()}
    version = IndexVersion.open_current(placed / "index")
    vectors = version.images.vectors.all_pooled()
    assert set(rows) == set(version.images.row_of)
    for id, row in version.images.row_of.items():
        assert np.array_equal(np.array(rows[id]["embedding"], np.float32), vectors[row])
    assert rows["tile-3"]["timestamp"].isoformat() == "2024-05-04T00:00:00+00:00"
    assert rows["tile-3"]["product_id"] == "zug" and rows["tile-9"]["geometry"] is None
    emb = json.loads(pq.read_schema(tmp_path / "out" / FILE).metadata[b"emb"])
    assert emb["emb:type"] == "chip" and emb["emb:dimensions"] == vectors.shape[1]
    assert emb["emb:chip_layout"] == {"layout_type": "regular_grid", "chip_size": [48, 64]}


def test_the_collection_says_what_the_vectors_are(placed, tmp_path):
    import pystac

    export_embeddings(placed / "index", tmp_path / "out")
    collection = pystac.Collection.from_file(str(tmp_path / "out" / "collection.json"))
    [item] = collection.get_items()
    assert collection.extra_fields["emb:dimensions"] == 32
    assert collection.extra_fields["data_type"] == "float32"
    links = {link.rel: link for link in collection.links}
    model = (tmp_path / "out" / str(links["emb:model"].target)).resolve()
    assert model.is_file() and "emb:source-data" in links
    assert item.properties["emb:quantization"] == {"method": "none", "original_dtype": "float32"}
    asset = item.assets["embeddings"]
    assert (Path(item.get_self_href()).parent / asset.href).resolve() == (tmp_path / "out" / FILE).resolve()
    assert np.allclose(item.bbox, [8.0, 47.0, 8.9, 47.1])
    assert item.common_metadata.start_datetime.day == 1 and item.common_metadata.end_datetime.day == 10
    assert any("embeddings/v0.0.1" in uri for uri in item.stac_extensions)
    validator = pystac.validation.RegisteredValidator.get_validator()
    for thing, kind in ((collection, pystac.STACObjectType.COLLECTION), (item, pystac.STACObjectType.ITEM)):
        validator.validate_core(thing.to_dict(), kind, pystac.get_stac_version())


@pytest.mark.parametrize("from_index", [True, False])
def test_collection_item_and_footer_hold_to_the_extensions_tables(placed, small_search, tmp_path, from_index):
    export_embeddings(placed / "index" if from_index else small_search.index, tmp_path / "out")
    read = {
        name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("collection", "item")
    }
    footer = json.loads(pq.read_schema(tmp_path / "out" / FILE).metadata[b"emb"])
    jsonschema.validate(read["collection"], EMB_COLLECTION)
    jsonschema.validate(read["item"], EMB_ITEM)
    jsonschema.validate(footer, EMB_FOOTER)
    assert (
        pq.read_schema(tmp_path / "out" / FILE).field("embedding").type.list_size == footer["emb:dimensions"]
    )
    for schema, document, break_it in [
        (EMB_COLLECTION, "collection", lambda found: found.update({"emb:type": "patch"})),
        (EMB_COLLECTION, "collection", lambda found: found.pop("data_type")),
        (EMB_COLLECTION, "collection", lambda found: found.update({"emb:chips": 1})),
        (EMB_COLLECTION, "collection", lambda found: found["emb:chip_layout"].pop("layout_type")),
        (EMB_COLLECTION, "collection", lambda found: found.update(links=found["links"][:1])),
        (EMB_ITEM, "item", lambda found: found["properties"]["emb:quantization"].pop("method")),
    ]:
        wrong = json.loads(json.dumps(read[document]))
        break_it(wrong)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_vectors_that_a_codec_kept_as_int8_are_said_to_be(placed, tmp_path):
    build_index(tmp_path / "coded", placed / "vectors", codec="4bit")
    wanted = {"method": "scalar", "original_dtype": "float32", "quantized_dtype": "int8"}
    for source in (tmp_path / "coded", tmp_path / "coded/segments/000001"):
        export_embeddings(source, tmp_path / "out")
        item = json.loads((tmp_path / "out" / "item.json").read_text())
        footer = json.loads(pq.read_schema(tmp_path / "out" / FILE).metadata[b"emb"])
        jsonschema.validate(item, EMB_ITEM)
        assert item["properties"]["emb:quantization"] == footer["emb:quantization"] == wanted


def test_images_inside_parquet_files_are_named_by_file_and_row(small_search, tmp_path):
    """As Hugging Face stores them; what is named is the image that was found."""
    files = sorted(only_images(small_search.world, tmp_path / "images", 6).iterdir())
    (tmp_path / "hub").mkdir()
    for part in range(2):
        images = [{"bytes": path.read_bytes(), "path": path.name} for path in files[3 * part : 3 * part + 3]]
        table = pa.table({"image": images, "caption": [path.name for path in files[3 * part : 3 * part + 3]]})
        pq.write_table(table, tmp_path / "hub" / f"train-{part:05d}-of-00002.parquet")
    embed(tmp_path / "hub", small_search.model, tmp_path / "vectors")
    build_index(tmp_path / "index", tmp_path / "vectors")
    export_embeddings(tmp_path / "index", tmp_path / "out")
    exported = pq.read_table(tmp_path / "out" / FILE).to_pylist()
    hits = Searcher.open(tmp_path / "index").search(Query("a field"), 6)
    found = pq.read_table(hits_to_geoparquet(hits, tmp_path / "hits.parquet")).to_pylist()
    assert len(exported) == len(found) == 6
    for row in (*exported, *found):
        part = pq.read_table(tmp_path / "hub" / row["parquet_url"])
        assert part["caption"][row["parquet_row"]].as_py() == row["caption"]
    vectors = {row["image"]: np.array(row["embedding"], np.float32) for row in exported}
    assert len(vectors) == 6 and len({vector.tobytes() for vector in vectors.values()}) == 6


def test_a_folder_of_embeddings_is_exported_by_the_command_and_again(placed, tmp_path, capsys):
    for _ in range(2):
        words = [str(placed / "vectors"), "--out", str(tmp_path / "out")]
        assert run_verb("index export", export, words) == 0
    assert "10 vectors of 32 numbers, 9 with a place" in capsys.readouterr().out
    assert len(pq.read_table(tmp_path / "out" / FILE)) == 10


def test_images_without_places_are_exported_too(small_search, tmp_path):
    report = export_embeddings(small_search.index, tmp_path / "out")
    assert report.placed == 0 and report.images == 40
    table = pq.read_table(tmp_path / "out" / FILE)
    assert table["geometry"].null_count == 40


def test_a_folder_of_something_else_is_left_alone(small_search, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="no export"):
        export_embeddings(small_search.index, tmp_path)
    shutil.rmtree(tmp_path)
