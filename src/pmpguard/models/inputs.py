"""What `encode_images` and `encode_texts` take, one or several: to pixels of one size, to a list of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from pmpguard.data.images.decode import image_tensor, load_image
from pmpguard.data.images.framing import SQUASHED, Framing, framed_tensor
from pmpguard.errors import DataError

ImageInput = str | Path | Image.Image | npt.NDArray[Any] | Tensor
ImagesInput = ImageInput | Sequence[ImageInput]
SHAPES = "give arrays (H, W, 3) or (N, H, W, 3), tensors (3, H, W) or (N, 3, H, W)"


def image_batch(images: ImagesInput) -> Tensor | list[ImageInput]:
    """One or several images as something to slice: a tensor (N, 3, H, W) or a list of single images.

    >>> image_batch("a.png"), image_batch(np.zeros((8, 9, 3), np.uint8)).shape
    (['a.png'], torch.Size([1, 3, 8, 9]))
    """
    if isinstance(images, np.ndarray):
        images = channels_first(images)
    if isinstance(images, Tensor):
        images = images[None] if images.ndim == 3 else images
        if images.ndim != 4 or images.shape[1] != 3:
            raise DataError(f"images have shape {tuple(images.shape)}", fix=SHAPES)
        return images
    if isinstance(images, str | Path | Image.Image) or not isinstance(images, Iterable):
        return [images]
    return list(images)


def text_batch(texts: str | Sequence[str]) -> list[str]:
    """One or several texts as a list.

    >>> text_batch("a river"), text_batch(("a river", "a field"))
    (['a river'], ['a river', 'a field'])
    """
    batch = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    for number, text in enumerate(batch):
        if not isinstance(text, str):
            raise DataError(f"text {number} is a {type(text).__name__}", fix="give a string, or several")
    return batch


def square_pixels(
    images: Tensor | Sequence[ImageInput], size: int, first: int = 0, framing: Framing = SQUASHED
) -> Tensor:
    """(N, 3, size, size): uint8, or float in [0, 1] where floats were given; errors count from `first`."""
    if not isinstance(images, Tensor):
        parts = [_one(image, size, first + place, framing) for place, image in enumerate(images)]
        if any(part.is_floating_point() for part in parts):
            parts = [part if part.is_floating_point() else part / 255 for part in parts]
        images = torch.stack(parts)
    if images.shape[-2:] != (size, size):
        images = framed_tensor(images, size, framing)
    if images.dtype == torch.uint8:
        return images
    lowest, highest = float(images.amin()), float(images.amax())
    if not (lowest > -0.2 and highest < 1.2):  # resizing may overshoot a little
        raise DataError(
            f"images from number {first} on hold values from {lowest:g} to {highest:g}",
            fix="give uint8, or float between 0 and 1 that has not been normalised",
        )
    return images.clamp(0, 1)


def channels_first(array: npt.NDArray[Any]) -> Tensor:
    """(H, W, 3) or (N, H, W, 3) to (3, H, W) or (N, 3, H, W)."""
    if array.ndim not in (3, 4) or array.shape[-1] != 3:
        raise DataError(f"an image array has shape {array.shape}", fix=SHAPES)
    return torch.from_numpy(np.ascontiguousarray(array)).movedim(-1, -3).contiguous()


def _one(image: ImageInput, size: int, number: int, framing: Framing) -> Tensor:
    """(3, size, size)"""
    if isinstance(image, str | Path):
        image = load_image(Path(image))
    if isinstance(image, Image.Image):
        return image_tensor(image, size, framing)
    if isinstance(image, np.ndarray):
        image = channels_first(image)
    if not isinstance(image, Tensor):
        raise DataError(
            f"image {number} is a {type(image).__name__}",
            fix="give a path, a PIL image, an array or a tensor",
        )
    if image.ndim != 3 or len(image) != 3:
        raise DataError(f"image {number} has shape {tuple(image.shape)}", fix=SHAPES)
    return framed_tensor(image[None], size, framing)[0]
