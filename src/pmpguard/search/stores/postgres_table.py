"""The table of one collection: making it, giving it rows, columns and indexes, and what is recorded of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pmpguard.errors import require
from pmpguard.search.filters import FilterColumns
from pmpguard.search.stores import Floats
from pmpguard.search.stores.postgres_columns import (
    PLACES,
    PLAIN,
    POSTGIS,
    attribute_types,
    fixed_types,
    rows_of,
)

NEIGHBOURS, BUILD_EFFORT = 24, 128  # of HNSW: m, ef_construction
BUILD_MEMORY_MB = (64, 2048)  # least and most that is asked for to build a graph
MAX_INDEXED = 16  # attributes with an index of their own
STATE = ("model", "rows", "generation", "change", "parent", "settled")


@dataclass(frozen=True)
class Table:
    """A table `pmpguard.NAME` and its line in `pmpguard.collections`; every call belongs to a transaction."""

    name: str

    def sql(self, text: str, **names: Any) -> Any:
        """A statement with `{table}` and other names in their places."""
        sql: Any = require("psycopg.sql", "postgres")
        return sql.SQL(text).format(table=sql.Identifier("pmpguard", self.name), **names)

    @property
    def text(self) -> str:
        """As functions take it that look for a table."""
        return f"pmpguard.{self.name}"

    def state(self, connection: Any) -> dict[str, Any] | None:
        """What is recorded of it, None when it is not there."""
        query = f"SELECT {', '.join(STATE)} FROM pmpguard.collections WHERE name = %s"
        found = connection.execute(query, [self.name]).fetchone()
        return None if found is None else dict(zip(STATE, found, strict=True))

    def record(self, connection: Any, rows: int, generation: int, parent: str) -> str:
        """The state after a change, which is settled once the index's own files say so; its name."""
        change = uuid.uuid4().hex
        query = (
            "UPDATE pmpguard.collections SET rows = %s, generation = %s, change = %s, parent = %s, "
            "settled = false, changed = now() WHERE name = %s"
        )
        connection.execute(query, [rows, generation, change, parent, self.name])
        return change

    def columns(self, connection: Any) -> tuple[dict[str, str], tuple[str, str]]:
        """Types of the attributes' columns, and how areas are kept."""
        query = (
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        )
        types = dict(connection.execute(query, [self.text]).fetchall())
        area = PLAIN if types["area"] == PLAIN[0] else POSTGIS
        return {name: kind for name, kind in types.items() if name not in fixed_types(area, 1)}, area

    def create(self, connection: Any, dim: int, model: str) -> None:
        has_postgis = connection.execute("SELECT to_regtype('geometry') IS NOT NULL").fetchone()[0]
        types = fixed_types(POSTGIS if has_postgis else PLAIN, dim)
        connection.execute(
            self.sql(
                f"CREATE TABLE {{table}} ({', '.join(f'{name} {kind}' for name, kind in types.items())})"
            )
        )
        connection.execute(self.sql("CREATE INDEX ON {table} USING gist (area)"))
        connection.execute(self.sql("CREATE INDEX ON {table} (moment)"))
        query = "INSERT INTO pmpguard.collections (name, model, dim) VALUES (%s, %s, %s)"
        connection.execute(query, [self.name, model, dim])

    def drop(self, connection: Any) -> None:
        connection.execute(self.sql("DROP TABLE IF EXISTS {table}"))
        connection.execute("DELETE FROM pmpguard.collections WHERE name = %s", [self.name])

    def widen(self, connection: Any, there: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
        """Columns for new attributes; where types differ, the one that holds both, as `join_tables` chose."""
        sql: Any = require("psycopg.sql", "postgres")
        types = dict(there)
        for name, kind in wanted.items():
            column = sql.Identifier(name)
            if name not in types:
                connection.execute(
                    self.sql(f"ALTER TABLE {{table}} ADD COLUMN {{column}} {kind}", column=column)
                )
                if kind != "boolean" and len(types) < MAX_INDEXED:
                    method = "hash" if kind == "text" else "btree"  # a hash has no longest text
                    query = f"CREATE INDEX ON {{table}} USING {method} ({{column}})"
                    connection.execute(self.sql(query, column=column))
            elif types[name] != kind:
                query = f"ALTER TABLE {{table}} ALTER COLUMN {{column}} TYPE {kind} USING {{column}}::{kind}"
                connection.execute(self.sql(query, column=column))
            types[name] = kind
        return types

    def copy(
        self,
        connection: Any,
        first: int,
        ids: Sequence[str],
        vectors: Floats,
        columns: FilterColumns,
        types: Mapping[str, str],
    ) -> None:
        """Rows from number `first` on, in one stream."""
        sql: Any = require("psycopg.sql", "postgres")
        half: Any = require("pgvector", "postgres").HalfVector
        attributes = attribute_types(columns)
        names = ["row", "item", "vector", *PLACES, "moment", *attributes]
        kinds = ["int8", "text", "halfvec", *["float8"] * 4, "timestamptz", *(types[n] for n in attributes)]
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        query = self.sql("COPY {table} ({columns}) FROM STDIN WITH (FORMAT BINARY)", columns=listed)
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            copy.set_types(kinds)
            for place, facts in enumerate(rows_of(columns)):
                copy.write_row((first + place, ids[place], half(vectors[place]), *facts))

    def build_graph(self, connection: Any, dim: int) -> None:
        """After the first rows, which is much faster than row by row; and counts for the planner."""
        sql: Any = require("psycopg.sql", "postgres")
        query = "SELECT to_regclass(%s) IS NULL"
        if connection.execute(query, [f"{self.text}_graph"]).fetchone()[0]:
            rows = connection.execute(self.sql("SELECT count(*) FROM {table}")).fetchone()[0]
            least, most = BUILD_MEMORY_MB
            memory = min(max(rows * (2 * dim + 40 * NEIGHBOURS) >> 20, least), most)
            connection.execute("SELECT set_config('maintenance_work_mem', %s, true)", [f"{memory}MB"])
            query = (
                "CREATE INDEX {graph} ON {table} USING hnsw (vector halfvec_ip_ops) "
                f"WITH (m = {NEIGHBOURS}, ef_construction = {BUILD_EFFORT})"
            )
            connection.execute(self.sql(query, graph=sql.Identifier(f"{self.name}_graph")))
        connection.execute(self.sql("ANALYZE {table}"))
