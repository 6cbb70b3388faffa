"""GeoParquet 1.1: footprints as WKB with a box each, near ones near each other in the file, ZSTD.

Rows follow a Hilbert curve, so that a reader who asks for an area skips most row groups by the `bbox` column.
What the vectors are stands in the footer under `emb`, in the terms of STAC's embedding extension.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pmpguard.data.typed_columns import typed
from pmpguard.files import atomic_output
from pmpguard.geo.footprints import Box, bounds_of, box_around, box_geometry
from pmpguard.geo.hit_rows import FoundImage, columns_of, hit_rows

ROWS_PER_GROUP = 10_000
RESERVED = ("geometry", "bbox", "embedding")
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_CURVE_BITS = 16
_BOX = np.dtype(
    [("order", "u1"), ("type", "<u4"), ("rings", "<u4"), ("points", "<u4"), ("ring", "<f8", (5, 2))]
)
Bounds = npt.NDArray[np.float64]  # (N, 4) west, south, east, north, NaN where unknown
Vectors = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]  # rows -> (n, d)


def hits_to_geoparquet(hits: Sequence[FoundImage], path: Path) -> Path:
    """Write what a search found; `rank` keeps the order, for rows are ordered by place."""
    with atomic_output(path) as stream:
        stream_hits(hits, stream)
    return path


def stream_hits(hits: Sequence[FoundImage], stream: BinaryIO) -> None:
    """The same into an open stream."""
    rows = hit_rows(hits)
    boxes = [bounds_of(hit.metadata) or (np.nan,) * 4 for hit in hits]
    columns = {name: _with_times(_column([row.get(name) for row in rows])) for name in columns_of(rows)}
    table = pa.table(columns or {"id": pa.array([], pa.string())})
    stream_geoparquet(stream, table, np.array(boxes, np.float64).reshape(-1, 4))


def write_geoparquet(path: Path, table: pa.Table, bounds: Bounds, **options: Any) -> Path:
    """Write a file in one step, with the options of `stream_geoparquet`."""
    with atomic_output(path) as stream:
        stream_geoparquet(stream, table, bounds, **options)
    return path


def stream_geoparquet(
    stream: BinaryIO,
    table: pa.Table,
    bounds: Bounds,
    *,
    vectors: Vectors | None = None,
    dim: int = 0,
    emb: Mapping[str, Any] | None = None,
) -> None:
    """Write a table with a footprint for each row; rows without a place come last.

    `vectors` gives the embeddings of some rows, `dim` wide, so that never all of them are in memory. Columns
    called as those made here become `source_NAME`.
    """
    names = [f"source_{name}" if name in RESERVED else name for name in table.column_names]
    table = table.rename_columns(names)
    order = hilbert_order(bounds)  # (N,)
    fields = [*table.schema, *_place_fields(), *([_vector_field(dim)] if vectors else [])]
    footer = {b"geo": json.dumps(geo_metadata(bounds)).encode()}
    if emb is not None:
        footer[b"emb"] = json.dumps(emb).encode()
    schema = pa.schema(fields, metadata=footer)
    with pq.ParquetWriter(stream, schema, compression="zstd", store_schema=True) as writer:
        for start in range(0, max(1, len(order)), ROWS_PER_GROUP):
            rows = order[start : start + ROWS_PER_GROUP]
            part = table.take(pa.array(rows)).combine_chunks()
            columns = [*part.columns, *_place_columns(bounds[rows])]
            if vectors is not None:
                flat = pa.array(np.ascontiguousarray(vectors(rows), np.float32).ravel())
                columns.append(pa.FixedSizeListArray.from_arrays(flat, dim))
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROWS_PER_GROUP)


def geo_metadata(bounds: Bounds) -> dict[str, Any]:
    """The footer's `geo`; longitudes and latitudes of WGS 84 need no word in it."""
    known = bounds[~np.isnan(bounds).any(1)]
    kinds = {box_geometry(_as_box(row))["type"] for row in known[_unusual(known)]}
    if not _unusual(known).all():
        kinds.add("Polygon")
    column: dict[str, Any] = {
        "encoding": "WKB",
        "geometry_types": sorted(kinds),
        "orientation": "counterclockwise",
        "covering": {"bbox": {side: ["bbox", side] for side in _SIDES}},
    }
    around = box_around(map(_as_box, known))
    if around is not None:
        column["bbox"] = list(around)
    return {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}


def hilbert_order(bounds: Bounds) -> npt.NDArray[np.int64]:
    """(N,) rows along a Hilbert curve through the middles of their boxes; unknown places last."""
    west, south, east, north = bounds.T
    middle = (west + east + 360 * (west > east)) / 2
    side = 2**_CURVE_BITS - 1
    x, y = ((middle + 180) % 360 / 360 * side, ((south + north) / 2 + 90) / 180 * side)
    unknown = np.isnan(x) | np.isnan(y)
    place = hilbert_distance(
        np.where(unknown, 0, x).astype(np.int64), np.where(unknown, 0, y).astype(np.int64)
    )
    return np.lexsort((place, unknown))


