"""Image batches as tensors: resizing, normalising and augmenting on whatever device they are on.

Everything is one expression over the whole batch. Overhead images have no up, so flips and quarter turns
keep a caption true unless it names a direction; they move pixels without changing a single value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pmpguard.device import to_device
from pmpguard.errors import ConfigError

# The columns of the random block that `augment` draws for each image. All are drawn whatever the settings,
# so switching one augmentation off leaves the others as they were.
_TURN, _FLIP_COLUMNS, _FLIP_ROWS, _AREA, _ASPECT, _LEFT, _TOP, _BRIGHTNESS, _CONTRAST, _SATURATION = range(10)
_DRAWS = 10
_WHOLE = slice(None)


@dataclass(frozen=True)
class Augmentation:
    """What `augment` may do to an image.

    Args:
        flip: mirror images left to right and top to bottom, each equally likely.
        rotate: turn images by quarter turns, each equally likely.
        crop_min: smallest share of the area that a random crop keeps; 1 switches crops off.
        aspect: crops are at most this much wider than tall or taller than wide.
        colour: strength of brightness, contrast and saturation changes; 0 switches them off.
    """

    flip: bool = True
    rotate: bool = True
    crop_min: float = 0.6
    aspect: float = 4 / 3
    colour: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.crop_min <= 1:
            raise ConfigError(f"augmentation.crop_min is {self.crop_min}, outside (0, 1]")
        if not 1 <= self.aspect <= 4:
            raise ConfigError(f"augmentation.aspect is {self.aspect}, outside [1, 4]")
        if not 0 <= self.colour < 1:
            raise ConfigError(f"augmentation.colour is {self.colour}, outside [0, 1)")


def resize(images: Tensor, shape: tuple[int, int], mode: str = "bicubic") -> Tensor:
    """(N,3,H,W) to (N,3,*shape), antialiased.

    The filter is Pillow's, in float arithmetic. uint8 comes back as uint8, rounded and clamped.
    """
    resized = functional.interpolate(
        _as_float(images), size=shape, mode=mode, align_corners=False, antialias=True
    )  # (N,3,*shape)
    return resized if images.is_floating_point() else resized.round().clamp(0, 255).to(torch.uint8)


def augment(
    images: Tensor,
    generator: torch.Generator,
    config: Augmentation,
    keep_orientation: Tensor,
    share: slice = _WHOLE,
) -> Tensor:
    """Turn, flip, crop and recolour each image of a batch (N,3,H,W) in its own random way.

    Images where `keep_orientation` (N,) bool is set, those whose caption names a direction, are neither
    turned nor flipped. uint8 is welcome and cheapest; the result is float on the same scale, and works before
    or after `Retriever.normalise`. One (N,10) block of numbers is drawn per call on its device: what becomes
    of an image depends on the generator's state, the batch's size and the image's place in it.

    A process that holds a part of the batch passes `images` (n,3,H,W) of its `share` and `keep_orientation`
    of the whole batch: all processes together then do what one would have done.
    """
    whole = torch.rand(len(keep_orientation), _DRAWS, generator=generator, device=generator.device)  # (N,10)
    draws = to_device(whole[share], images.device)  # (n,10)
    free = ~to_device(keep_orientation[share], images.device)  # (n,)
    if len(images) != len(draws):
        raise ValueError(f"{len(images)} images but keep_orientation holds {len(draws)} for them")
    if not len(images):
        return _as_float(images)
    if config.flip or config.rotate:
        images = turn_and_flip(
            images,
            (draws[:, _TURN] * 4).long() * (free & config.rotate),
            (draws[:, _FLIP_COLUMNS] < 0.5) & free & config.flip,
            (draws[:, _FLIP_ROWS] < 0.5) & free & config.flip,
        )
    images = _as_float(images)
    if config.crop_min < 1:
        images = crop_and_resize(images, crop_boxes(draws, config))
    if config.colour > 0:
        strength = config.colour * (2 * draws[:, _BRIGHTNESS : _SATURATION + 1] - 1)  # (n,3)
        images = shift_colour(images, strength)
    return images


def turn_and_flip(images: Tensor, quarter_turns: Tensor, flip_columns: Tensor, flip_rows: Tensor) -> Tensor:
    """Turn each image (N,3,H,W) counter-clockwise by its number of quarter turns (N,), then mirror it.

    `flip_columns` (N,) swaps left and right, `flip_rows` (N,) top and bottom. A quarter turn is a
    transposition and one mirroring, so three selections do all sixteen cases and no pixel value changes.
    """
    if images.shape[-1] != images.shape[-2]:
        raise ConfigError(
            f"images of {images.shape[-2]}x{images.shape[-1]} pixels cannot be turned by 90 degrees",
            fix="resize them to squares, or set augmentation.rotate=false and augmentation.flip=false",
        )
    transposed = quarter_turns % 2 == 1  # (N,)
    rows = ((quarter_turns == 1) | (quarter_turns == 2)) ^ flip_rows  # (N,)
    columns = ((quarter_turns == 2) | (quarter_turns == 3)) ^ flip_columns  # (N,)
    images = torch.where(transposed.view(-1, 1, 1, 1), images.transpose(-1, -2), images)
    images = torch.where(rows.view(-1, 1, 1, 1), images.flip(-2), images)
    return torch.where(columns.view(-1, 1, 1, 1), images.flip(-1), images)


def crop_boxes(draws: Tensor, config: Augmentation) -> Tensor:
    """(N,10) uniform draws to (N,4) boxes left, top, width, height as shares of the image."""
    area = config.crop_min + (1 - config.crop_min) * draws[:, _AREA]  # (N,)
    stretch = torch.exp(
        (2 * draws[:, _ASPECT] - 1) * math.log(config.aspect) / 2
    )  # (N,) sqrt of width / height
    width = (area.sqrt() * stretch).clamp(max=1)  # (N,)
    height = (area.sqrt() / stretch).clamp(max=1)  # (N,)
    return torch.stack(
        [draws[:, _LEFT] * (1 - width), draws[:, _TOP] * (1 - height), width, height], dim=1
    )  # (N,4)


def crop_and_resize(images: Tensor, boxes: Tensor) -> Tensor:
    """Cut box (N,4) out of each image and enlarge it bilinearly to the image's own size."""
    left, top, width, height = boxes.unbind(1)  # (N,) each
    zero = torch.zeros_like(left)
    # The sampling grid runs over [-1, 1]: the box's centre is 2 * (left + width / 2) - 1.
    affine = torch.stack([width, zero, 2 * left + width - 1, zero, height, 2 * top + height - 1], dim=1).view(
        -1, 2, 3
    )  # (N,2,3)
    grid = functional.affine_grid(
        affine.to(images.dtype), list(images.shape), align_corners=False
    )  # (N,H,W,2)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def shift_colour(images: Tensor, strength: Tensor) -> Tensor:
    """Change brightness, contrast and saturation of each image by its strengths (N,3), 0 for no change.

    Brightness adds a multiple of the image's own standard deviation, contrast scales about its mean,
    saturation about each pixel's grey: none depends on the scale of the values.
    """
    brightness, contrast, saturation = strength.to(images.dtype).view(-1, 3, 1, 1, 1).unbind(1)  # (N,1,1,1)
    grey = images.mean(dim=1, keepdim=True)  # (N,1,H,W)
    images = grey + (1 + saturation) * (images - grey)
    mean = grey.mean(dim=(-2, -1), keepdim=True)  # (N,1,1,1)
    spread = grey.std(dim=(-2, -1), keepdim=True, correction=0)  # (N,1,1,1)
    return mean + brightness * spread + (1 + contrast) * (images - mean)


def _as_float(images: Tensor) -> Tensor:
    return images if images.is_floating_point() else images.float()
