"""What the server does, apart from any web framework: search, images, explanations, a fresh index."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from pmpguard.data.images.decode import ImageError
from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.search.query import Query
from pmpguard.search.query_checks import UnknownIdError
from pmpguard.serving import config as bounds
from pmpguard.serving.batching import BackendQuery, Batcher
from pmpguard.serving.config import ServerConfig
from pmpguard.serving.downloads import write_download
from pmpguard.serving.errors import RequestError
from pmpguard.serving.metrics import Metrics
from pmpguard.serving.protocols import BoundedExecutor, SearchBackend
from pmpguard.serving.responses import explain_response, search_response
from pmpguard.serving.thumbnails import Jpeg, ThumbnailCache, encode_jpeg
from pmpguard.serving.uploads import UploadDecoder

if TYPE_CHECKING:
    from pmpguard.serving.models import SearchBody, SearchQuery

logger = logging.getLogger(__name__)


class Service:
    """One index and all that is needed to serve it.

    Everything that needs the model runs on one thread, for it uses all cores by itself. Images are read on
    two more, and a newer index is opened on another, so that nobody waits for it.
    """

    def __init__(self, backend: SearchBackend, config: ServerConfig, refresh_seconds: float) -> None:
        self.backend = backend
        self.config = config
        self.uploads = UploadDecoder(config)
        self.thumbnails = ThumbnailCache(config.thumbnail_bytes)
        self.problem: str | None = None  # why the index on disk cannot be followed at the moment
        self._refresh_seconds = refresh_seconds
        waiting, seconds = config.waiting, config.response_seconds
        self._model = BoundedExecutor("model", threads=1, waiting=waiting, seconds=seconds)
        self._images = BoundedExecutor("images", threads=2, waiting=waiting, seconds=seconds)
        self._opening = BoundedExecutor("opening", threads=1, waiting=1, seconds=600.0)
        self.metrics = metrics = Metrics()
        self._batcher = Batcher(
            backend,
            self._model,
            waiting=waiting,
            largest=config.batch,
            gather_seconds=config.gather_seconds,
            on_batch=metrics.batch,
        )
        metrics.gauge("index_items", "Items in the index.", lambda: backend.count)
        metrics.gauge("index_degraded", "1 while it cannot be refreshed.", lambda: self.problem is not None)
        metrics.gauge("waiting_queries", "Queries waiting in line.", lambda: self._batcher.waiting)
        metrics.gauge("thumbnail_bytes", "Images kept in memory.", lambda: self.thumbnails.bytes)

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
            for executor in (self._model, self._images, self._opening):
                executor.close()
            self.backend.close()

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            await self.refresh()

    async def refresh(self) -> None:
        """Switch to the newest version on disk, if there is one; on trouble the present one stays in use."""
        try:
            if await self._opening.run(self.backend.refresh):
                self.metrics.refresh("swapped")
                logger.info("now serving index version %s", self.backend.version)
            self.problem = None
        except Exception as error:  # whatever it is, the server goes on with what it has
            self.metrics.refresh("failed")
            problem = error.message if isinstance(error, PmpguardError) else str(error)
            if problem != self.problem:
                logger.warning("the index cannot be refreshed: %s", problem)
            self.problem = problem

    async def search(
        self, request: SearchBody | SearchQuery, image: Image | None = None
    ) -> dict[str, Any] | bytes:
        """Search by the request's text, by an image sent with it or by one of the index.

        The result is a file where the request asks for one.
        """
        started = time.perf_counter()
        if request.like is not None:
            image = await self._image(request.like)
        query = BackendQuery(
            Query(request.text, image, request.text_weight, request.kind),
            request.k,
            max(request.shortlist, request.k),
            request.to_filters(),
        )
        with _statuses((UnknownIdError, 404), (DataError, 422), (ConfigError, 422)):
            result = await self._batcher.search(query)
        if request.format != "json":
            return await self._images.run(write_download, result.hits, request.format)
        return search_response(result, time.perf_counter() - started)

    async def explain(self, id: str, text: str) -> dict[str, Any]:
        with _statuses((UnknownIdError, 404), (DataError, 422)):
            return explain_response(id, text, await self._model.run(self.backend.explain, id, text))

    async def jpeg(self, id: str, side: int) -> Jpeg:
        """An image of the index, at most `side` pixels long."""
        fingerprint = self.backend.fingerprint
        jpeg = self.thumbnails.get(fingerprint, id, side)
        if jpeg is None:
            image = await self._image(id)
            jpeg = await self._images.run(encode_jpeg, image, side)
            if self.backend.fingerprint == fingerprint:
                self.thumbnails.put(fingerprint, id, side, jpeg)
        return jpeg

    async def _image(self, id: str) -> Image:
        with _statuses((UnknownIdError, 404)):
            try:
                return await self._images.run(self.backend.image, id)
            except ImageError as error:  # its name is a path of this machine, which is nobody's business
                fix = "restore the image's file, or remove it from the index"
                raise RequestError(
                    503, f"the image of {id!a} cannot be read: {error.reason}", fix=fix
                ) from error

    def info(self, beside: str | None = None) -> dict[str, Any]:
        """The index and what it can be filtered by; `beside` names another one that is served with it."""
        backend = self.backend
        return {
            "name": backend.name,
            "version": backend.version,
            "fingerprint": backend.fingerprint,
            "beside": beside,
            "count": backend.count,
            "captions": backend.caption_count,
            "model": backend.model_name,
            "columns": {name: list(values) for name, values in backend.columns.items()},
            "ranges": {name: asdict(values) for name, values in backend.ranges.items()},
            "has_places": backend.has_places,
            "has_times": backend.has_times,
            "reads_texts": backend.reads_texts,
            "limits": {
                "body_bytes": self.config.body_bytes,
                "text_characters": bounds.MAX_TEXT_CHARACTERS,
                "hits": bounds.MAX_HITS,
                "shortlist": bounds.MAX_SHORTLIST,
            },
        }

    def health(self) -> dict[str, Any]:
        """Whether the index on disk can be followed; why not is in the log, for it names paths."""
        problem = None if self.problem is None else "the index on disk cannot be read; see the server's log"
        status = "ok" if problem is None else "degraded"
        return {"status": status, "version": self.backend.version, "problem": problem}

    def metrics_text(self) -> bytes:
        return self.metrics.text(version=self.backend.version, model=self.backend.model_name)


@contextlib.contextmanager
def _statuses(*statuses: tuple[type[PmpguardError], int]) -> Iterator[None]:
    """Give each kind of error its status, the first that fits.

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
        logger.warning("the index could not be read: %s", error)
        fix = "check that the index and its images are where they were; see /healthz"
        raise RequestError(503, "the index cannot be read now", fix=fix, retry_after=5) from error
