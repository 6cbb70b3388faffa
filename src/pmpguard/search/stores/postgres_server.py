"""Reaching a PostgreSQL server: its address without secrets, errors with a fix, the schema's version.

The address is the one in PMPGUARD_STORE, else the one an index recorded when it was built. Passwords are
neither recorded nor printed; where the address holds none, PGPASSWORD and ~/.pgpass are asked, as by psql.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pmpguard.errors import ConfigError, PmpguardError, require

VARIABLE = "PMPGUARD_STORE"
SCHEMES = ("postgresql://", "postgres://")
SECRETS = ("password", "sslpassword", "passfile", "oauth_client_secret")
EXAMPLE = "write postgresql://USER@HOST:5432/DATABASE"
PATIENCE = {"connect_timeout": "10", "tcp_user_timeout": "20000", "keepalives_idle": "10"}
OLDEST_PGVECTOR = (0, 8)
MIGRATION_LOCK = 0x706D7067  # any number nobody else locks

# Step n makes schema n of schema n - 1. Steps that were released never change.
MIGRATIONS = (
    """
    CREATE TABLE pmpguard.collections (
        name text PRIMARY KEY,
        model text NOT NULL,
        dim integer NOT NULL,
        rows bigint NOT NULL DEFAULT 0,
        generation integer NOT NULL DEFAULT 0,
        created timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    ALTER TABLE pmpguard.collections
        ADD COLUMN change text NOT NULL DEFAULT '',
        ADD COLUMN parent text NOT NULL DEFAULT '',
        ADD COLUMN settled boolean NOT NULL DEFAULT true,
        ADD COLUMN changed timestamptz NOT NULL DEFAULT now()
    """,
)

Options = Mapping[str, str]  # of a connection, as libpq names them


def given_address() -> Options | None:
    """What PMPGUARD_STORE says, if anything."""
    url = os.environ.get(VARIABLE, "")
    return read_address(url) if url else None


def use_address(url: str) -> None:
    """Make an address the one that counts for the rest of this process; an error does not repeat it."""
    read_address(url)
    os.environ[VARIABLE] = url


def read_address(url: str) -> Options:
    """The options in a URL; an error does not repeat it, for it may hold a password."""
    if not url.startswith(SCHEMES):
        raise ConfigError("the store is no address of a PostgreSQL database", fix=EXAMPLE)
    psycopg: Any = require("psycopg", "postgres")
    try:
        found: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        fix = f"{EXAMPLE}; percent-encode what is special in a password (@ is %40)"
        raise ConfigError("the store's address cannot be read", fix=fix) from None
    return {name: str(value) for name, value in found.items()}


def without_secrets(options: Options) -> dict[str, str]:
    """What may be written down."""
    return {name: value for name, value in options.items() if name not in SECRETS}


def shown(options: Options) -> str:
    """
    >>> shown({"host": "db", "user": "ana", "password": "secret", "dbname": "images"})
    'PostgreSQL database images at db:5432'
    """
    host = options.get("host") or options.get("hostaddr") or os.environ.get("PGHOST", "the local socket")
    port = options.get("port") or os.environ.get("PGPORT", "5432")
    name = options.get("dbname") or os.environ.get("PGDATABASE") or options.get("user", "by default")
    return f"PostgreSQL database {name} at {host}:{port}"


@contextmanager
def named_errors(options: Options) -> Iterator[None]:
    """Whatever the server or the way to it raises names the database and what to do."""
    psycopg: Any = require("psycopg", "postgres")
    try:
        yield
    except psycopg.Error as error:
        message = " ".join(str(error).split())[:300]
        for secret in (options.get(name) for name in SECRETS):
            message = message.replace(secret, "***") if secret else message
        raise PmpguardError(f"{shown(options)}: {message}", fix=_fix(psycopg, error)) from None


def _fix(psycopg: Any, error: Any) -> str:
    errors, text = psycopg.errors, str(error)
    if "authentication failed" in text or "no password supplied" in text:
        return "check user and password; the password may also come from PGPASSWORD or ~/.pgpass"
    if "does not exist" in text and isinstance(error, psycopg.OperationalError):
        return "name another database or user, or create it: createdb NAME"
    if isinstance(error, errors.InsufficientPrivilege):
        return "let its owner grant what is missing; docs/deploy.md lists what readers and writers need"
    if isinstance(error, errors.DiskFull | errors.OutOfMemory):
        return "give the server more room; nothing was changed"
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return f"check that the server runs and can be reached, and {VARIABLE} or --store; then try again"
    return "nothing was changed; see the server's log"


def connect(options: Options) -> Any:
    """A connection that runs every statement by itself unless told otherwise, and knows pgvector's types."""
    psycopg: Any = require("psycopg", "postgres")
    vectors: Any = require("pgvector.psycopg", "postgres")
    with named_errors(options):
        connection = psycopg.connect(**{**PATIENCE, **options}, autocommit=True, prepare_threshold=None)
    try:
        with named_errors(options):
            prepare(connection, options)
            vectors.register_vector(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: Any, options: Options) -> None:
    """Make the schema, or bring an older one to what this version writes; a newer one is refused."""
    current = schema_version(connection)
    if current > len(MIGRATIONS):
        raise PmpguardError(
            f"{shown(options)} has schema {current}, this version of pmpguard knows up to {len(MIGRATIONS)}",
            fix="install the newer version of pmpguard that made it",
        )
    if current == len(MIGRATIONS):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
        _require_pgvector(connection, options)
        connection.execute("CREATE SCHEMA IF NOT EXISTS pmpguard")
        connection.execute("CREATE TABLE IF NOT EXISTS pmpguard.schema_version (version integer NOT NULL)")
        current = schema_version(connection)  # another process may have been faster
        for step in MIGRATIONS[current:]:
            connection.execute(step)
        connection.execute("DELETE FROM pmpguard.schema_version")
        connection.execute("INSERT INTO pmpguard.schema_version VALUES (%s)", [max(current, len(MIGRATIONS))])


def schema_version(connection: Any) -> int:
    """0 where there is no schema yet."""
    found = connection.execute("SELECT to_regclass('pmpguard.schema_version')").fetchone()
    if found[0] is None:
        return 0
    row = connection.execute("SELECT max(version) FROM pmpguard.schema_version").fetchone()
    return int(row[0] or 0)


def _require_pgvector(connection: Any, options: Options) -> None:
    psycopg: Any = require("psycopg", "postgres")
    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
        fix = "install pgvector on the server, as package postgresql-17-pgvector or image pgvector/pgvector"
        raise PmpguardError(f"{shown(options)}: the server has no pgvector", fix=fix) from None
    except psycopg.errors.InsufficientPrivilege:
        fix = "let a superuser run CREATE EXTENSION vector in this database, once"
        raise PmpguardError(f"{shown(options)}: you may not add the extension vector", fix=fix) from None
    (version,) = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PGVECTOR:
        fix = "upgrade pgvector on the server to 0.8 or newer, then run ALTER EXTENSION vector UPDATE"
        raise PmpguardError(f"{shown(options)}: pgvector {version} is too old", fix=fix)
