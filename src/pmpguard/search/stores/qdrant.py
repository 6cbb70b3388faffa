"""Search on a Qdrant server, when one machine is not enough; filters are applied where the search runs.

The server is named by QDRANT_URL (with QDRANT_API_KEY where it asks for one). QDRANT_URL=:memory: keeps the
vectors inside the process, for trying and for tests.

A collection only grows: point r is row r, and a removed point carries the generation from which on it counts
as removed. Every search asks for rows below the number it knows that were not removed up to its own
generation. So readers of an older version of an index are never disturbed, and what an interrupted writer
left is found by nobody; the next writer overwrites it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pmpguard.errors import ConfigError, PmpguardError, require
from pmpguard.files import read_json, write_json
from pmpguard.geo.distance import box_within, distances
from pmpguard.geo.footprints import Box, checked_box
from pmpguard.search.filters import UNKNOWN_TIME, FilterColumns, circle, time_limits
from pmpguard.search.query import NO_FILTERS, Filters
from pmpguard.search.stores import (
    FULL_TURN,
    Floats,
    IndexedItems,
    KnownRows,
    Mask,
    Neighbours,
    as_neighbours,
)

IN_MEMORY = ":memory:"
POINTS_AT_ONCE, IDS_AT_ONCE = 256, 10_000
PLACES = ["west", "south", "end", "north"]  # of a point's payload
RANGES = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


class QdrantIndex:
    """One collection of a server; its name is all that is saved."""

    filters_itself = True

    def __init__(self, dim: int, name: str = "images", collection: str | None = None) -> None:
        self.models: Any = require("qdrant_client", "qdrant").models
        self.location = os.environ.get("QDRANT_URL", "")
        if not self.location:
            raise ConfigError("QDRANT_URL is not set", fix="set it to the server, as http://localhost:6333")
        self.known = KnownRows(dim)
        self.name = name
        self.collection = collection or f"pmpguard-{uuid.uuid4().hex}-{name}"
        self.generation = 0
        self.client = open_client(self.location)
        if not self._reach(self.client.collection_exists, self.collection):
            self._create(dim)

    def _create(self, dim: int) -> None:
        models = self.models
        vectors = models.VectorParams(size=dim, distance=models.Distance.DOT)  # unit vectors: the cosine
        self._reach(self.client.create_collection, self.collection, vectors_config=vectors)
        if self.location == IN_MEMORY:
            return
        kinds = {"facts": "keyword", "time": "float", "row": "integer", "removed": "integer"}
        kinds |= dict.fromkeys(PLACES, "float")
        for field, kind in kinds.items():
            self._reach(self.client.create_payload_index, self.collection, field, field_schema=kind)

    def _reach(self, call: Any, *arguments: Any, **options: Any) -> Any:
        return reach(self.location, call, *arguments, **options)

    @classmethod
    def load(cls, folder: Path, items: IndexedItems, name: str = "images") -> QdrantIndex:
        stored = read_json(folder / f"{name}.qdrant.json")
        loaded = cls(items.dim, name, stored["collection"])
        if loaded.location == IN_MEMORY:
            loaded.add(items.ids, items.vectors(), items.metadata)
            loaded.remove(np.flatnonzero(items.removed))
        else:
            loaded.known = KnownRows(items.dim, items.ids, items.removed)
            held = loaded._reach(loaded.client.count, loaded.collection).count
            if held < len(items.ids):
                raise PmpguardError(
                    f"Qdrant collection {loaded.collection} holds {held} points for {len(items.ids)} items",
                    fix="build the index again",
                )
            if "generation" in stored:
                loaded.generation = stored["generation"]
            elif items.removed.any():  # an index of before removals were kept on the server
                loaded.remove(np.flatnonzero(items.removed))
        return loaded

    def add(self, ids: Sequence[str], vectors: Floats, metadata: pa.Table | None = None) -> None:
        first = len(self.known.ids)
        self.known.add(ids, vectors)
        facts = list(payloads(metadata)) if metadata is not None else [{} for _ in ids]
        for start in range(0, len(ids), POINTS_AT_ONCE):
            points = [
                self.models.PointStruct(
                    id=first + row,
                    vector=vectors[row].tolist(),
                    payload={"row": first + row, "item": ids[row], **facts[row]},
                )
                for row in range(start, min(start + POINTS_AT_ONCE, len(ids)))
            ]
            self._reach(self.client.upsert, self.collection, points, wait=True)

    def remove(self, rows: npt.ArrayLike) -> None:
        gone = np.asarray(rows, np.int64).tolist()
        left = self.models.Filter(must=[self._range("removed", gt=self.generation)])  # by a killed writer
        self._reach(self.client.delete_payload, self.collection, ["removed"], left, wait=True)
        mark = {"removed": self.generation + 1}
        for start in range(0, len(gone), IDS_AT_ONCE):
            some = gone[start : start + IDS_AT_ONCE]
            self._reach(self.client.set_payload, self.collection, mark, some, wait=True)
        self.known.remove(gone)
        self.generation += 1

    def search(
        self, queries: Floats, k: int, allowed: Mask | None = None, filters: Filters = NO_FILTERS
    ) -> Neighbours:
        searchable = self.known.searchable(queries, k, allowed)
        models = self.models
        condition = self._condition(searchable, allowed is not None, filters)
        around = circle(filters)
        limit = k if around is None else 2 * k  # a circle fills three quarters of its box
        while True:
            requests = [
                models.QueryRequest(query=query.tolist(), limit=limit, filter=condition, with_payload=PLACES)
                for query in queries
            ]
            answers = self._reach(self.client.query_batch_points, self.collection, requests)
            found = [
                [point for point in answer.points if around is None or _is_within(point.payload, *around)]
                for answer in answers
            ]
            cut = any(
                len(kept) < k and len(answer.points) == limit
                for kept, answer in zip(found, answers, strict=True)
            )
            if not cut:
                break
            limit *= 4
        best = []
        for points in found:
            rows = np.array([point.id for point in points], np.int64)
            scores = np.array([point.score for point in points], np.float32)
            best.append(self.known.sorted_best(rows, scores, k))
        return as_neighbours(best, k)

    def _condition(self, searchable: Mask, masked: bool, filters: Filters) -> Any:
        """Rows this index knows that are not removed, and every condition of the filters."""
        models = self.models
        must: list[Any] = [self._range("row", lt=len(searchable))]
        must_not = [self._range("removed", lte=self.generation)]
        if masked:
            must.append(models.HasIdCondition(has_id=np.flatnonzero(searchable).tolist()))
        if filters.box is not None:
            must += self._box(checked_box(filters.box))
        around = circle(filters)
        if around is not None:
            must += self._box(box_within(*around))
        limits = time_limits(filters)
        if limits is not None:
            must.append(self._range("time", gte=limits[0], lte=limits[1]))
        for condition in filters.all_conditions:
            name, values = condition.column, condition.values
            if condition.spans:
                within = [self._range(number_key(name), gte=a, lte=b) for a, b in condition.spans]
                must.append(models.Filter(should=within))
            elif condition.comparison == "=":
                facts = [f"{name}={value}" for value in values]
                must.append(models.FieldCondition(key="facts", match=models.MatchAny(any=facts)))
            else:
                limit = {RANGES[condition.comparison]: float(values[0])}
                must.append(self._range(number_key(name), **limit))
        return models.Filter(must=must, must_not=must_not)

    def _box(self, box: tuple[float, float, float, float]) -> list[Any]:
        """Boxes that meet this one. Longitudes are arcs of a circle, compared after a whole turn too."""
        first, last = box[0], box[2] + FULL_TURN * (box[0] > box[2])
        turned = [
            self.models.Filter(
                must=[self._range("west", lte=last - turn), self._range("end", gte=first - turn)]
            )
            for turn in (-FULL_TURN, 0.0, FULL_TURN)
        ]
        return [
            self._range("south", lte=box[3]),
            self._range("north", gte=box[1]),
            self.models.Filter(should=turned),
        ]

    def _range(self, key: str, **limits: float) -> Any:
        return self.models.FieldCondition(key=key, range=self.models.Range(**limits))

    def __len__(self) -> int:
        return len(self.known)

    def save(self, folder: Path) -> None:
        stored = {"collection": self.collection, "generation": self.generation}
        write_json(folder / f"{self.name}.qdrant.json", stored)

    def fit(self, queries: Floats) -> None:
        """Nothing: the server decides."""

    def settle(self) -> None:
        """Nothing: what was saved says what is searched."""


def _is_within(payload: Mapping[str, float], place: Box, radius: float) -> bool:
    """Whether a point's box comes within `radius` kilometres of a place."""
    west, south, end, north = (payload[name] for name in PLACES)
    return bool(distances(place, west, south, end - FULL_TURN * (end > 180.0), north) <= radius)


