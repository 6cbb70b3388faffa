"""What the server needs of an index, and the threads that call it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from pmpguard.search.filters import ValueRange
from pmpguard.search.query import Filters, Query, SearchHit
from pmpguard.serving.errors import busy

if TYPE_CHECKING:
    from PIL.Image import Image

    from pmpguard.models.explain import Explanation

P = ParamSpec("P")
Result = TypeVar("Result")


class SearchBackend(Protocol):
    """An index with its model, as `pmpguard.search.searcher.Searcher` is."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def version(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Of the version's content: an index may be built again under the same version."""

    @property
    def count(self) -> int: ...

    @property
    def caption_count(self) -> int: ...

    @property
    def model_name(self) -> str: ...

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]: ...

    @property
    def ranges(self) -> Mapping[str, ValueRange]: ...

    @property
    def has_places(self) -> bool: ...

    @property
    def has_times(self) -> bool: ...

    @property
    def reads_texts(self) -> bool: ...

    def search_many(
        self, queries: Sequence[Query], k: int = ..., shortlist: int = ..., filters: Filters = ...
    ) -> list[list[SearchHit]]: ...

    def explain(self, id: str, text: str) -> Explanation: ...

    def image(self, id: str) -> Image: ...

    def refresh(self) -> bool: ...

    def close(self) -> None: ...


class BoundedExecutor:
    """A few threads that work for requests; what would wait too long in line is refused at once.

    A call that runs past `seconds` fails as busy, yet keeps its place in the count until its thread is free
    again: whatever hangs can fill the executor, never the memory.
    """

    def __init__(self, name: str, *, threads: int, waiting: int, seconds: float) -> None:
        self.waiting = waiting
        self.seconds = seconds
        self.pending = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        with self._lock:
            if self.pending >= self.waiting:
                raise busy()
            self.pending += 1
        future = self._pool.submit(work, *args, **kwargs)
        future.add_done_callback(self._leave)
        try:
            async with asyncio.timeout(self.seconds):  # `wait_for` may swallow a cancellation
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise busy("the search took too long") from None

    def _leave(self, _: Future[Result]) -> None:
        with self._lock:
            self.pending -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
