"""Search in PostgreSQL with pgvector: vectors, ids, places, times and typed attributes in one table.

Every collection is a table of the schema `pmpguard`; row r of it is row r of the index. Rows are only added
and marked: a removed row carries the generation from which on it counts as removed, and a search asks for
rows below the number it knows that were not removed up to its own generation. So any number of servers may
read while one writer adds, each its own version; what an interrupted writer left is found by nobody, and
the next writer takes it back.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pmpguard.errors import ConfigError, ModelError, PmpguardError, require
from pmpguard.files import read_json, write_json
from pmpguard.search.filters import FilterColumns
from pmpguard.search.query import NO_FILTERS, Filters
from pmpguard.search.stores import Floats, IndexedItems, KnownRows, Mask, Neighbours, Rows, as_neighbours
from pmpguard.search.stores.postgres_columns import PLAIN, Conditions, attribute_types, column_name
from pmpguard.search.stores.postgres_server import (
    VARIABLE,
    Options,
    connect,
    given_address,
    named_errors,
    shown,
    without_secrets,
)
from pmpguard.search.stores.postgres_table import Table

MAX_DIM = 4000  # of what pgvector puts into a graph of half floats
SEARCH_EFFORT, FILTERED_EFFORT, MAX_SEARCH_EFFORT = 128, 400, 1000  # of HNSW: ef_search
# So few rows that pass the filters are all compared: those of a few kinds lie together, off a walk's way.
MAX_COMPARED_ROWS = 20_000
# Of one search. The graph is walked on until enough rows pass the filters, in the order of their distance.
SETTINGS = {
    "hnsw.iterative_scan": "strict_order",
    "hnsw.max_scan_tuples": "1000000",
    "hnsw.scan_mem_multiplier": "32",
}
Result = TypeVar("Result")


class PostgresIndex:
    """One collection of a database; its name, generation and last change are all that is saved."""

    filters_itself = True

    def __init__(
        self, dim: int, name: str = "images", model: str = "", address: Options | None = None
    ) -> None:
        if dim > MAX_DIM:
            fix = "use --backend hnsw, or a model of fewer dimensions"
            raise ConfigError(f"pgvector's graphs end at {MAX_DIM} dimensions, the model has {dim}", fix=fix)
        address = given_address() or address
        if address is None:
            fix = f"give --store or set {VARIABLE}, as postgresql://USER@HOST:5432/DATABASE"
            raise ConfigError("no PostgreSQL database is named", fix=fix)
        self.address = address
        self.known = KnownRows(dim)
        self.name, self.model = name, model
        self.table = Table(f"{name}_{uuid.uuid4().hex[:16]}")
        self.generation = 0
        self.change, self.settled_change = "", ""  # the last one, and that of the version this grew from
        self.is_new, self.is_writing = True, False
        self.types: dict[str, str] = {}  # of attributes, by column
        self.area = PLAIN
        self._connection: Any = None
        self._lock = threading.RLock()
        self._reading(lambda connection: None)  # an address that cannot be reached is told at once

    @classmethod
    def load(cls, folder: Path, items: IndexedItems, name: str = "images") -> PostgresIndex:
        stored = read_json(folder / f"{name}.postgres.json")
        loaded = cls(items.dim, name, items.model, stored["address"])
        loaded.table, loaded.is_new = Table(stored["collection"]), False
        loaded.generation, loaded.change = stored["generation"], stored["change"]
        loaded.settled_change = loaded.change
        loaded.known = KnownRows(items.dim, items.ids, items.removed)
        loaded._reading(loaded._check)
        return loaded

    def save(self, folder: Path) -> None:
        stored = {
            "collection": self.table.name,
            "address": without_secrets(self.address),
            "generation": self.generation,
            "change": self.change,
        }
        write_json(folder / f"{self.name}.postgres.json", stored)

    def __len__(self) -> int:
        return len(self.known)

    # ------------------------------------------------------------------------------------------- connection

    def _reading(self, work: Callable[[Any], Result]) -> Result:
        """Do what changes nothing. A connection that was cut meanwhile is made anew, once."""
        with self._lock:
            is_old = self._connection is not None and not self._connection.closed
            try:
                return self._run(work)
            except PmpguardError:
                if not is_old or not self._connection.closed:
                    raise
                return self._run(work)

    def _run(self, work: Callable[[Any], Result]) -> Result:
        if self._connection is None or self._connection.closed:
            if self.is_writing:  # the lock is lost with the connection, and somebody else may have it
                fix = "run the command again"
                raise PmpguardError(f"{shown(self.address)}: the connection was lost while writing", fix=fix)
            self._connection = connect(self.address)
            weakref.finalize(self, self._connection.close)
        with named_errors(self.address):
            return work(self._connection)

    @contextmanager
    def _changing(self) -> Iterator[Any]:
        """All or nothing of a change, by the only writer of this collection."""
        with self._lock:
            try:
                self._run(self._take_lock)
                with named_errors(self.address), self._connection.transaction():
                    yield self._connection
            except BaseException:
                self.close()  # and give the lock back
                raise

    def _take_lock(self, connection: Any) -> None:
        if self.is_writing:
            return
        query = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
        if not connection.execute(query, [f"pmpguard.{self.table.name}"]).fetchone()[0]:
            raise PmpguardError(
                f"{shown(self.address)}: another process is changing {self.table.name}",
                fix="wait until it is done, then run the command again",
            )
        self.is_writing = True

    def _check(self, connection: Any) -> None:
        """That the collection is there, of the same model, and holds what this index knows."""
        found = self.table.state(connection)
        if found is None and not len(self.known.ids):  # saved before anything came
            self.is_new = True
            return
        if found is None:
            raise PmpguardError(
                f"{shown(self.address)}: no collection {self.table.name} of this index",
                fix="name the database it was built in, or build the index again with --store",
            )
        if self.model and found["model"] != self.model:
            raise ModelError(
                f"{shown(self.address)}: {self.table.name} is of model {found['model']}, "
                f"the index of {self.model}",
                fix="build the index again",
            )
        if found["rows"] < len(self.known.ids) or found["generation"] < self.generation:
            raise PmpguardError(
                f"{shown(self.address)}: {self.table.name} holds {found['rows']} rows of "
                f"{len(self.known.ids)}: an older copy of the database was restored",
                fix="restore a newer one, or build the index again",
            )
        self.types, self.area = self.table.columns(connection)

    # ---------------------------------------------------------------------------------------------- writing

    def add(self, ids: Sequence[str], vectors: Floats, metadata: pa.Table | None = None) -> None:
        first = len(self.known.ids)
        columns = FilterColumns(metadata if metadata is not None else pa.table({"id": list(ids)}))
        grown = KnownRows(self.known.dim, self.known.ids.tolist(), ~self.known.live)
        grown.add(ids, vectors)
        wanted = attribute_types(columns)
        if not self.is_new:  # by itself: a change of columns keeps searches waiting until it is committed
            with self._changing() as connection:
                self._begin(connection)
                self.types = self.table.widen(connection, self.types, wanted)
        with self._changing() as connection:
            if self.is_new:
                self._begin(connection)
                self.types = self.table.widen(connection, self.types, wanted)
            self.table.copy(connection, first, ids, vectors, columns, self.types)
            if len(ids):
                self.table.build_graph(connection, self.known.dim)
            change = self.table.record(connection, len(grown.ids), self.generation, self.settled_change)
        self.known, self.change, self.is_new = grown, change, False

    def remove(self, rows: npt.ArrayLike) -> None:
        gone, generation = np.asarray(rows, np.int64).tolist(), self.generation + 1
        with self._changing() as connection:
            self._begin(connection)
            query = "UPDATE {table} SET removed = %s WHERE row = ANY(%s) AND removed IS NULL"
            connection.execute(self.table.sql(query), [generation, gone])
            change = self.table.record(connection, len(self.known.ids), generation, self.settled_change)
        self.generation, self.change, self.is_new = generation, change, False
        self.known.remove(gone)

    def fit(self, queries: Floats) -> None:
        """Nothing: the server decides."""

    def settle(self) -> None:
        if self.is_writing:
            with self._changing() as connection:
                query = "UPDATE pmpguard.collections SET settled = true WHERE name = %s AND change = %s"
                connection.execute(query, [self.table.name, self.change])
            self.settled_change = self.change
            self.close()

    def close(self) -> None:
        """Let go of the connection, and of the writer's lock with it; a search makes another."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self.is_writing = False

    def _begin(self, connection: Any) -> None:
        """Make the collection, or see that this is its latest state, taking back what was left unfinished."""
        if self.is_new:
            self.table.create(connection, self.known.dim, self.model)
        found = self.table.state(connection)
        if found is None:
            raise PmpguardError(f"{shown(self.address)}: {self.table.name} is gone", fix="build it again")
        is_unfinished = not found["settled"] and found["parent"] == self.settled_change
        if found["change"] != self.change and not is_unfinished:
            raise PmpguardError(
                f"{shown(self.address)}: {self.table.name} was changed by another copy of this index",
                fix="change the index where it was changed last, or copy its folder from there",
            )
        if found["change"] != self.change:
            query = "DELETE FROM {table} WHERE row >= %s"
            connection.execute(self.table.sql(query), [len(self.known.ids)])
            query = "UPDATE {table} SET removed = NULL WHERE removed > %s"
            connection.execute(self.table.sql(query), [self.generation])
        self.types, self.area = self.table.columns(connection)

    # -------------------------------------------------------------------------------------------- searching

    def search(
        self, queries: Floats, k: int, allowed: Mask | None = None, filters: Filters = NO_FILTERS
    ) -> Neighbours:
        self.known.searchable(queries, k, allowed)
        if not len(self.known):
            return as_neighbours([(np.zeros(0, np.int64), np.zeros(0, np.float32))] * len(queries), k)
        try:
            found = self._reading(lambda connection: self._nearest(connection, queries, k, allowed, filters))
        except PmpguardError:
            types = self.types
            self._reading(self._check)
            if self.types == types:
                raise
            # A newer version has made a column wider meanwhile.
            found = self._reading(lambda connection: self._nearest(connection, queries, k, allowed, filters))
        return as_neighbours([self.known.sorted_best(*some, k) for some in found], k)

    def _conditions(self, allowed: Mask | None, filters: Filters) -> Conditions:
        """Rows of this index's own version, of which all is true that is asked."""
        conditions = Conditions()
        conditions.add("row < %s", len(self.known.ids))
        conditions.add("(removed IS NULL OR removed > %s)", self.generation)
        if allowed is not None:
            conditions.add("row = ANY(%s)", np.flatnonzero(allowed).tolist())
        unknown = [one.column for one in filters.all_conditions if column_name(one.column) not in self.types]
        if unknown:
            raise ConfigError(f"no metadata column {unknown[0]!r}", fix="build the index again")
        conditions.add_filters(filters, self.types, self.area)
        return conditions

    def _nearest(
        self, connection: Any, queries: Floats, k: int, allowed: Mask | None, filters: Filters
    ) -> list[tuple[Rows, Floats]]:
        half: Any = require("pgvector", "postgres").HalfVector
        conditions = self._conditions(allowed, filters)
        is_filtered = allowed is not None or filters != NO_FILTERS
        least = FILTERED_EFFORT if is_filtered else SEARCH_EFFORT
        effort = min(max(least, 2 * k), MAX_SEARCH_EFFORT)
        query = self.table.sql(
            "SELECT row, (vector <#> %s::halfvec) * -1 FROM {table} WHERE {where} "
            "ORDER BY vector <#> %s::halfvec LIMIT %s",
            where=conditions.where,
        )
        found = []
        with connection.transaction(), connection.cursor(binary=True) as cursor:
            walks = not is_filtered or self._expected_rows(cursor, conditions) > MAX_COMPARED_ROWS
            how = {"hnsw.ef_search": str(effort), "enable_indexscan": "on" if walks else "off"}
            self._set(cursor, SETTINGS | how)
            for vector in queries:
                values = [half(vector), *conditions.values, half(vector), k]
                rows = cursor.execute(query, values).fetchall()
                if walks and len(rows) < min(
                    k, len(self.known)
                ):  # too few pass, or the walk gave up: look at all
                    self._set(cursor, {"enable_indexscan": "off"})
                    rows = cursor.execute(query, values).fetchall()
                    self._set(cursor, {"enable_indexscan": "on"})
                numbers, scores = zip(*rows, strict=True) if rows else ((), ())
                found.append((np.array(numbers, np.int64), np.array(scores, np.float32)))
        return found

    def _expected_rows(self, cursor: Any, conditions: Conditions) -> float:
        """How many rows pass, as the planner expects."""
        query = "EXPLAIN (FORMAT JSON) SELECT 1 FROM {table} WHERE {where}"
        (plans,) = cursor.execute(self.table.sql(query, where=conditions.where), conditions.values).fetchone()
        return float(plans[0]["Plan"]["Plan Rows"])

    @staticmethod
    def _set(cursor: Any, settings: Mapping[str, str]) -> None:
        """For the rest of the transaction: pools of connections hand the next one to somebody else."""
        calls = ", ".join(["set_config(%s, %s, true)"] * len(settings))
        cursor.execute(f"SELECT {calls}", [word for pair in settings.items() for word in pair])


def drop_tables(saved: Sequence[Mapping[str, Any]]) -> None:
    """Delete the tables of what was saved in files that no version uses any more.

    Only in the database that is named, if one is: a copy of an index with a database of its own must not take
    away what the original searches. Tables that may still be where they were recorded are named.
    """
    left = []
    for stored in saved:
        address, table = given_address() or stored["address"], Table(stored["collection"])
        with connect(address) as connection, named_errors(address), connection.transaction():
            if without_secrets(address) != stored["address"] and table.state(connection) is None:
                left.append(f"{table.text} in {shown(stored['address'])}")
            table.drop(connection)
    if left:
        raise PmpguardError(
            f"not deleted, for {VARIABLE} or --store names another database: {', '.join(left)}",
            fix="drop what no copy of the index searches",
        )
