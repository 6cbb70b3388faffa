"""Reaching PostgreSQL: errors with a fix and without the password, and schemas of other versions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.live_postgres import PASSWORD, LivePostgres

from pmpguard.errors import ConfigError, PmpguardError
from pmpguard.search.stores import IndexedItems, load_index
from pmpguard.search.stores.postgres import PostgresIndex
from pmpguard.search.stores.postgres_server import (
    MIGRATIONS,
    connect,
    read_address,
    schema_version,
    shown,
    without_secrets,
)


def refusal(url: str) -> PmpguardError:
    with pytest.raises(PmpguardError) as refused:
        connect(read_address(url))
    assert "s3cret" not in str(refused.value) and PASSWORD not in repr(refused.value.__context__)
    return refused.value


def test_an_address_that_cannot_be_read_is_not_repeated():
    for url in ("mysql://a:s3cret@b/c", "postgresql://a:s3cret@b:port/c?what", "a:s3cret@b"):
        with pytest.raises(ConfigError, match="postgresql://USER@HOST") as refused:
            read_address(url)
        assert "s3cret" not in str(refused.value) and refused.value.__cause__ is None


def test_an_address_is_shown_and_kept_without_its_secrets():
    address = read_address("postgresql://ana:s3cret@db.example:5433/images?sslmode=require")
    assert shown(address) == "PostgreSQL database images at db.example:5433"
    kept = {"user": "ana", "host": "db.example", "port": "5433", "dbname": "images", "sslmode": "require"}
    assert without_secrets(address) == kept


def test_a_server_that_is_not_there_a_wrong_password_and_no_such_database(postgres: LivePostgres):
    error = refusal("postgresql://ana:s3cret@127.0.0.1:1/images")
    assert "database images at 127.0.0.1:1" in error.message and "PMPGUARD_STORE" in error.fix
    error = refusal(postgres.url().replace("signs", "s3cret"))
    assert "authentication failed" in error.message and "PGPASSWORD" in error.fix
    error = refusal(postgres.url("nowhere"))
    assert '"nowhere" does not exist' in error.message and "createdb" in error.fix


def test_a_server_without_pgvector(postgres: LivePostgres):
    if postgres.run("SHOW server_version_num") < [("180000",)]:
        pytest.skip("this server cannot be told to look for extensions elsewhere")
    url = postgres.new_database("bare")
    postgres.run("ALTER DATABASE bare SET extension_control_path = '/nowhere'")
    error = refusal(url)
    assert "the server has no pgvector" in error.message and "pgvector/pgvector" in error.fix


def test_a_user_who_may_not_add_pgvector(postgres: LivePostgres):
    postgres.new_database("closed")
    postgres.run(f"DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
    error = refusal(postgres.url("closed", "reader"))
    assert "you may not add the extension" in error.message and "CREATE EXTENSION vector" in error.fix


def test_a_reader_needs_no_more_than_to_read(postgres: LivePostgres, monkeypatch, tmp_path):
    monkeypatch.setenv("PMPGUARD_STORE", postgres.new_database("shared"))
    vectors = np.eye(4, dtype=np.float32)
    stored = PostgresIndex(4)
    stored.add(list("abcd"), vectors)
    stored.save(tmp_path)
    stored.settle()
    postgres.run(f"DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'", "shared")
    postgres.run("GRANT USAGE ON SCHEMA pmpguard TO reader", "shared")
    postgres.run("GRANT SELECT ON ALL TABLES IN SCHEMA pmpguard TO reader", "shared")
    monkeypatch.setenv("PMPGUARD_STORE", postgres.url("shared", "reader"))
    found = load_index(
        "postgres", tmp_path, IndexedItems(list("abcd"), np.zeros(4, bool), 4, lambda: vectors)
    )
    assert found.search(vectors[2:3], 1).rows.tolist() == [[2]]
    with pytest.raises(PmpguardError, match="permission denied") as refused:
        found.remove([0])
    assert "grant" in refused.value.fix


def test_an_older_schema_is_migrated_with_what_it_holds(postgres: LivePostgres):
    url = postgres.new_database("older")
    for statement in (
        "CREATE EXTENSION vector", "CREATE SCHEMA pmpguard", MIGRATIONS[0],
        "CREATE TABLE pmpguard.schema_version (version integer NOT NULL)",
        "INSERT INTO pmpguard.schema_version VALUES (1)",
        "INSERT INTO pmpguard.collections VALUES ('images_1', 'model', 4, 7, 2)",
    ):  # fmt: skip
        postgres.run(statement, "older")
    with connect(read_address(url)) as connection:
        assert schema_version(connection) == len(MIGRATIONS) == 2
    found = postgres.run("SELECT name, rows, generation, change, settled FROM pmpguard.collections", "older")
    assert found == [("images_1", 7, 2, "", True)]


def test_a_newer_schema_is_refused_by_name(postgres: LivePostgres):
    url = postgres.new_database("newer")
    connect(read_address(url)).close()
    postgres.run("UPDATE pmpguard.schema_version SET version = 99", "newer")
    error = refusal(url)
    assert "database newer" in error.message and "has schema 99" in error.message
    assert "newer version of pmpguard" in error.fix
    assert postgres.run("SELECT version FROM pmpguard.schema_version", "newer") == [(99,)]
