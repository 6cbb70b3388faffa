"""Images in memory never exceed their bound; those last shown stay."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pmpguard.serving.thumbnails import SIDES, Jpeg, ThumbnailCache, encode_jpeg, rounded_side


def test_the_least_recently_shown_is_dropped_first():
    cache = ThumbnailCache(30)
    for id in "abc":
        cache.put("1", id, 96, Jpeg(bytes(10), id))
    assert cache.get("1", "a", 96) == Jpeg(bytes(10), "a")
    cache.put("1", "d", 96, Jpeg(bytes(10), "d"))
    assert [id for id in "abcd" if cache.get("1", id, 96)] == ["a", "c", "d"]
    assert cache.get("2", "a", 96) is None and cache.get("1", "a", 192) is None


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 60)), max_size=40))
def test_the_bytes_are_counted_and_bounded(puts):
    cache = ThumbnailCache(100)
    for id, size in puts:
        cache.put("1", id, 96, Jpeg(bytes(size), ""))
        assert cache.bytes == sum(len(jpeg.data) for jpeg in cache._jpegs.values()) <= 100


@pytest.mark.parametrize(
    ("mode", "size", "side", "expected"),
    [("RGB", (400, 200), 96, (96, 48)), ("L", (50, 40), 96, (50, 40)), ("RGBA", (96, 300), 96, (31, 96))],
)
def test_images_are_reduced_and_never_enlarged(mode, size, side, expected):
    jpeg = encode_jpeg(Image.new(mode, size), side)
    decoded = Image.open(io.BytesIO(jpeg.data))
    assert decoded.size == expected and decoded.mode == "RGB"
    assert jpeg == encode_jpeg(Image.new(mode, size), side) and jpeg.etag.startswith('"')


def test_the_next_larger_side_is_made():
    assert [rounded_side(side) for side in (1, 96, 97, 5000)] == [SIDES[0], SIDES[0], SIDES[1], SIDES[-1]]
