"""Results as files, asked for through the API."""

from __future__ import annotations

import csv
import io
import json

import pyarrow.parquet as pq
import pytest
from helpers.fake_searcher import SCRIPT

pytest.importorskip("fastapi", reason="the extra serve is not installed")

ASKED = {"text": "a plane", "k": "5"}


def ids_of(format, body):
    if format == "csv":
        return [row["id"] for row in csv.DictReader(io.StringIO(body.decode("utf-8-sig")))]
    if format == "geojson":
        return [feature["id"] for feature in json.loads(body)["features"]]
    rows = pq.read_table(io.BytesIO(body)).to_pylist()
    return [row["id"] for row in sorted(rows, key=lambda row: row["rank"])]


@pytest.mark.parametrize(
    ("format", "media_type", "name"),
    [
        ("geojson", "application/geo+json", "hits.geojson"),
        ("csv", "text/csv", "hits.csv"),
        ("geoparquet", "application/vnd.apache.parquet", "hits.parquet"),
    ],
)
def test_every_way_of_asking_gives_the_file_of_the_same_hits(client, searcher, format, media_type, name):
    wanted = [hit["id"] for hit in client.get("/search", params=ASKED).json()["hits"]]
    image = io.BytesIO()
    searcher.images[0].save(image, "PNG")
    answers = [
        client.get("/search", params={**ASKED, "format": format}),
        client.post("/search", json={"text": "a plane", "k": 5, "format": format}),
    ]
    for answer in answers:
        assert answer.status_code == 200 and ids_of(format, answer.content) == wanted
        assert answer.headers["content-type"].partition(";")[0] == media_type
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    by_image = client.post(
        "/search", data={"k": "5", "format": format}, files={"image": ("a.png", image.getvalue())}
    )
    assert len(ids_of(format, by_image.content)) == 5


def test_a_spreadsheet_takes_no_text_for_a_formula(client):
    body = client.get("/search", params={**ASKED, "format": "csv"}).content
    assert body.startswith(b"\xef\xbb\xbf"), "or a spreadsheet guesses the letters"
    notes = [row["note"] for row in csv.DictReader(io.StringIO(body.decode("utf-8-sig")))]
    assert f"'={SCRIPT}" in notes


def test_captions_and_nothing_are_files_too(client):
    found = client.get("/search", params={**ASKED, "kind": "caption", "format": "csv"}).content
    assert ids_of("csv", found)[0].endswith("#0")
    for format in ("csv", "geojson", "geoparquet"):
        asked = {**ASKED, "format": format, "where": "note=none such"}
        assert ids_of(format, client.get("/search", params=asked).content) == []
    assert client.get("/search", params={**ASKED, "format": "pdf"}).status_code == 422
