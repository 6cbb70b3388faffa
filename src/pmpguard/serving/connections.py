"""Connections: how many there may be, and for how long one may be silent; no token is needed to open one."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from typing import Any, Protocol

from pmpguard.errors import require
from pmpguard.serving.access import address_group
from pmpguard.serving.config import ServerConfig
from pmpguard.serving.errors import busy

logger = logging.getLogger(__name__)

BACKLOG = 128  # connections accepted in one go, before any of them is counted
RESERVED_FILES = 128  # descriptors for the index, images and uploads


class Connection(Protocol):
    """What a `ConnectionTable` must know of a connection."""

    address: str

    @property
    def waiting_since(self) -> float | None:
        """Since when the client has owed something; None while the server works on its request."""

    def abort(self) -> None: ...


class ConnectionTable:
    """All open connections, at most so many; the one that has waited longest makes way for a new one."""

    def __init__(self, largest: int, per_address: int) -> None:
        self.largest = largest
        self.per_address = per_address
        self._of: defaultdict[str, set[Connection]] = defaultdict(set)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def admit(self, connection: Connection) -> bool:
        """Take up a connection; False where it has no place because all others are at work."""
        own = self._of.get(connection.address, set())
        if len(own) >= self.per_address:
            crowd = list(own)
        else:
            crowd = list(chain(*self._of.values())) if len(self) >= self.largest else []
        if crowd:
            waiting = [(since, id(one), one) for one in crowd if (since := one.waiting_since) is not None]
            if not waiting:
                return False
            logger.warning("too many connections: one that was waited for is closed")
            evicted = min(waiting)[2]
            evicted.abort()
            self.remove(evicted)
        self._of[connection.address].add(connection)
        return True

    def remove(self, connection: Connection) -> None:
        own = self._of[connection.address]
        own.discard(connection)
        if not own:
            del self._of[connection.address]


def open_file_limit() -> int:
    """How many connections the process has file descriptors for."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Closed connections give their descriptor back a turn of the loop later: two more rounds may have come.
    return max(soft // 4, soft - RESERVED_FILES - 3 * BACKLOG) if soft != resource.RLIM_INFINITY else 10**6


def bounded_protocol(config: ServerConfig) -> Any:
    """uvicorn's protocol of HTTP/1.1 for connections that are counted and may not be silent for long."""
    h11_impl: Any = require("uvicorn.protocols.http.h11_impl", "serve")
    largest = min(config.connections, open_file_limit())
    table = ConnectionTable(largest, min(largest, config.connections_per_address))
    body = json.dumps(busy("too many connections are open").as_dict())
    refusal = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Retry-After: 1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()

    class BoundedProtocol(h11_impl.H11Protocol):  # type: ignore[misc]  # uvicorn comes with an extra
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.address = address_group(self.client[0] if self.client else "")
            self.since = self.loop.time()
            self.unsent = 0
            self.check: asyncio.TimerHandle = self.loop.call_later(config.idle_seconds, self.end_if_silent)
            if not table.admit(self):
                logger.warning("too many connections: a new one is refused")
                transport.write(refusal)
                transport.close()

        def connection_lost(self, error: Exception | None) -> None:
            self.check.cancel()
            table.remove(self)
            super().connection_lost(error)

        def on_response_complete(self) -> None:
            self.since = self.loop.time()
            super().on_response_complete()

        @property
        def waits_for_client(self) -> bool:
            """For the head of a request, or to take in the last response, before which no other begins."""
            return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

        @property
        def waiting_since(self) -> float | None:
            return self.since if self.waits_for_client or self.cycle.more_body else None

        def abort(self) -> None:
            self.transport.abort()

        def end_if_silent(self) -> None:
            """End a connection that does nothing: neither asks nor takes in what it asked for."""
            unsent = self.transport.get_write_buffer_size()
            taking = 0 < unsent != self.unsent
            self.unsent = unsent
            due = self.since + config.idle_seconds - self.loop.time()
            if self.waits_for_client and due <= 0 and not taking:
                self.abort()
                return
            again = due if due > 0 else config.idle_seconds
            self.check = self.loop.call_later(again, self.end_if_silent)

    return BoundedProtocol


class RepeatFilter(logging.Filter):
    """Lets each line of code log so often a minute; the next minute's first message tells of the others."""

    def __init__(
        self, burst: int = 5, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.clock = clock
        self.burst = burst
        self.seconds = seconds
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self.clock()
        place = (record.pathname, record.lineno)
        started, count = self._counts.get(place, (now, 0))
        if now - started >= self.seconds:
            if count > self.burst:
                record.msg = f"{record.getMessage()} ({count - self.burst} more like it were left out)"
                record.args = ()
            started, count = now, 0
        self._counts[place] = (started, count + 1)
        return count < self.burst
