"""Files are made with Pillow or byte by byte; what they must decode to is computed from the same arrays."""

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from pmpguard.data.images.decode import (
    ImageError,
    gif_frames,
    image_tensor,
    load_image,
    load_images,
    load_pair_image,
)
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError

RNG = np.random.default_rng(0)


def encoded(image, format, **options):
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def colours(height=20, width=30):
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def decoded(source, **options):
    image = load_image(source, **options)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP"])
def test_eight_bit_pixels_arrive_unchanged(format):
    pixels = colours()
    np.testing.assert_array_equal(decoded(encoded(Image.fromarray(pixels), format)), pixels)


def test_lossless_webp_and_gif():
    pixels = colours(4, 4)
    np.testing.assert_array_equal(
        decoded(encoded(Image.fromarray(pixels), "WEBP", lossless=True, exact=True)), pixels
    )
    greys = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(encoded(Image.fromarray(greys), "GIF")), np.stack([greys] * 3, -1))


def test_jpeg_is_close_to_what_was_saved():
    pixels = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    assert (
        np.abs(decoded(encoded(Image.fromarray(pixels), "JPEG", quality=95)).astype(int) - pixels).max() <= 3
    )


def test_palette_is_looked_up():
    table = RNG.integers(0, 256, (256, 3), dtype=np.uint8)
    places = RNG.integers(0, 256, (9, 11), dtype=np.uint8)
    image = Image.fromarray(places, "L")
    image.putpalette(table.tobytes())
    np.testing.assert_array_equal(decoded(encoded(image, "PNG")), table[places])


def test_cmyk_by_the_formula():
    inks = RNG.integers(0, 256, (12, 12, 4), dtype=np.uint8)
    result = decoded(encoded(Image.fromarray(inks, "CMYK"), "TIFF")).astype(float)
    expected = (255 - inks[..., :3].astype(float)) * (255 - inks[..., 3:].astype(float)) / 255
    assert np.abs(result - expected).max() <= 1


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda pixels: pixels),
        (2, lambda pixels: pixels[:, ::-1]),
        (3, lambda pixels: pixels[::-1, ::-1]),
        (4, lambda pixels: pixels[::-1]),
        (5, lambda pixels: pixels.transpose(1, 0, 2)),
        (6, lambda pixels: np.rot90(pixels, -1)),
        (7, lambda pixels: np.rot90(pixels, 2).transpose(1, 0, 2)),
        (8, lambda pixels: np.rot90(pixels, 1)),
    ],
)
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_exif_orientation_is_applied_once(orientation, upright, format):
    pixels = colours(6, 9)
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(
        decoded(encoded(Image.fromarray(pixels), format, exif=exif)), upright(pixels)
    )


def test_transparent_pixels_turn_black_outside_tiff():
    pixels = np.dstack([np.full((2, 2, 3), 200, np.uint8), np.array([[0, 255], [128, 255]], np.uint8)])
    result = decoded(encoded(Image.fromarray(pixels), "PNG"))[..., 0]
    assert result[0, 0] == 0 and result[0, 1] == 200 and abs(int(result[1, 0]) - 100) <= 1


def test_a_stream_and_a_path_and_bytes_are_the_same(tmp_path):
    data = encoded(Image.fromarray(colours()), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data)
    for source in (path, io.BytesIO(data)):
        np.testing.assert_array_equal(decoded(source), decoded(data))


