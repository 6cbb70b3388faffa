"""Images from files nobody vouches for.

The header is read first: format, size in pixels, place of the data. Only then is anything decoded, and only
the first frame. Whatever a file contains, the answer is an RGB image or an `ImageError` that names it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeVar

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from pmpguard.data.images import tiff as tiff_bands
from pmpguard.data.images.framing import SQUASHED, Framing, framed
from pmpguard.data.images.roots import OUTSIDE, OUTSIDE_FIX, is_confined
from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import read_member, split_reference
from pmpguard.errors import ConfigError, DataError, MissingExtraError
from pmpguard.progress import progress_bar
from pmpguard.remote import is_remote, read_whole
from pmpguard.safe_text import one_line

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "GIF")
MAX_PIXELS = 50_000_000
MAX_BYTES = 256 * 2**20
MAX_GIF_FRAMES = 256
_STRETCH = (2, 98)  # percentiles that become black and white
_STRETCH_SAMPLE = 4_000_000
_BLOCK = 1024

ImagePolicy = Literal["fail", "skip"]
ImageTrouble = Literal["missing", "outside", "oversized", "unreadable"]
Result = TypeVar("Result")


class ImageError(DataError):
    """An image that is missing, too large or cannot be decoded; `kind` says which."""

    def __init__(self, kind: ImageTrouble, name: str, reason: str) -> None:
        self.kind: ImageTrouble = kind
        self.reason = reason
        fixes = {
            "outside": OUTSIDE_FIX,
            "missing": "check the dataset's folder, or remove the row",
            "oversized": "cut the image into tiles, or raise the limit if you trust the file",
            "unreadable": "restore the file from its source, or remove the row",
        }
        super().__init__(f"{name}: {reason}", fix=fixes[kind])


@dataclass(frozen=True)
class ImageProblem:
    """An image or scene that was skipped: its id, its file as the data name it, and what is wrong."""

    id: str
    image: str
    kind: ImageTrouble
    reason: str


def load_image(
    source: Path | BinaryIO | bytes,
    *,
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    name: str | None = None,
) -> Image.Image:
    """Decode one image to RGB, turned upright as its EXIF tag says.

    8-bit values stay as they are. Deeper ones (16-bit, float) are stretched band by band so that the 2nd and
    98th percentiles become black and white. Of several bands the first three are used, of two the first. A
    TIFF's fourth band is ignored, for it is as often infrared as opacity; in other formats transparent pixels
    turn black. An image of more than four bands counts against `max_pixels` in proportion.
    """
    if isinstance(source, Path):
        label = name or str(source)
        try:
            is_there = source.is_file()
        except (OSError, ValueError) as error:  # a name that no file system takes
            raise ImageError("missing", one_line(label), f"no such file can be ({error.args[-1]})") from error
        if not is_there:
            raise ImageError("missing", label, "no such file")
        with source.open("rb") as stream:
            return _load(stream, label, max_pixels, max_bytes)
    label = name or "image"
    return _load(io.BytesIO(source) if isinstance(source, bytes) else source, label, max_pixels, max_bytes)


def _load(stream: BinaryIO, name: str, max_pixels: int, max_bytes: int) -> Image.Image:
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    if size == 0:
        raise ImageError("unreadable", name, "the file is empty")
    if size > max_bytes:
        raise ImageError("oversized", name, f"{size} bytes, over the limit of {max_bytes}")
    with _damage_named(name):
        magic = stream.read(4)
        if magic in tiff_bands.MAGIC:
            layout = tiff_bands.read_layout(stream)
            _check_pixels(name, layout.width, layout.height, max_pixels * 4 // max(4, layout.bands))
            tiff_bands.check_blocks(layout, size)
            if layout.needs_band_reader:
                return from_bands(tiff_bands.read_bands(stream, layout))
        if magic == b"GIF8" and gif_frames(stream, MAX_GIF_FRAMES + 1) > MAX_GIF_FRAMES:
            raise ImageError("oversized", name, f"more than {MAX_GIF_FRAMES} frames")
        stream.seek(0)
        with Image.open(stream, formats=FORMATS) as image:
            _check_pixels(name, *image.size, max_pixels)
            return _to_rgb(image)


@contextmanager
def _damage_named(name: str) -> Iterator[None]:
    """Turn whatever a decoder raises into an error naming the file; damaged data can raise anything."""
    try:
        yield
    except ImageError:
        raise
    except MissingExtraError as error:
        raise ImageError("unreadable", name, f"{error.message}; {error.fix}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError("oversized", name, str(error)) from error
    except UnidentifiedImageError as error:
        raise ImageError("unreadable", name, f"not a {', '.join(FORMATS)} image") from error
    except Exception as error:
        raise ImageError("unreadable", name, f"damaged or truncated ({error})") from error


def _check_pixels(name: str, width: int, height: int, limit: int) -> None:
    if width * height > limit:
        raise ImageError("oversized", name, f"{width}x{height} pixels, over the limit of {limit}")


def _to_rgb(image: ImageFile.ImageFile) -> Image.Image:
    """Decode and convert to RGB; the orientation is applied first."""
    is_tiff = image.format == "TIFF"
    is_deep_colour = any(";16" in str(tile.args) for tile in image.tile) and not image.mode.startswith("I")
    image.load()
    upright: Image.Image = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I") or upright.mode == "F":
        return from_bands(np.asarray(upright)[..., None])
    if is_tiff and upright.mode in ("RGBA", "RGBa", "RGBX", "LA", "La"):
        return from_bands(np.asarray(upright))
    if upright.has_transparency_data:
        opaque = Image.new("RGBA", upright.size, (0, 0, 0, 255))
        upright = Image.alpha_composite(opaque, upright.convert("RGBA"))
    rgb = upright.convert("RGB")
    # Pillow keeps the high byte of 16-bit colours in PNG files.
    return Image.fromarray(stretch(np.asarray(rgb))) if is_deep_colour else rgb


def from_bands(bands: np.ndarray) -> Image.Image:
    """(H,W,bands) to RGB: the first three bands, or the first as grey; deeper than 8 bits is stretched."""
    chosen = bands[..., :3] if bands.shape[-1] >= 3 else bands[..., :1]
    values = chosen if chosen.dtype == np.uint8 else stretch(chosen)
    return Image.fromarray(np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3))))


def stretch(bands: np.ndarray) -> np.ndarray:
    """(H,W,C) of any values to uint8: in each band the 2nd percentile becomes 0 and the 98th 255.

    Percentiles are taken of at most four million evenly spaced values that are finite. Where both are equal
    the smallest and largest value take their place; a band of one value becomes black.
    """
    result = np.zeros(bands.shape, np.uint8)
    for index in range(bands.shape[-1]):
        band = bands[..., index].astype(np.float32)  # (H,W)
        sample = band.ravel()[:: max(1, math.ceil(band.size / _STRETCH_SAMPLE))]
        sample = sample[np.isfinite(sample)]
        if not len(sample):
            continue
        low, high = np.percentile(sample, _STRETCH)
        if high <= low:
            low, high = sample.min(), sample.max()
        if high > low:
            scaled = np.clip((band - low) / (high - low), 0, 1) * 255
            result[..., index] = np.nan_to_num(scaled).round()
    return result


def gif_frames(stream: BinaryIO, limit: int) -> int:
    """Count a GIF's frames by walking its blocks, never further than `limit`, without decoding any."""
    stream.seek(10)
    _skip_colours(stream, stream.read(3)[0])
    frames = 0
    while frames < limit:
        block = stream.read(1)
        if block == b"!":  # extension: label, then data
            stream.seek(1, io.SEEK_CUR)
        elif block == b",":  # frame: place and size, colours, code size, then data
            frames += 1
            _skip_colours(stream, stream.read(9)[8])
            stream.seek(1, io.SEEK_CUR)
        else:  # the end mark, or nothing that belongs here
            break
        while length := stream.read(1):
            if length == b"\0":
                break
            stream.seek(length[0], io.SEEK_CUR)
    return frames