def open_client(location: str) -> Any:
    """A connection to the server, or vectors in memory."""
    package: Any = require("qdrant_client", "qdrant")
    if location == IN_MEMORY:
        return package.QdrantClient(IN_MEMORY)
    key = os.environ.get("QDRANT_API_KEY")
    return reach(location, package.QdrantClient, url=location, api_key=key)


def reach(location: str, call: Any, *arguments: Any, **options: Any) -> Any:
    """What the server answers, or an error that names it."""
    try:
        return call(*arguments, **options)
    except Exception as error:  # the client raises whatever its transport raises
        raise PmpguardError(
            f"Qdrant at {location}: {str(error)[:300]}", fix="check QDRANT_URL and that it runs"
        ) from error


def drop_collections(names: Sequence[str]) -> None:
    """Delete collections that no version uses any more, where the server is known."""
    location = os.environ.get("QDRANT_URL", "")
    if location and location != IN_MEMORY:
        client = open_client(location)
        for name in names:
            reach(location, client.delete_collection, name)


def payloads(metadata: pa.Table) -> Iterator[dict[str, Any]]:
    """What the server needs of every item for filters: facts as `column=value`, numbers, bounds, time."""
    columns = FilterColumns(metadata)
    numbers = {number_key(name): columns.any_numbers(name) for name in columns.names}
    texts = {name: columns.text(name).to_pylist() for name in columns.names}
    sides = columns.bounds  # four of (N,)
    for row in range(len(columns)):
        payload: dict[str, Any] = {
            "facts": [f"{name}={values[row]}" for name, values in texts.items() if values[row] is not None]
        }
        west, south, east, north = (float(side[row]) for side in sides)
        if not np.isnan([west, south, east, north]).any():
            end = east + FULL_TURN * (west > east)
            payload |= {"west": west, "south": south, "end": end, "north": north}
        if columns.times[row] != UNKNOWN_TIME:
            payload["time"] = int(columns.times[row])
        payload |= {key: float(values[row]) for key, values in numbers.items() if np.isfinite(values[row])}
        yield payload


def number_key(column: str) -> str:
    """The payload's key of a column's numbers; any name must do, and keys with dots mean something else."""
    return f"number_{column.encode().hex()}"
