"""Images of the index as JPEG, reduced, with the last ones shown kept in memory."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass

from PIL import Image

from pmpguard.serving.page_files import etag_of

SIDES = (96, 192, 320, 512, 800, 1200, 1600)  # few sizes, so that few variants are kept


@dataclass(frozen=True)
class Jpeg:
    """An encoded image and the tag by which a browser knows it again."""

    data: bytes
    etag: str


class ThumbnailCache:
    """The images last asked for, up to so many bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._jpegs: OrderedDict[tuple[str, str, int], Jpeg] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def get(self, fingerprint: str, id: str, side: int) -> Jpeg | None:
        with self._lock:
            key = (fingerprint, id, side)
            if key in self._jpegs:
                self._jpegs.move_to_end(key)
            return self._jpegs.get(key)

    def put(self, fingerprint: str, id: str, side: int, jpeg: Jpeg) -> None:
        with self._lock:
            replaced = self._jpegs.pop((fingerprint, id, side), None)
            self._jpegs[fingerprint, id, side] = jpeg
            self.bytes += len(jpeg.data) - (len(replaced.data) if replaced else 0)
            while self.bytes > self._max_bytes:
                _, dropped = self._jpegs.popitem(last=False)
                self.bytes -= len(dropped.data)


def rounded_side(asked: int) -> int:
    """The next of the sizes we make.

    >>> rounded_side(200), rounded_side(9000)
    (320, 1600)
    """
    return next((side for side in SIDES if side >= asked), SIDES[-1])


def encode_jpeg(image: Image.Image, side: int) -> Jpeg:
    """Reduce to at most `side` pixels; smaller images keep their size."""
    reduced = image.convert("RGB")
    reduced.thumbnail((side, side))
    encoded = io.BytesIO()
    reduced.save(encoded, "JPEG", quality=88)
    data = encoded.getvalue()
    return Jpeg(data, etag_of(data))
