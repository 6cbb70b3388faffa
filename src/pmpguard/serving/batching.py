"""Concurrent queries are answered together: one encoding and one pass over the index for many."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pmpguard.errors import PmpguardError
from pmpguard.search.query import Filters, Query, SearchHit
from pmpguard.serving.errors import busy
from pmpguard.serving.protocols import BoundedExecutor, Searchable


@dataclass(frozen=True)
class Ask:
    """One question to the index."""

    query: Query
    k: int
    shortlist: int
    filters: Filters

    @property
    def shared(self) -> Hashable:
        """Questions that agree in this go to the index in one call."""
        filters = self.filters
        columns = tuple(sorted((name, tuple(values)) for name, values in filters.columns.items()))
        return (
            self.k, self.shortlist, filters.box, filters.start, filters.stop, columns, filters.conditions
        )  # fmt: skip


@dataclass(frozen=True)
class Found:
    """The hits, the version of the index they come from, and how many items it holds of their kind."""

    version: str
    count: int
    hits: list[SearchHit]


Waiting = tuple[Ask, "asyncio.Future[Found]"]


class Batcher:
    """Collects questions for a few milliseconds and asks the index once for all that agree in their settings.

    While the index works on one batch the next one gathers by itself, so the busier the server the larger the
    batches.
    """

    def __init__(
        self,
        searcher: Searchable,
        lane: BoundedExecutor,
        *,
        waiting: int,
        largest: int = 32,
        gather_seconds: float = 0.003,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._searcher = searcher
        self._executor = lane
        self._largest = largest
        self._gather_seconds = gather_seconds
        self._on_batch = on_batch
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue(waiting)

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    async def find(self, ask: Ask) -> Found:
        """Wait for the answer; a full queue refuses at once."""
        future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((ask, future))
        except asyncio.QueueFull:
            raise busy() from None
        try:
            async with asyncio.timeout(self._executor.seconds):
                return await future
        except TimeoutError:
            raise busy("the answer took too long") from None

    async def run(self) -> None:
        """Answer until cancelled; whoever still waits then is told so."""
        try:
            while True:
                await self._answer(await self._gather())
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

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        groups: defaultdict[Hashable, list[Waiting]] = defaultdict(list)
        for ask, future in batch:
            if not future.done():  # whoever gave up is not worked for
                groups[ask.shared].append((ask, future))
        try:
            for group in groups.values():
                await self._answer_group(group)
        finally:
            for _, future in batch:
                _fail(future, busy("the server is shutting down"))

    async def _answer_group(self, group: Sequence[Waiting]) -> None:
        self._on_batch(len(group))
        answers: Sequence[Found | Exception]
        try:
            answers = await self._executor.run(self._search, [ask for ask, _ in group])
        except Exception as error:
            answers = [error] * len(group)
        for (_, future), answer in zip(group, answers, strict=True):
            if isinstance(answer, Exception):
                _fail(future, answer)
            elif not future.done():
                future.set_result(answer)

    def _search(self, asks: Sequence[Ask]) -> list[Found | PmpguardError]:
        """Ask the index; if one question is at fault the others are answered all the same."""
        searcher, first = self._searcher, asks[0]
        queries = [ask.query for ask in asks]
        version = searcher.version
        try:
            hits = searcher.search_many(queries, first.k, first.shortlist, first.filters)
        except PmpguardError as error:
            if len(asks) == 1:
                return [error]
            return list(itertools.chain.from_iterable(self._search([ask]) for ask in asks))
        if searcher.version != version:  # swapped meanwhile: nobody could say which version answered
            return self._search(asks)
        counts = {"image": searcher.count, "caption": searcher.caption_count}
        return [Found(version, counts[ask.query.kind], found) for ask, found in zip(asks, hits, strict=True)]


def _fail(future: asyncio.Future[Found], error: Exception) -> None:
    """Tell whoever still waits; an answered future stays as it is."""
    if not future.done():
        future.set_exception(error)