def hilbert_distance(x: npt.NDArray[np.int64], y: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(N,) how far along the curve each cell of a 2^16 by 2^16 grid lies.

    >>> hilbert_distance(np.array([0, 1, 1, 0]), np.array([0, 0, 1, 1])).tolist()
    [0, 1, 2, 3]
    """
    x, y = x.copy(), y.copy()
    distance = np.zeros_like(x)
    for bit in reversed(range(_CURVE_BITS)):
        side = 1 << bit
        right, upper = (x & side) > 0, (y & side) > 0
        distance += side * side * ((3 * right) ^ upper)
        flipped = right & ~upper
        x, y = np.where(flipped, side - 1 - x, x), np.where(flipped, side - 1 - y, y)
        x, y = np.where(upper, x, y) & (side - 1), np.where(upper, y, x) & (side - 1)
    return distance


def _place_fields() -> list[pa.Field]:
    return [
        pa.field("centre_lon", pa.float64()),
        pa.field("centre_lat", pa.float64()),
        pa.field("geometry", pa.binary()),
        pa.field("bbox", pa.struct([(side, pa.float64()) for side in _SIDES])),
    ]


def _vector_field(dim: int) -> pa.Field:
    return pa.field("embedding", pa.list_(pa.float32(), dim))


def _place_columns(bounds: Bounds) -> list[pa.Array]:
    """Middle, footprint and box of some rows.

    A box across the antimeridian is two polygons; the box around both is the whole turn, so that nobody who
    compares numbers misses it.
    """
    unknown = np.isnan(bounds).any(1)
    west, south, east, north = bounds.T
    turn = (west + east + 360 * (west > east)) / 2
    middle = np.where(turn > 180, turn - 360, turn), (south + north) / 2
    crossing = west > east
    sides = (np.where(crossing, -180.0, west), south, np.where(crossing, 180.0, east), north)
    struct_of = pa.StructArray.from_arrays(
        [pa.array(side) for side in sides], names=list(_SIDES), mask=pa.array(unknown)
    )
    return [*(pa.array(value, mask=unknown) for value in middle), _wkb(bounds), struct_of]


def _wkb(bounds: Bounds) -> pa.Array:
    """Footprints of boxes as well-known binary; plain boxes all at once."""
    west, south, east, north = bounds.T
    boxes = np.empty(len(bounds), _BOX)
    boxes["order"], boxes["type"], boxes["rings"], boxes["points"] = 1, 3, 1, 5
    boxes["ring"][:, :, 0] = np.stack([west, east, east, west, west], 1)
    boxes["ring"][:, :, 1] = np.stack([south, south, north, north, south], 1)
    data, size = boxes.tobytes(), _BOX.itemsize
    values: list[bytes | None] = [data[start : start + size] for start in range(0, len(data), size)]
    for row in np.flatnonzero(_unusual(bounds)):
        values[row] = wkb_of(box_geometry(_as_box(bounds[row])))
    for row in np.flatnonzero(np.isnan(bounds).any(1)):
        values[row] = None
    return pa.array(values, pa.binary())


def _unusual(bounds: Bounds) -> npt.NDArray[np.bool_]:
    """(N,) points, and boxes across the antimeridian."""
    west, south, east, north = bounds.T
    return np.asarray((west > east) | ((west == east) & (south == north)), bool)


def wkb_of(geometry: Mapping[str, Any]) -> bytes:
    """A GeoJSON point, polygon or multipolygon as well-known binary, little endian.

    >>> wkb_of({"type": "Point", "coordinates": [1.0, 2.0]}).hex()
    '0101000000000000000000f03f0000000000000040'
    """
    kind, coordinates = geometry["type"], geometry["coordinates"]
    if kind == "Point":
        return struct.pack("<BI2d", 1, 1, *coordinates)
    if kind == "Polygon":
        rings = [struct.pack("<I", len(ring)) + np.array(ring, "<f8").tobytes() for ring in coordinates]
        return struct.pack("<BII", 1, 3, len(rings)) + b"".join(rings)
    parts = [wkb_of({"type": "Polygon", "coordinates": part}) for part in coordinates]
    return struct.pack("<BII", 1, 6, len(parts)) + b"".join(parts)


def _as_box(row: npt.NDArray[np.float64]) -> Box:
    west, south, east, north = map(float, row)
    return west, south, east, north


def _with_times(column: pa.Array) -> pa.Array | pa.ChunkedArray:
    """ISO 8601 texts as the times they were before they became texts; anything else as it is."""
    found = typed(pa.chunked_array([column])) if pa.types.is_string(column.type) else column
    return found if pa.types.is_temporal(found.type) else column


def _column(values: Sequence[Any]) -> pa.Array:
    """Values of one kind as they are, of several kinds as text."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
