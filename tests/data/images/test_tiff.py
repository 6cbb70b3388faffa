"""Deep and many-banded files, made with Pillow or byte by byte; expected values come from the same arrays."""

import importlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from pmpguard.data.images.decode import ImageError, load_image, stretch

RNG = np.random.default_rng(0)


def encoded(image, format, **options):
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def decoded(source, **options):
    image = load_image(source, **options)
    assert image.mode == "RGB"
    return np.asarray(image)


def by_sorting(band, share):
    """A percentile by linear interpolation between sorted values."""
    ordered = sorted(float(value) for value in band.ravel())
    place = share / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def stretched(band):
    """The 2..98 % stretch of one band, in float64."""
    low, high = by_sorting(band, 2), by_sorting(band, 98)
    return np.round(np.clip((band.astype(np.float64) - low) / (high - low), 0, 1) * 255)


def assert_stretched(result, bands):
    for index in range(3):
        # Values that lie half-way between two levels may round either way.
        assert np.abs(result[..., index].astype(float) - stretched(bands[..., index])).max() <= 1
        assert (result[..., index] == stretched(bands[..., index])).mean() > 0.99


def tiff(bands, *, compression=1, order="<", tile=None, planar=False, predictor=1, rows_per_strip=None):
    """A TIFF with any number of bands, written byte by byte."""
    height, width, count = bands.shape
    values = bands.astype(bands.dtype.newbyteorder(order))
    block_height, block_width = tile or (rows_per_strip or height, width)
    blocks = []
    for plane in [values[..., index : index + 1] for index in range(count)] if planar else [values]:
        for top in range(0, height, block_height):
            for left in range(0, width, block_width):
                block = plane[top : top + block_height, left : left + block_width]
                if tile:
                    padding = [(0, block_height - block.shape[0]), (0, block_width - block.shape[1]), (0, 0)]
                    block = np.pad(block, padding)
                if predictor == 2:
                    block = np.diff(block, axis=1, prepend=block[:, :1] * 0).astype(values.dtype)
                data = block.tobytes()
                blocks.append(zlib.compress(data) if compression == 8 else data)
    offsets, body = [], b""
    for block in blocks:
        offsets.append(8 + len(body))
        body += block + b"\0" * (len(block) % 2)
    kind = {"u": 1, "i": 2, "f": 3}[bands.dtype.kind]
    tags = {
        256: (4, [width]),
        257: (4, [height]),
        258: (3, [bands.dtype.itemsize * 8] * count),
        259: (3, [compression]),
        262: (3, [2 if count >= 3 else 1]),
        277: (3, [count]),
        284: (3, [2 if planar else 1]),
        317: (3, [predictor]),
        339: (3, [kind] * count),
    }
    if tile:
        tags |= {322: (4, [block_width]), 323: (4, [block_height])}
    else:
        tags |= {278: (4, [block_height])}
    tags[324 if tile else 273] = (4, offsets)
    tags[325 if tile else 279] = (4, [len(block) for block in blocks])
    if count > 3:
        tags[338] = (3, [0] * (count - 3))
    start = 8 + len(body)
    values_start = start + 2 + 12 * len(tags) + 4
    entries, more = b"", b""
    for tag, (size, numbers) in sorted(tags.items()):
        packed = struct.pack(order + ("H" if size == 3 else "I") * len(numbers), *numbers)
        if len(packed) <= 4:
            field = packed.ljust(4, b"\0")
        else:
            field = struct.pack(order + "I", values_start + len(more))
            more += packed
        entries += struct.pack(order + "HHI", tag, size, len(numbers)) + field
    header = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, start)
    return header + body + struct.pack(order + "H", len(tags)) + entries + b"\0" * 4 + more


def test_fourth_band_of_an_eight_bit_tiff_is_ignored():
    bands = RNG.integers(0, 256, (8, 9, 4), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(encoded(Image.fromarray(bands, "RGBA"), "TIFF")), bands[..., :3])
    np.testing.assert_array_equal(decoded(tiff(bands)), bands[..., :3])


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_stretched(format):
    values = RNG.integers(300, 4000, (30, 40), dtype=np.uint16)
    result = decoded(encoded(Image.fromarray(values), format))
    assert_stretched(result, np.stack([values] * 3, -1))


