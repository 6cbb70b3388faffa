"""Foreign images are decoded in processes that may die, hang or swell without harm to the server."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import struct
import subprocess
import sys

import pytest
from helpers.running_apart import run_apart
from PIL import Image

from pmpguard.serving.config import ServerConfig
from pmpguard.serving.errors import RequestError
from pmpguard.serving.image_worker import LENGTH, LONGEST_SIDE, SIZE, reply, work
from pmpguard.serving.uploads import UploadDecoder


def png(size: tuple[int, int], colour: str = "red") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


async def decoding(work, config: ServerConfig | None = None):
    decoder = UploadDecoder(config or ServerConfig(), workers=2)
    try:
        return await work(decoder)
    finally:
        await decoder.close()


def test_images_come_back_as_they_are_and_workers_are_used_again():
    async def decode(decoder):
        images = [await decoder.decode(png((30 + place, 20), "blue")) for place in range(3)]
        together = await asyncio.gather(*(decoder.decode(png((5, 5 + place))) for place in range(6)))
        return images, together, len(decoder._idle)

    images, together, workers = run_apart(decoding(decode))
    assert [image.size for image in images] == [(30, 20), (31, 20), (32, 20)]
    assert images[0].getpixel((3, 3)) == (0, 0, 255) and images[0].mode == "RGB"
    assert [image.size for image in together] == [(5, 5 + place) for place in range(6)]
    assert workers == 2


def test_a_bad_image_is_refused_and_the_worker_stays():
    async def decode(decoder):
        await decoder.decode(png((2, 2)))
        before = decoder._idle[0].pid
        with pytest.raises(RequestError) as flagged:
            await decoder.decode(b"no image")
        await decoder.decode(png((2, 2)))
        return flagged.value, before == decoder._idle[0].pid

    refusal, same = run_apart(decoding(decode))
    assert refusal.status == 422 and "not a JPEG" in refusal.message and same


def test_the_limit_of_pixels_reaches_the_worker():
    async def decode(decoder):
        with pytest.raises(RequestError) as flagged:
            await decoder.decode(png((101, 100)))
        return flagged.value

    assert run_apart(decoding(decode, ServerConfig(upload_pixels=10_000))).status == 413


def test_a_worker_that_dies_is_replaced():
    async def decode(decoder):
        await decoder.decode(png((2, 2)))
        os.kill(decoder._idle[0].pid, 9)
        with pytest.raises(RequestError, match="cannot be decoded"):
            await decoder.decode(png((2, 2)))
        return await decoder.decode(png((7, 3)))

    assert run_apart(decoding(decode)).size == (7, 3)


def test_a_worker_that_hangs_is_ended(monkeypatch):
    async def decode(decoder):
        worker = await asyncio.create_subprocess_exec("sleep", "60", stdin=-1, stdout=-1)
        decoder._idle.append(worker)
        with pytest.raises(RequestError, match="too long"):
            await decoder.decode(png((2, 2)))
        assert worker.returncode == -9 and decoder._idle == []

    run_apart(decoding(decode, ServerConfig(decode_seconds=0.2)))


def slow_webp() -> bytes:
    """A file of a few bytes that holds more pixels than can be decoded in a moment."""
    stream = io.BytesIO()
    Image.new("RGB", (4000, 4000), "red").save(stream, "WEBP", lossless=True, method=0)
    assert stream.tell() < 2000
    return stream.getvalue()


def test_a_small_file_that_takes_long_ends_the_worker_and_not_the_next_image():
    async def decode(decoder):
        await decoder.decode(png((2, 2)))
        worker = decoder._idle[0]
        with pytest.raises(RequestError, match="too long"):
            await decoder.decode(slow_webp())
        image = await decoder.decode(png((7, 3)))
        return worker.returncode, image.size

    # By the clock there would be twenty seconds: it is the worker that counts processor time and ends.
    config = ServerConfig(decode_seconds=0.05, wall_factor=400)
    assert run_apart(decoding(decode, config)) == (-signal.SIGPROF, (7, 3))
    assert ServerConfig().decode_seconds * ServerConfig().wall_factor < 10


def test_a_client_that_leaves_does_not_leave_its_image_to_the_next():
    async def decode(decoder):
        await decoder.decode(png((2, 2)))
        leaving = asyncio.create_task(decoder.decode(png((1500, 1500))))
        await asyncio.sleep(0.001)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        return await decoder.decode(png((7, 3)))

    assert run_apart(decoding(decode)).size == (7, 3)


def test_places_are_bounded_and_given_back():
    decoder = UploadDecoder(ServerConfig(uploads=1))
    with decoder.place():
        with pytest.raises(RequestError) as flagged, decoder.place():
            pass
        assert flagged.value.status == 503
    with pytest.raises(ValueError), decoder.place():
        raise ValueError
    with decoder.place():
        pass


def test_the_worker_reduces_what_no_encoder_looks_at():
    decoded = reply(png((3000, 1500)), 10_000_000)
    assert decoded[:1] == b"P" and SIZE.unpack(decoded[1:9]) == (LONGEST_SIDE, LONGEST_SIDE // 2)
    assert len(decoded) == 9 + 3 * LONGEST_SIDE * LONGEST_SIDE // 2


def test_the_worker_answers_one_after_another_until_the_end():
    files = [png((2, 1)), b"bad", png((1, 1))]
    incoming = io.BytesIO(b"".join(LENGTH.pack(len(data)) + data for data in files) + b"\0\0")
    outgoing = io.BytesIO()
    work(incoming, outgoing, 1000, 60.0)
    written = outgoing.getvalue()
    assert written.startswith(b"RP" + struct.pack(">II", 2, 1) + b"\xff\0\0\xff\0\0" + b"E")
    assert written.endswith(b"P" + struct.pack(">II", 1, 1) + b"\xff\0\0")


@pytest.mark.skipif(sys.platform != "linux", reason="memory of a process is bounded on Linux")
def test_the_memory_of_a_worker_is_bounded():
    code = (
        "from pmpguard.serving.image_worker import bound_memory\n"
        "bound_memory(2 * 2**30)\n"
        "try:\n    bytearray(3 * 2**30)\nexcept MemoryError:\n    print('refused')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.stdout == "refused\n", result.stderr