def _skip_colours(stream: BinaryIO, flags: int) -> None:
    if flags & 0x80:
        stream.seek(3 * 2 ** ((flags & 7) + 1), io.SEEK_CUR)


def image_tensor(image: Image.Image, size: int, framing: Framing = SQUASHED) -> Tensor:
    """uint8 (3,size,size). The image is squashed to a square, as is usual in this field.

    Cropping instead would cut away what a caption may speak of; `framing` says so for an encoder that was
    trained on crops.
    """
    import torch

    square = framed(image, size, framing).convert("RGB")
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()  # (3,size,size)


def load_pair_image(table: PairTable, row: int, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image of one row: a file below the table's root, or `shard.tar#member`."""
    path = table.image_path(row)
    shard, member = split_reference(str(path))
    if not is_confined(table, Path(shard)):
        raise ImageError("outside", one_line(str(path)), f"row {row} names {OUTSIDE}")
    if member is None and not is_remote(path):
        return load_image(path, max_pixels=max_pixels)
    try:
        data = read_whole(path, MAX_BYTES) if member is None else read_member(Path(shard), member, MAX_BYTES)
    except DataError as error:
        raise ImageError("missing", str(path), error.message) from error
    return load_image(data, max_pixels=max_pixels, name=str(path))


def map_images(
    table: PairTable,
    rows: Sequence[int] | np.ndarray,
    work: Callable[[Image.Image], Result],
    *,
    policy: ImagePolicy = "fail",
    workers: int = 0,
    progress: str = "",
    max_pixels: int = MAX_PIXELS,
) -> Iterator[Result | ImageProblem]:
    """What `work` makes of each row's image, in order; with policy "skip" a problem stands for a bad one.

    `workers` threads decode (Pillow lets go of the interpreter lock), 0 decodes in the calling thread.
    `progress` names the bar drawn on stderr; without a name there is none.
    """
    if policy not in ("fail", "skip"):
        raise ConfigError(f"image policy {policy!r} is unknown", fix="use 'fail' or 'skip'")

    def attempt(position: int) -> Result | ImageProblem:
        row = int(rows[position])
        try:
            return work(load_pair_image(table, row, max_pixels=max_pixels))
        except ImageError as error:
            if policy == "fail":
                raise
            id, image = (table.arrow[name][row].as_py() for name in ("image_id", "image"))
            return ImageProblem(id, image, error.kind, error.reason)

    bar = progress_bar(len(rows), 0, progress, active=bool(progress), unit=" images")
    with bar, ThreadPoolExecutor(workers) if workers else nullcontext() as pool:
        # Blocks, so that a long list of rows does not become as long a list of waiting jobs.
        for start in range(0, len(rows), _BLOCK):
            block = range(start, min(start + _BLOCK, len(rows)))
            for result in pool.map(attempt, block) if pool else map(attempt, block):
                bar.update()
                yield result


def load_images(
    table: PairTable,
    rows: Sequence[int] | np.ndarray,
    size: int,
    policy: ImagePolicy = "fail",
    workers: int = 0,
    progress: bool = False,
    framing: Framing = SQUASHED,
) -> tuple[Tensor, list[ImageProblem]]:
    """The images of many rows as uint8 (n,3,size,size), and what was wrong with those that were skipped.

    With policy "fail" the first bad image raises. With "skip" it is reported and stays black, so that every
    other image keeps its position.
    """
    import torch

    images = torch.zeros(len(rows), 3, size, size, dtype=torch.uint8)  # (n,3,size,size)
    problems = []
    loaded = map_images(
        table,
        rows,
        lambda image: image_tensor(image, size, framing),
        policy=policy,
        workers=workers,
        progress="reading images" if progress else "",
    )
    for position, result in enumerate(loaded):
        if isinstance(result, ImageProblem):
            problems.append(result)
        else:
            images[position] = result
    return images, problems