def test_float_grey_with_gaps():
    values = RNG.normal(0.2, 0.1, (30, 40)).astype(np.float32)
    gaps = values.copy()
    gaps[0, 0] = np.nan
    result = decoded(encoded(Image.fromarray(gaps), "TIFF"))[..., 0]
    assert result[0, 0] == 0
    low, high = np.percentile(values.ravel()[1:], (2, 98))
    assert abs(result[5, 5] - np.clip((values[5, 5] - low) / (high - low), 0, 1) * 255) <= 1


@pytest.mark.parametrize("bands", [3, 4, 5, 13])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": ">", "rows_per_strip": 7},
        {"compression": 8, "predictor": 2},
        {"compression": 8, "tile": (16, 16)},
        {"planar": True, "rows_per_strip": 11},
        {"planar": True, "tile": (16, 32), "order": ">", "predictor": 2},
    ],
)
def test_sixteen_bit_multi_band_tiff(bands, options):
    values = RNG.integers(0, 3000, (33, 41, bands), dtype=np.uint16)
    assert_stretched(decoded(tiff(values, **options)), values)


def test_eight_bit_five_bands_are_not_stretched_and_two_bands_are_grey():
    five = RNG.integers(0, 256, (8, 9, 5), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(tiff(five)), five[..., :3])
    two = RNG.integers(0, 2000, (8, 9, 2), dtype=np.uint16)
    assert_stretched(decoded(tiff(two)), two[..., [0, 0, 0]])


def test_other_compressions_name_the_extra(monkeypatch):
    real = importlib.import_module

    def without_rasterio(name, *rest):
        if name == "rasterio":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without_rasterio)
    data = tiff(RNG.integers(0, 3000, (8, 8, 6), dtype=np.uint16))
    data = data.replace(struct.pack("<HHIH", 259, 3, 1, 1), struct.pack("<HHIH", 259, 3, 1, 5))
    with pytest.raises(ImageError, match=r"pip install 'pmpguard\[geo\]'"):
        load_image(data)


def test_lzw_through_rasterio():
    rasterio = pytest.importorskip("rasterio")
    values = RNG.integers(0, 3000, (20, 30, 6), dtype=np.uint16)
    with rasterio.MemoryFile() as file:
        profile = {
            "driver": "GTiff",
            "width": 30,
            "height": 20,
            "count": 6,
            "dtype": "uint16",
            "compress": "lzw",
        }
        with file.open(**profile) as dataset:
            dataset.write(np.moveaxis(values, -1, 0))
        assert_stretched(decoded(file.read()), values)


def test_sixteen_bit_colour_png_is_stretched_from_its_high_bytes():
    values = RNG.integers(0, 65536, (10, 12, 3), dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 12, 10, 16, 2, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    assert_stretched(decoded(data), values >> 8)


def test_stretch_of_flat_and_almost_flat_bands():
    bands = np.full((10, 10, 3), 700, np.uint16)
    assert (stretch(bands) == 0).all()
    bands[0, 0] = 900  # one bright pixel: both percentiles are 700
    assert stretch(bands)[0, 0].tolist() == [255] * 3 and stretch(bands)[1, 1].tolist() == [0] * 3
    assert (stretch(np.full((2, 2, 1), np.nan)) == 0).all()


@pytest.mark.parametrize("cut", [4, 9, 60, 300, 1500])
def test_cut_multi_band_tiffs_are_refused(cut):
    data = tiff(RNG.integers(0, 3000, (33, 41, 5), dtype=np.uint16), compression=8)
    with pytest.raises(ImageError):
        load_image(data[:cut])


def test_bands_count_against_the_pixel_limit():
    thirteen = tiff(RNG.integers(0, 9, (20, 30, 13), dtype=np.uint16))
    with pytest.raises(ImageError, match="over the limit"):
        load_image(thirteen, max_pixels=600)
    assert load_image(thirteen, max_pixels=1950).size == (30, 20)


@pytest.mark.parametrize(("bands", "value", "compression"), [(5, np.uint16, 8), (3, np.uint8, 1)])
def test_damaged_bytes_anywhere_never_raise_anything_else(bands, value, compression):
    original = tiff(RNG.integers(0, 250, (9, 9, bands)).astype(value), compression=compression)
    rng = np.random.default_rng(1)
    for _ in range(100):
        damaged = bytearray(original)
        for place in rng.integers(0, len(damaged), 3):
            damaged[place] = rng.integers(0, 256)
        try:
            assert load_image(bytes(damaged), max_pixels=10_000).mode == "RGB"
        except ImageError as error:
            assert error.kind in ("unreadable", "oversized")