def test_image_tensor_squashes_to_a_square():
    image = Image.fromarray(colours(20, 60))
    tensor = image_tensor(image, 16)
    assert tensor.shape == (3, 16, 16) and tensor.dtype == torch.uint8 and tensor.is_contiguous()
    expected = np.asarray(image.resize((16, 16), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(tensor.permute(1, 2, 0).numpy(), expected)


def test_errors_name_the_file_and_the_trouble(tmp_path):
    data = encoded(Image.fromarray(colours(200, 200)), "JPEG")
    cases = {
        "cut.jpg": (data[: len(data) // 2], "unreadable", "truncated"),
        "empty.jpg": (b"", "unreadable", "empty"),
        "text.png": (b"hello there", "unreadable", "not a JPEG, PNG"),
        "vector.pdf": (b"%PDF-1.4 something", "unreadable", "not a JPEG"),
        "pickle.png": (b"\x80\x04\x95\x10", "unreadable", "not a JPEG"),
    }
    for name, (content, kind, reason) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ImageError, match=reason) as flagged:
            load_image(path)
        assert name in str(flagged.value) and flagged.value.kind == kind and flagged.value.fix
    with pytest.raises(ImageError, match=r"gone\.jpg: no such file") as flagged:
        load_image(tmp_path / "gone.jpg")
    assert flagged.value.kind == "missing"
    with pytest.raises(ImageError, match="no such file"):
        load_image(tmp_path)


def test_limits_on_pixels_and_bytes():
    data = encoded(Image.fromarray(colours(20, 30)), "PNG")
    assert load_image(data, max_pixels=600).size == (30, 20)
    with pytest.raises(ImageError, match="30x20 pixels, over the limit of 599"):
        load_image(data, max_pixels=599)
    with pytest.raises(ImageError, match="bytes, over the limit of 10"):
        load_image(data, max_bytes=10)


def test_damaged_bytes_anywhere_never_raise_anything_else():
    originals = [
        encoded(Image.fromarray(colours(12, 12)), "PNG"),
        encoded(Image.fromarray(colours(12, 12)), "JPEG"),
        encoded(Image.fromarray(colours(12, 12)), "GIF"),
        encoded(Image.fromarray(colours(12, 12)), "WEBP"),
    ]
    rng = np.random.default_rng(1)
    for original in originals:
        for _ in range(60):
            damaged = bytearray(original)
            for place in rng.integers(0, len(damaged), 3):
                damaged[place] = rng.integers(0, 256)
            try:
                assert load_image(bytes(damaged), max_pixels=10_000).mode == "RGB"
            except ImageError as error:
                assert error.kind in ("unreadable", "oversized")


def test_gif_frames_are_counted_without_decoding():
    frames = [Image.fromarray(np.full((3, 3), value, np.uint8)) for value in range(7)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert gif_frames(io.BytesIO(data), 100) == 7
    assert gif_frames(io.BytesIO(data), 4) == 4
    assert (decoded(data) == 0).all()  # the first frame


def dataset(tmp_path, count=20, bad=()):
    """Images of one grey level each, so that a mixed-up order shows."""
    for index in range(count):
        path = tmp_path / f"{index}.png"
        Image.fromarray(np.full((6, 6, 3), index, np.uint8)).save(path)
        if index in bad:
            path.write_bytes(path.read_bytes()[:40])
    return PairTable.from_columns(
        {"image": [f"{index}.png" for index in range(count)], "caption": ["a"] * count}, root=tmp_path
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_five_percent_corrupt_images_are_reported_and_the_rest_keep_their_places(tmp_path, workers):
    table = dataset(tmp_path, 40, bad=(7, 30))
    (tmp_path / "12.png").unlink()
    rows = np.arange(40)[::-1]
    images, problems = load_images(table, rows, 6, policy="skip", workers=workers)
    assert [(problem.image, problem.kind) for problem in problems] == [
        ("30.png", "unreadable"),
        ("12.png", "missing"),
        ("7.png", "unreadable"),
    ]
    assert [problem.id for problem in problems] == ["30.png", "12.png", "7.png"]
    assert all(problem.reason for problem in problems)
    expected = [0 if row in (7, 12, 30) else row for row in rows]
    assert images.shape == (40, 3, 6, 6) and images[:, 0, 0, 0].tolist() == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_policy_fail_raises_on_the_first_bad_image(tmp_path, workers):
    table = dataset(tmp_path, 10, bad=(4,))
    with pytest.raises(ImageError, match=r"4\.png"):
        load_images(table, range(10), 6, workers=workers)


def test_an_unknown_policy_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="ignore"):
        load_images(dataset(tmp_path, 1), [0], 6, policy="ignore")


def test_images_inside_shards(tmp_path):
    pixels = colours()
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        data = encoded(Image.fromarray(pixels), "PNG")
        member = tarfile.TarInfo("in/0.png")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    images = ["s.tar#in/0.png", "s.tar#in/1.png", "t.tar#in/0.png"]
    table = PairTable.from_columns({"image": images, "caption": ["a"] * 3}, root=tmp_path)
    np.testing.assert_array_equal(np.asarray(load_pair_image(table, 0)), pixels)
    _, problems = load_images(table, range(3), 8, policy="skip")
    assert [(problem.image, problem.kind) for problem in problems] == [
        ("s.tar#in/1.png", "missing"),
        ("t.tar#in/0.png", "missing"),
    ]


def test_the_bar_goes_to_stderr(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PMPGUARD_PROGRESS", "1")
    load_images(dataset(tmp_path, 3), range(3), 6, progress=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "3/3" in captured.err
