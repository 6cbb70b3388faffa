"""Concurrent queries share one encoding and one pass over the index."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pmpguard.errors import PmpguardError
from pmpguard.search.query import Filters, Query, SearchHit
from pmpguard.serving.errors import busy
from pmpguard.serving.protocols import BoundedExecutor, SearchBackend


@dataclass(frozen=True)
class BackendQuery:
    """A query with its settings."""

    query: Query
    k: int
    shortlist: int
    filters: Filters

    @property
    def settings(self) -> Hashable:
        """Queries that agree in this go to the index in one call."""
        filters = self.filters
        columns = tuple(sorted((name, tuple(values)) for name, values in filters.columns.items()))
        return (
            self.k, self.shortlist, filters.box, filters.start, filters.stop, columns, filters.conditions,
            filters.near, filters.radius,
        )  # fmt: skip


@dataclass(frozen=True)
class SearchResult:
    """The hits, the version of the index they come from, and how many items it holds of their kind."""

    version: str
    fingerprint: str
    count: int
    hits: list[SearchHit]


Waiting = tuple[BackendQuery, "asyncio.Future[SearchResult]"]


class Batcher:
    """Collects queries for a few milliseconds and calls the index once for all that agree in their settings.

    While the index works on one batch the next one gathers by itself, so the busier the server the larger the
    batches.
    """

    def __init__(
        self,
        backend: SearchBackend,
        executor: BoundedExecutor,
        *,
        waiting: int,
        largest: int = 32,
        gather_seconds: float = 0.003,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._backend = backend
        self._executor = executor
        self._largest = largest
        self._gather_seconds = gather_seconds
        self._on_batch = on_batch
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue(waiting)

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    async def search(self, query: BackendQuery) -> SearchResult:
        """Wait for the result; a full queue refuses at once."""
        future: asyncio.Future[SearchResult] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((query, future))
        except asyncio.QueueFull:
            raise busy() from None
        try:
            async with asyncio.timeout(self._executor.seconds):
                return await future
        except TimeoutError:
            raise busy("the search took too long") from None

    async def run(self) -> None:
        """Work until cancelled; queries that still wait then fail."""
        try:
            while True:
                await self._run_batch(await self._gather())
        finally:
            while not self._queue.empty():
                _fail(self._queue.get_nowait()[1], busy("the server is shutting down"))

    async def _gather(self) -> list[Waiting]:
        batch = [await self._queue.get()]
        if self._queue.qsize() < self._largest - 1:
            await asyncio.sleep(self._gather_seconds)
        while len(batch) < self._largest and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        return batch

    async def _run_batch(self, batch: Sequence[Waiting]) -> None:
        groups: defaultdict[Hashable, list[Waiting]] = defaultdict(list)
        for query, future in batch:
            if not future.done():  # its client has gone
                groups[query.settings].append((query, future))
        try:
            for group in groups.values():
                await self._run_group(group)
        finally:
            for _, future in batch:
                _fail(future, busy("the server is shutting down"))

    async def _run_group(self, group: Sequence[Waiting]) -> None:
        self._on_batch(len(group))
        results: Sequence[SearchResult | Exception]
        try:
            results = await self._executor.run(self._search, [query for query, _ in group])
        except Exception as error:
            results = [error] * len(group)
        for (_, future), result in zip(group, results, strict=True):
            if isinstance(result, Exception):
                _fail(future, result)
            elif not future.done():
                future.set_result(result)

    def _search(self, queries: Sequence[BackendQuery]) -> list[SearchResult | PmpguardError]:
        """Call the index; if one query is at fault the others have their results all the same."""
        backend, first = self._backend, queries[0]
        version, fingerprint = backend.version, backend.fingerprint
        try:
            hits = backend.search_many(
                [query.query for query in queries], first.k, first.shortlist, first.filters
            )
        except PmpguardError as error:
            if len(queries) == 1:
                return [error]
            return list(itertools.chain.from_iterable(self._search([query]) for query in queries))
        if backend.fingerprint != fingerprint:  # swapped meanwhile: nobody could say which version this is of
            return self._search(queries)
        counts = {"image": backend.count, "caption": backend.caption_count}
        return [
            SearchResult(version, fingerprint, counts[query.query.kind], found)
            for query, found in zip(queries, hits, strict=True)
        ]


def _fail(future: asyncio.Future[SearchResult], error: Exception) -> None:
    """A future that has its result keeps it."""
    if not future.done():
        future.set_exception(error)
