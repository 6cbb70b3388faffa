"""Files built to exhaust whoever opens them: each is refused in under a second and 200 MB."""

import io
import json
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

# Run in a process of its own, so that nothing else adds to the memory in use. It also opens a sound image
# of 49 megapixels, whose memory must show: otherwise the measurement is blind.
PROBE = """
import json, sys, time
from pathlib import Path
from pmpguard.data.images.decode import ImageError, load_image

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

rows = []
for name in sys.argv[1:]:
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest memory use so far
    before, start = peak(), time.process_time()
    try:
        load_image(Path(name))
        kind, text = "loaded", ""
    except ImageError as error:
        kind, text = error.kind, str(error)
    rows.append((Path(name).name, kind, text, time.process_time() - start, peak() - before))
print(json.dumps(rows))
"""


def png(width, height, rows):
    """A one-bit PNG that declares width x height and holds that many rows of zeros."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = b"\0" * (1 + (width + 7) // 8)
    body = b"".join(packer.compress(row * 100) for _ in range(rows // 100)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def gif(frames):
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return screen + frame * frames + b";"


def jpeg(width=400, height=300):
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "JPEG")
    return stream.getvalue()


def lying_tiff(width, height, bands, depth, compression, data, size=None, offset=8):
    """One strip that the header says holds the whole image."""
    depths_at = 8 + len(data)
    start = depths_at + 2 * bands
    tags = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, bands, depths_at if bands > 2 else depth),
        (259, 3, 1, compression),
        (262, 3, 1, 2 if bands >= 3 else 1),
        (273, 4, 1, offset),
        (277, 3, 1, bands),
        (278, 4, 1, height),
        (279, 4, 1, len(data) if size is None else size),
    ]
    if bands > 3:
        tags.append((338, 3, 1, 0))
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    header = b"II" + struct.pack("<HI", 42, start)
    return (
        header
        + data
        + struct.pack(f"<{bands}H", *[depth] * bands)
        + struct.pack("<H", len(tags))
        + entries
        + b"\0" * 4
    )


def big_webp():
    stream = io.BytesIO()
    Image.new("RGB", (9000, 9000)).save(stream, "WEBP", lossless=True, method=0)
    return stream.getvalue()


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads memory use from /proc")


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    packed = zlib.compress(b"\0" * 1000)
    files = {
        "400-megapixels.png": png(20_000, 20_000, 20_000),
        "144-megapixels.png": png(12_000, 12_000, 12_000),
        "81-megapixels.webp": big_webp(),
        "cut.jpg": jpeg()[:5000],
        "cut.png": png(7000, 7000, 7000)[:3000],
        "empty.png": b"",
        "10000-frames.gif": gif(10_000),
        "giant.tif": lying_tiff(100_000, 100_000, 3, 8, 1, b"\0" * 100),
        "outside-the-file.tif": lying_tiff(7000, 7000, 3, 8, 1, b"\0" * 100, size=147_000_000),
        "short-strip.tif": lying_tiff(7000, 7000, 3, 8, 1, b"\0" * 100),
        "short-deflate.tif": lying_tiff(7000, 7000, 3, 8, 8, packed),
        "short-sixteen-bit.tif": lying_tiff(7000, 7000, 3, 16, 1, b"\0" * 100),
        "short-bands.tif": lying_tiff(3500, 3500, 13, 16, 8, packed),
        "many-bands.tif": lying_tiff(7000, 7000, 60_000, 16, 8, packed),
        "no-pixels.tif": lying_tiff(0, 0, 3, 8, 1, b"\0" * 100),
        "sound.png": png(7000, 7000, 7000),
    }
    assert len(files["400-megapixels.png"]) < 60_000
    paths = []
    for name, data in files.items():
        paths.append(folder / name)
        paths[-1].write_bytes(data)
    command = [sys.executable, "-c", PROBE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    *rows, sound = json.loads(done.stdout)
    assert [row[0] for row in rows] == list(files)[:-1]
    assert sound[1] == "loaded" and sound[4] > 49, sound
    return rows


def test_each_is_refused_and_named(verdicts):
    for name, kind, text, _, _ in verdicts:
        assert kind in ("oversized", "unreadable"), (name, kind)
        assert name in text


def test_the_large_ones_are_refused_for_their_size(verdicts):
    kinds = {name: kind for name, kind, *_ in verdicts}
    large = [
        "400-megapixels.png",
        "144-megapixels.png",
        "81-megapixels.webp",
        "10000-frames.gif",
        "giant.tif",
    ]
    assert {kinds[name] for name in [*large, "many-bands.tif"]} == {"oversized"}


def test_each_takes_under_a_second_of_processor_time_and_200_megabytes(verdicts):
    for name, _, _, seconds, megabytes in verdicts:
        assert seconds < 1, (name, seconds)
        assert megabytes < 200, (name, megabytes)


def test_a_frame_limit_not_an_animation_ban(tmp_path):
    from pmpguard.data.images.decode import load_image

    assert load_image(gif(200)).size == (1, 1)
