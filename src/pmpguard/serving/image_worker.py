"""The process in which uploaded images are decoded: `python -m pmpguard.serving.image_worker`.

Whatever a foreign file does to a decoder happens here, with bounded memory and time, and the server can end
it. The exchange is bytes alone: `R` says that the worker is ready; then a length and the file come in, and
`P`, width, height and RGB values go out, or `E`, a length and the reason.
"""

from __future__ import annotations

import contextlib
import signal
import struct
import sys
import warnings
from typing import BinaryIO

from pmpguard.data.images.decode import ImageError, load_image

LENGTH = struct.Struct(">Q")
SIZE = struct.Struct(">II")
READY, IMAGE, ERROR = b"R", b"P", b"E"
LONGEST_SIDE = 2048  # larger images are reduced: no encoder looks at more
MEMORY_BYTES = 6 * 2**30  # of addresses, most of them libraries


def bound_memory(size: int) -> None:
    """As far as the system lets itself be told: macOS bounds no addresses."""
    import resource

    for kind, most in ((resource.RLIMIT_AS, size), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def reply(data: bytes, max_pixels: int) -> bytes:
    """The decoded image, or why there is none."""
    try:
        image = load_image(data, max_pixels=max_pixels)
    except ImageError as error:
        reason = f"{error.kind}:{error.reason}".encode("utf-8", "replace")[:500]
        return ERROR + LENGTH.pack(len(reason)) + reason
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return IMAGE + SIZE.pack(*image.size) + image.tobytes()


def work(incoming: BinaryIO, outgoing: BinaryIO, max_pixels: int, seconds: float) -> None:
    """Decode until the other side hangs up; an image that takes longer than `seconds` ends the process.

    Processor time counts, which a busy machine does not lengthen, and SIGPROF ends C code too.
    """
    outgoing.write(READY)
    outgoing.flush()
    while len(header := incoming.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(header)
        data = incoming.read(length)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        decoded = reply(data, max_pixels)
        signal.setitimer(signal.ITIMER_PROF, 0)
        outgoing.write(decoded)
        outgoing.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # strangers could fill the server's log with them
    bound_memory(MEMORY_BYTES)
    work(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]), float(sys.argv[2]))
