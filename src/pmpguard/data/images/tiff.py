"""TIFF files with more bands or deeper values than Pillow has image modes for.

Satellite images come as 4, 8 or 13 bands of 16 bits. Pillow keeps only the high byte of such colours or
refuses the file, so its tag reader finds the blocks and NumPy reads them here. Uncompressed and deflated
files, in strips or tiles, need nothing else; other compressions go through rasterio.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from pmpguard.errors import require

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_UNCOMPRESSED, _DEFLATE = 1, (8, 32946)
_NO_PREDICTOR, _DIFFERENCES = 1, 2
# The most bytes that one compressed byte can stand for: none, LZW, deflate, PackBits, deflate.
_EXPANSION = {1: 1, 5: 2600, 8: 1100, 32773: 64, 32946: 1100}
_KINDS = {1: "u", 2: "i", 3: "f"}


@dataclass(frozen=True)
class TiffLayout:
    """What the header of a TIFF says about its first image.

    A strip is a block as wide as the image. `planar` means each block holds one band, band after band.
    """

    width: int
    height: int
    bands: int
    depth: int
    value: np.dtype[np.generic]
    compression: int
    predictor: int
    planar: bool
    tiled: bool
    block_width: int
    block_height: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def needs_band_reader(self) -> bool:
        """Whether Pillow would refuse the file or lose bits."""
        return self.bands > 4 or (self.bands > 1 and self.depth > 8)

    @property
    def is_plain(self) -> bool:
        """Whether NumPy can read the blocks: whole bytes, no compression or deflate, at most differences."""
        return (
            self.depth == 8 * self.value.itemsize
            and self.compression in (_UNCOMPRESSED, *_DEFLATE)
            and (
                self.predictor == _NO_PREDICTOR
                or (self.predictor == _DIFFERENCES and self.value.kind in "ui")
            )
        )


def read_layout(stream: BinaryIO) -> TiffLayout:
    """Read the header only; ValueError, with the reason, where it makes no sense."""
    stream.seek(0)
    start = stream.read(8)
    tags = ImageFileDirectory_v2(start + stream.read(8) if start[2:4] in (b"+\0", b"\0+") else start)
    stream.seek(tags.next)
    tags.load(stream)

    def number(tag: int, default: int) -> int:
        value = tags.get(tag, default)
        return int(value[0] if isinstance(value, tuple) else value)

    def numbers(tag: int) -> tuple[int, ...]:
        value = tags.get(tag, ())
        return value if isinstance(value, tuple) else (int(value),)

    depths = set(numbers(258) or (1,))
    kind = _KINDS.get(number(339, 1), "u")
    byte_order = "<" if start[:2] == b"II" else ">"
    if len(depths) > 1:
        raise ValueError(f"bands of different depths {sorted(depths)}")
    depth, tiled = depths.pop(), 322 in tags
    width, height = number(256, 0), number(257, 0)
    return TiffLayout(
        width=width,
        height=height,
        bands=number(277, 1),
        depth=depth,
        value=np.dtype(f"{byte_order}{kind}{max(1, depth // 8)}"),
        compression=number(259, _UNCOMPRESSED),
        predictor=number(317, _NO_PREDICTOR),
        planar=number(284, 1) == 2,
        tiled=tiled,
        block_width=number(322, width) if tiled else width,
        block_height=number(323, height) if tiled else min(number(278, height), height),
        offsets=numbers(324 if tiled else 273),
        sizes=numbers(325 if tiled else 279),
    )


def check_blocks(layout: TiffLayout, file_size: int) -> None:
    """ValueError where the header points outside the file or promises more than the data can hold."""
    if layout.width < 1 or layout.height < 1 or layout.block_width < 1 or layout.block_height < 1:
        raise ValueError(f"a header that says {layout.width}x{layout.height} pixels")
    across, down = _block_counts(layout)
    expected = across * down * (layout.bands if layout.planar else 1)
    if len(layout.offsets) < expected or len(layout.sizes) < expected:
        raise ValueError(f"a header that lists {len(layout.offsets)} of {expected} blocks")
    furthest = max(offset + size for offset, size in zip(layout.offsets, layout.sizes, strict=False))
    if furthest > file_size:
        raise ValueError(f"a header that points to byte {furthest} of a file of {file_size} bytes")
    promised = layout.width * layout.height * layout.bands * layout.depth // 8
    if promised > sum(layout.sizes) * _EXPANSION.get(layout.compression, promised):
        raise ValueError(f"a header that promises {promised} bytes from {sum(layout.sizes)}")


def read_bands(stream: BinaryIO, layout: TiffLayout, count: int = 3) -> np.ndarray:
    """(H,W,count) the first bands, fewer where the file has fewer; ValueError when data is missing.

    Rows and columns come as stored: an orientation tag, which geographic files do not use, is not applied.
    """
    if not layout.is_plain:
        return _read_with_rasterio(stream, count)
    bands = np.zeros((layout.height, layout.width, min(count, layout.bands)), layout.value)
    for index, band, top, left in _blocks(layout, bands.shape[2]):
        block = _read_block(stream, layout, index, top)  # (rows, block_width, values per pixel)
        rows, columns = bands[top : top + len(block), left : left + layout.block_width].shape[:2]
        if layout.planar:
            bands[top : top + rows, left : left + columns, band] = block[:rows, :columns, 0]
        else:
            bands[top : top + rows, left : left + columns] = block[:rows, :columns, : bands.shape[2]]
    return bands


def _block_counts(layout: TiffLayout) -> tuple[int, int]:
    return -(-layout.width // layout.block_width), -(-layout.height // layout.block_height)


def _blocks(layout: TiffLayout, wanted: int) -> Iterator[tuple[int, int, int, int]]:
    """Index, band, top and left of every block that holds a wanted band."""
    across, down = _block_counts(layout)
    for plane in range(wanted if layout.planar else 1):
        for place in range(across * down):
            row, column = divmod(place, across)
            yield plane * across * down + place, plane, row * layout.block_height, column * layout.block_width


def _read_block(stream: BinaryIO, layout: TiffLayout, index: int, top: int) -> np.ndarray:
    """(rows, block_width, values per pixel); the last strip is cut at the image's end, tiles never are."""
    rows = layout.block_height if layout.tiled else min(layout.block_height, layout.height - top)
    shape = (rows, layout.block_width, 1 if layout.planar else layout.bands)
    length = int(np.prod(shape)) * layout.value.itemsize
    stream.seek(layout.offsets[index])
    data = stream.read(layout.sizes[index])
    if layout.compression != _UNCOMPRESSED:
        data = zlib.decompressobj().decompress(data, length)  # never more than the header promised
    if len(data) < length:
        raise ValueError(f"truncated data: block {index} holds {len(data)} of {length} bytes")
    block = np.frombuffer(data, layout.value, count=length // layout.value.itemsize).reshape(shape)
    if layout.predictor == _DIFFERENCES:
        block = np.cumsum(block, axis=1, dtype=layout.value)
    return block


def _read_with_rasterio(stream: BinaryIO, count: int) -> np.ndarray:
    rasterio = require("rasterio", "geo")
    stream.seek(0)
    with rasterio.MemoryFile(stream.read()) as file, file.open(driver="GTiff") as dataset:
        bands: np.ndarray = dataset.read(list(range(1, min(count, dataset.count) + 1)))  # (bands,H,W)
    return np.moveaxis(bands, 0, -1)
