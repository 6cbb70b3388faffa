"""Results as files to keep: GeoJSON, CSV for spreadsheets, GeoParquet."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Literal

from pmpguard.geo.geojson import hits_to_geojson
from pmpguard.geo.geoparquet import stream_hits
from pmpguard.geo.hit_rows import hits_to_csv
from pmpguard.search.query import SearchHit

DownloadFormat = Literal["json", "geojson", "csv", "geoparquet"]
MEDIA_TYPES = {
    "geojson": "application/geo+json",
    "csv": "text/csv",
    "geoparquet": "application/vnd.apache.parquet",
}
FILE_NAMES = {"geojson": "hits.geojson", "csv": "hits.csv", "geoparquet": "hits.parquet"}


def write_download(hits: Sequence[SearchHit], format: DownloadFormat) -> bytes:
    """The hits in a format other than our own JSON."""
    if format == "csv":
        return hits_to_csv(hits).encode("utf-8-sig")  # the mark without which spreadsheets guess the letters
    if format == "geojson":
        return json.dumps(hits_to_geojson(hits), ensure_ascii=False, allow_nan=False).encode()
    with io.BytesIO() as stream:
        stream_hits(hits, stream)
        return stream.getvalue()
