"""What the server does, without any web framework: search, images, explanations, a fresh index."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from PIL.Image import Image

from pmpguard.data.images.decode import ImageError
from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.search.query import Query
from pmpguard.search.query_checks import UnknownIdError
from pmpguard.serving.batching import Ask, Batcher
from pmpguard.serving.errors import RequestError
from pmpguard.serving.metrics import Labels, Metrics
from pmpguard.serving.middleware import Limits
from pmpguard.serving.protocols import BoundedExecutor, Searchable
from pmpguard.serving.responses import explanation_answer, search_answer
from pmpguard.serving.search_request import SearchRequest
from pmpguard.serving.thumbnails import Jpeg, ThumbnailCache, encode_jpeg
from pmpguard.serving.uploads import UploadDecoder

logger = logging.getLogger(__name__)


class Service:
    """One index and all that is needed to answer for it.

    Everything that needs the model runs on one thread, for it uses all cores by itself. Images are read on
    two more, and a newer index is opened on another, so that nobody waits for it.
    """

    def __init__(self, searcher: Searchable, limits: Limits, refresh_seconds: float) -> None:
        self.searcher = searcher
        self.limits = limits
        self.metrics = Metrics()
        self.uploads = UploadDecoder(limits)
        self.thumbnails = ThumbnailCache(limits.thumbnail_bytes)
        self.problem: str | None = None  # why the index on disk cannot be followed at the moment
        self._refresh_seconds = refresh_seconds
        waiting, seconds = limits.waiting, limits.answer_seconds
        self._model = BoundedExecutor("model", threads=1, waiting=waiting, seconds=seconds)
        self._images = BoundedExecutor("images", threads=2, waiting=waiting, seconds=seconds)
        self._opening = BoundedExecutor("opening", threads=1, waiting=1, seconds=600.0)
        self._batcher = Batcher(
            searcher,
            self._model,
            waiting=limits.waiting,
            largest=limits.batch,
            gather_seconds=limits.gather_seconds,
            on_batch=self.metrics.batch,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Batching and refreshing for as long as the block lasts; then everything is closed."""
        tasks = [asyncio.create_task(self._batcher.run()), asyncio.create_task(self._keep_fresh())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.uploads.close()
            for lane in (self._model, self._images, self._opening):
                lane.close()
            self.searcher.close()

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            await self.refresh()

    async def refresh(self) -> None:
        """Switch to the newest version on disk, if there is one; on trouble the present one stays in use."""
        try:
            if await self._opening.run(self.searcher.refresh):
                self.metrics.refresh("swapped")
                logger.info("now serving index version %s", self.searcher.version)
            self.problem = None
        except Exception as error:  # whatever it is, the server goes on with what it has
            self.metrics.refresh("failed")
            problem = error.message if isinstance(error, PmpguardError) else str(error)
            if problem != self.problem:
                logger.warning("the index cannot be refreshed: %s", problem)
            self.problem = problem

    async def search(self, request: SearchRequest, image: Image | None = None) -> dict[str, Any]:
        started = time.perf_counter()
        if request.like is not None:
            image = await self._image(request.like)
        query = Query(request.text, image, request.text_weight, request.kind)
        ask = Ask(query, request.k, max(request.shortlist, request.k), request.filters)
        with _statuses((UnknownIdError, 404), (DataError, 422), (ConfigError, 422)):
            found = await self._batcher.find(ask)
        return search_answer(found, time.perf_counter() - started)

    async def explain(self, id: str, text: str) -> dict[str, Any]:
        with _statuses((UnknownIdError, 404), (DataError, 422)):
            return explanation_answer(id, text, await self._model.run(self.searcher.explain, id, text))

    async def jpeg(self, id: str, side: int) -> Jpeg:
        """A image of the index, at most `side` pixels long."""
        version = self.searcher.version
        kept = self.thumbnails.get(version, id, side)
        if kept is None:
            image = await self._image(id)
            kept = await self._images.run(encode_jpeg, image, side)
            self.thumbnails.put(version, id, side, kept)
        return kept

    async def _image(self, id: str) -> Image:
        with _statuses((UnknownIdError, 404)):
            try:
                return await self._images.run(self.searcher.image, id)
            except ImageError as error:  # its name is a path of this machine, which is nobody's business
                fix = "restore the image's file, or remove it from the index"
                raise RequestError(
                    503, f"the image of {id!a} cannot be read: {error.reason}", fix=fix
                ) from error

    def info(self) -> dict[str, Any]:
        searcher, limits = self.searcher, self.limits
        return {
            "version": searcher.version,
            "count": searcher.count,
            "captions": searcher.caption_count,
            "model": searcher.model_name,
            "columns": {name: list(values) for name, values in searcher.columns.items()},
            "numbers": list(searcher.number_columns),
            "has_places": searcher.has_places,
            "has_times": searcher.has_times,
            "limits": {
                "body_bytes": limits.body_bytes,
                "text_characters": limits.text_characters,
                "hits": limits.hits,
                "shortlist": limits.shortlist,
            },
        }

    def health(self) -> dict[str, Any]:
        """Whether the index on disk can be followed; why not is in the log, for it names paths."""
        problem = None if self.problem is None else "the index on disk cannot be read; see the server's log"
        status = "ok" if problem is None else "degraded"
        return {"status": status, "version": self.searcher.version, "problem": problem}

    def metrics_text(self) -> str:
        version: Labels = (("version", self.searcher.version), ("model", self.searcher.model_name))
        return self.metrics.text(
            {
                "pmpguard_index_info": ("The index version in use.", version, 1),
                "pmpguard_index_items": ("Items in the index.", (), self.searcher.count),
                "pmpguard_index_degraded": ("1 while it cannot be refreshed.", (), self.problem is not None),
                "pmpguard_waiting_queries": ("Queries waiting in line.", (), self._batcher.waiting),
                "pmpguard_thumbnail_bytes": ("Images kept in memory.", (), self.thumbnails.bytes),
            }
        )


@contextlib.contextmanager
def _statuses(*statuses: tuple[type[PmpguardError], int]) -> Iterator[None]:
    """Answer each kind of error with its status, the first that fits.

    Any other means that the index cannot be read now: the server stays up and may find it again.
    """
    try:
        yield
    except RequestError:
        raise
    except (PmpguardError, OSError) as error:
        for kind, status in statuses:
            if isinstance(error, kind):
                raise RequestError(status, error.message, fix=error.fix) from error
        logger.warning("the index could not answer: %s", error)
        fix = "check that the index and its images are where they were; see /healthz"
        raise RequestError(503, "the index cannot be read now", fix=fix, retry_after=5) from error
