"""How an image of any shape becomes the square that an encoder reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

Fit = Literal["squash", "crop"]
Resample = Literal["bicubic", "bilinear"]


@dataclass(frozen=True)
class Framing:
    """What is done to an image that is not square, as the encoder knew it in its own training.

    fit: `squash` resizes both sides, nothing is cut off. `crop` resizes the shorter side and cuts the square
    out of the middle, as CLIP does.
    shorter_side: pixels of the shorter side before a crop; 0 means those of the square.
    half_pixel: where a crop begins when a whole pixel must be left out on one side, rounded to even as
    torchvision does or down as transformers does.
    """

    fit: Fit = "squash"
    resample: Resample = "bicubic"
    shorter_side: int = 0
    half_pixel: Literal["even", "down"] = "even"


SQUASHED = Framing()


def framed(image: Image.Image, size: int, framing: Framing = SQUASHED) -> Image.Image:
    """The image as a square of `size` pixels.

    >>> framed(Image.new("RGB", (60, 30)), 15, Framing("crop")).size
    (15, 15)
    """
    wide, tall = resized_shape(image.width, image.height, size, framing)
    filters = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
    resized = image if image.size == (wide, tall) else image.resize((wide, tall), filters[framing.resample])
    left, top = crop_start(wide, size, framing), crop_start(tall, size, framing)
    whole = (wide, tall) == (size, size)
    return resized if whole else resized.crop((left, top, left + size, top + size))


def framed_tensor(images: Tensor, size: int, framing: Framing = SQUASHED) -> Tensor:
    """(N, 3, H, W) to (N, 3, size, size): `framed` in float arithmetic; uint8 comes back as uint8."""
    from pmpguard.data.images.transforms import resize

    wide, tall = resized_shape(images.shape[3], images.shape[2], size, framing)
    if images.shape[-2:] != (tall, wide):
        images = resize(images, (tall, wide), framing.resample)
    left, top = crop_start(wide, size, framing), crop_start(tall, size, framing)
    return images[..., top : top + size, left : left + size]


def resized_shape(width: int, height: int, size: int, framing: Framing) -> tuple[int, int]:
    """Width and height after resizing, before a crop.

    >>> resized_shape(500, 333, 224, Framing("crop")), resized_shape(500, 333, 224, SQUASHED)
    ((336, 224), (224, 224))
    """
    if framing.fit == "squash":
        return size, size
    shorter = framing.shorter_side or size
    if width <= height:
        return shorter, int(shorter * height / width)
    return int(shorter * width / height), shorter


def crop_start(length: int, size: int, framing: Framing) -> int:
    """The first pixel of the middle `size` of `length` pixels.

    >>> crop_start(227, 224, Framing(half_pixel="even")), crop_start(227, 224, Framing(half_pixel="down"))
    (2, 1)
    """
    left_out = length - size
    return left_out // 2 if framing.half_pixel == "down" else round(left_out / 2)
