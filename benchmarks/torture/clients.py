"""Ten thousand slow and idle clients, and minutes of mixed load while the index changes; loopback only."""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from torture.apart import begun, command, ended
from torture.artefacts import Artefacts
from torture.server import own_megabytes, serving

ADDRESSES = 50  # of clients: 127.0.1.1 and on
SAMPLE_SECONDS = 2.0
CHANGE_SECONDS = 8.0  # between two changes of the index
MOST_GROWTH_MB = 20.0  # of the server's memory, by its slope, in the last 60 % of the load


async def ask(host: str, port: int, request: bytes, source: str, seconds: float = 20.0) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
        try:
            writer.write(request)
            answer = await reader.read()
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]) if head else 0, body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()


def upload() -> bytes:
    """A search by an image sent with it."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (64, 64), "green").save(stream, "PNG")
    part = (
        b'Content-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    )
    body = b"--bound\r\n" + part + stream.getvalue() + b"\r\n--bound--\r\n"
    head = (
        "POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: multipart/form-data; boundary=bound\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def idle(host: str, port: int, number: int, until: float, closed: Counter[str]) -> None:
    """Silent, or with a head that never ends, a byte a second."""
    source = f"127.0.1.{1 + number % ADDRESSES}"
    try:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
    except (OSError, TimeoutError) as error:
        closed[f"not accepted: {type(error).__name__}"] += 1
        return
    slow = number % 2
    try:
        if slow:
            writer.write(b"GET /search?text=a HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    if not await reader.read(1000):
                        closed["closed by the server"] += 1
                        return
            if slow:
                writer.write(b"a")
        closed["open to the end"] += 1
    except OSError:
        closed["closed by the server"] += 1
    finally:
        writer.close()


async def crowd(host: str, port: int, count: int, seconds: float, process: int) -> dict[str, Any]:
    closed: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    until = time.monotonic() + seconds
    waits, most = [], 0.0

    async def visitor() -> None:
        """An honest client from an address of its own, all the time."""
        nonlocal most
        while time.monotonic() < until:
            started = time.monotonic()
            try:
                status, _ = await ask(host, port, get("/search?text=a+river"), "127.0.2.1")
                asked[str(status)] += 1
            except (OSError, TimeoutError, IndexError) as error:
                asked[type(error).__name__] += 1
            waits.append(time.monotonic() - started)
            most = max(most, own_megabytes(process))
            await asyncio.sleep(0.25)

    async def crowded() -> None:
        waiting = []
        for number in range(count):
            waiting.append(asyncio.create_task(idle(host, port, number, until, closed)))
            if number % 50 == 49:
                await asyncio.sleep(0.02)
        await asyncio.gather(*waiting)

    await asyncio.gather(visitor(), crowded())
    return {
        "clients": count, "seconds": seconds, "clients_ended": dict(closed), "visitor_answers": dict(asked),
        "visitor_slowest_seconds": round(max(waits), 2), "server_most_mb": round(most, 1),
    }  # fmt: skip


def many_idle_clients(made: Artefacts, work: Path, count: int, seconds: float) -> dict[str, Any]:
    """A server with 1,024 files against so many clients that never ask."""
    with serving(work, "serve", made.index) as (child, address):
        row = asyncio.run(crowd(*host_and_port(address), count, seconds, child.process))
        log = len(child.said)
    troubles = [f"visitor: {name}" for name in row["visitor_answers"] if name != "200"]
    return {**row, "log_bytes": log, "held": not troubles and log < 20_000, "troubles": troubles}


async def mixed(
    host: str, port: int, seconds: float, process: int, made: Artefacts, index: Path, work: Path
) -> dict[str, Any]:
    answers: Counter[str] = Counter()
    samples: list[tuple[float, float]] = []
    changes: Counter[str] = Counter()
    started = time.monotonic()
    until = started + seconds
    picture = upload()

    async def client(number: int) -> None:
        chance = random.Random(number)
        words = ("a river", "green field", "two white planes", "harbour with boats", "bare land")
        while time.monotonic() < until:
            id, text = f"scene-{chance.randrange(24):06d}", quote(chance.choice(words))
            kind, request = chance.choice((
                ("search", get(f"/search?text={text}&k=5")), ("search", get(f"/search?like={id}")),
                ("image", get(f"/images/{id}?size=64")), ("explain", get(f"/explain?id={id}&text={text}")),
                ("info", get("/info")), ("upload", picture), ("metrics", get("/metrics")),
            ))  # fmt: skip
            try:
                status, _ = await ask(host, port, request, f"127.0.3.{1 + number}")
            except (OSError, TimeoutError, IndexError) as error:
                status = f"{type(error).__name__}"  # type: ignore[assignment]
            gone = status == 404 and kind in ("search", "image", "explain")  # removed a moment ago
            answers["200" if status == 200 else "404 of a removed image" if gone else f"{kind} {status}"] += 1

    async def changer() -> None:
        """Remove two images and add them again, over and over."""
        step = 0
        while time.monotonic() < until - CHANGE_SECONDS:
            words = ["index", "add", index, made.both] if step % 2 else ["index", "remove", index, GONE]
            outcome = await asyncio.to_thread(ended, begun(partial(command, *words), work / "changer"))
            changes["made" if outcome.code == 0 else "failed"] += 1
            step += 1
            await asyncio.sleep(CHANGE_SECONDS)

    async def watch() -> None:
        while time.monotonic() < until:
            samples.append((time.monotonic() - started, own_megabytes(process)))
            await asyncio.sleep(SAMPLE_SECONDS)

    await asyncio.gather(changer(), watch(), *(client(number) for number in range(6)))
    late = np.array([one for one in samples if one[0] > 0.4 * seconds])  # (S, 2): seconds, megabytes
    slope = float(np.polyfit(late[:, 0], late[:, 1], 1)[0]) * 60
    bound = MOST_GROWTH_MB / (0.6 * seconds / 60)
    return {
        "seconds": seconds, "answers": dict(answers), "index_changes": dict(changes),
        "memory_mb": {"first": round(samples[0][1], 1), "last": round(samples[-1][1], 1),
                      "most": round(max(value for _, value in samples), 1)},
        "slope_mb_per_minute_after_40_percent": round(slope, 3), "slope_allowed": round(bound, 3),
    }  # fmt: skip


GONE = "scene-000003,scene-000004"


def host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return str(parts.hostname), int(parts.port or 0)


def memory_of(index: Path, work: Path) -> float:
    """Megabytes of a fresh server that has answered a few questions."""
    with serving(work, "serve", index) as (child, address):
        for number in range(20):
            asyncio.run(ask(*host_and_port(address), get(f"/search?text={number}"), "127.0.3.1"))
        return own_megabytes(child.process)


def mixed_load(made: Artefacts, work: Path, seconds: float) -> dict[str, Any]:
    """Searches, images, explanations and uploads from six clients while the index changes all the time.

    Every addition is a further segment of the index. What these take in a server that has just begun is not
    held against the one under load.
    """
    index = work / "index"
    outcome = ended(
        begun(partial(command, "index", "build", index, "--embeddings", made.both), work / "build")
    )
    assert outcome.code == 0, outcome.said
    before = memory_of(index, work / "before")
    with serving(work / "server", "serve", index) as (child, address):
        row = asyncio.run(mixed(*host_and_port(address), seconds, child.process, made, index, work))
    grown = memory_of(index, work / "after") - before
    row["index_grew_mb"] = round(grown, 1)
    allowed = {"200", "404 of a removed image"}
    troubles = [f"{name}: {count}" for name, count in row["answers"].items() if name not in allowed]
    troubles += ["an index change failed"] if row["index_changes"].get("failed") else []
    slope, bound = row["slope_mb_per_minute_after_40_percent"], row["slope_allowed"]
    slope -= 60 * grown / seconds
    troubles += [f"memory grows by {slope:.3f} MB a minute, over {bound}"] if slope > bound else []
    return {**row, "held": not troubles, "troubles": troubles}
