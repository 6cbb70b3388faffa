"""Uploaded images, decoded in processes of their own that are ended when they take too long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator

from PIL import Image

from pmpguard.serving.config import ServerConfig
from pmpguard.serving.errors import RequestError, busy
from pmpguard.serving.image_worker import IMAGE, LENGTH, SIZE


class UploadDecoder:
    """Decodes one image per worker at a time; workers start when needed and are replaced when they die."""

    def __init__(self, config: ServerConfig, workers: int = 2) -> None:
        self._config = config
        self._turns = asyncio.Semaphore(workers)
        self._idle: list[Process] = []
        self._places = config.uploads

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place for an upload that has arrived, until it is decoded; when all are taken, refuse."""
        if not self._places:
            raise busy("too many images are being decoded")
        self._places -= 1
        try:
            yield
        finally:
            self._places += 1

    async def decode(self, data: bytes) -> Image.Image:
        async with self._turns:
            return await self._decode(data)

    async def _decode(self, data: bytes) -> Image.Image:
        worker = self._idle.pop() if self._idle else await self._start()
        too_slow = RequestError(
            422, "image: took too long to decode", fix="send it smaller, or as JPEG or PNG"
        )
        try:
            async with asyncio.timeout(self._config.wall_factor * self._config.decode_seconds):
                image = await exchange(worker, data)
        except RequestError:
            self._idle.append(worker)
            raise
        except TimeoutError:
            await end(worker)
            raise too_slow from None
        except (asyncio.IncompleteReadError, ConnectionError):
            # It has died. Killed before it is waited for, it could not say of what.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.wait(), 1.0)
            await end(worker)
            if worker.returncode == -signal.SIGPROF:
                raise too_slow from None
            raise RequestError(422, "image: cannot be decoded", fix="send it as JPEG or PNG") from None
        except BaseException:  # cancelled half-way: the worker's next reply would be this one
            await end(worker)
            raise
        self._idle.append(worker)
        return image

    async def _start(self) -> Process:
        command = [sys.executable, "-P", "-m", "pmpguard.serving.image_worker"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        bounds = (str(self._config.upload_pixels), str(self._config.decode_seconds))
        worker = await asyncio.create_subprocess_exec(
            *command, *bounds, stdin=PIPE, stdout=PIPE, env=environment
        )
        assert worker.stdout is not None
        await worker.stdout.read(1)  # it has started: only then an image's time begins
        return worker

    async def close(self) -> None:
        for worker in self._idle:
            await end(worker)
        self._idle.clear()


async def exchange(worker: Process, data: bytes) -> Image.Image:
    """Send a file, read the image."""
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(LENGTH.pack(len(data)))
    worker.stdin.write(data)
    await worker.stdin.drain()
    if await worker.stdout.readexactly(1) == IMAGE:
        width, height = SIZE.unpack(await worker.stdout.readexactly(SIZE.size))
        return Image.frombytes("RGB", (width, height), await worker.stdout.readexactly(3 * width * height))
    (length,) = LENGTH.unpack(await worker.stdout.readexactly(LENGTH.size))
    kind, _, reason = (await worker.stdout.readexactly(length)).decode("utf-8", "replace").partition(":")
    raise RequestError(413 if kind == "oversized" else 422, f"image: {reason}", fix="send another image")


async def end(worker: Process) -> None:
    if worker.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            worker.kill()
    await worker.wait()
