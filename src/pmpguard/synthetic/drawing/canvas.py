"""A canvas in unit coordinates, and the textures that make flat paint look like ground seen from above.

Noise is drawn once per pixel size, twice as wide as an image; every scene cuts its own window out of it.
That costs microseconds instead of milliseconds and gives the same pattern at every size.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

RGB = tuple[int, int, int]
Point = tuple[float, float]
Plane = NDArray[np.float32]

_CIRCLE = [(math.cos(math.tau * step / 24), math.sin(math.tau * step / 24)) for step in range(24)]
_BOX = [(1, 1), (-1, 1), (-1, -1), (1, -1)]
_OCTAVES = {"soft": (4, 8, 16), "rough": (16, 32, 64, 128), "fine": (128, 256)}  # cells over two images


def _plane(values: NDArray[Any]) -> Plane:
    return values.astype(np.float32)


@functools.lru_cache(maxsize=24)
def noise(pixels: int, kind: str) -> Plane:
    """(2·pixels, 2·pixels) smoothed noise with mean 0 and deviation 1."""
    total = np.zeros((2 * pixels, 2 * pixels), np.float32)
    for weight, cells in enumerate(_OCTAVES[kind]):
        grid = np.random.default_rng((len(kind), cells)).standard_normal((cells, cells), dtype=np.float32)
        layer = Image.fromarray(grid).resize(total.shape, Image.Resampling.BICUBIC)
        total += np.asarray(layer) / (1.0 + 0.5 * weight)
    return _plane((total - total.mean()) / total.std())


@functools.lru_cache(maxsize=24)
def ground_tile(pixels: int, kind: str) -> Plane:
    """(2·pixels, 2·pixels) lightness around 0.5 of "natural", "dunes", "paved" or "water" ground."""
    soft, rough, fine = (noise(pixels, name) for name in ("soft", "rough", "fine"))
    where = np.arange(2 * pixels, dtype=np.float32) / pixels  # in images
    if kind == "paved":
        slabs = np.minimum(where % 0.125, 0.125 - where % 0.125) < 0.55 / min(pixels, 192)
        joints = (slabs[:, None] | slabs[None, :]).astype(np.float32)
        return _plane(0.5 + 0.16 * soft + 0.08 * rough + 0.09 * fine - 0.3 * joints)
    if kind == "dunes":
        ripples = np.sin(55 * (where[:, None] + 0.6 * where[None, :]) + 1.6 * soft)
        return _plane(0.5 + 0.18 * soft + 0.09 * rough + 0.06 * fine + 0.09 * ripples)
    if kind == "water":
        waves = np.sin(120 * (where[:, None] + 0.35 * where[None, :]) + 2.5 * soft)
        return _plane(0.5 + 0.2 * soft + 0.07 * rough + 0.06 * fine + 0.04 * waves)
    scrub = np.clip(rough + 0.7 * fine + 0.8 * soft - 1.9, 0, 1)
    return _plane(0.54 + 0.2 * soft + 0.14 * rough + 0.08 * fine - 0.4 * scrub)


@functools.lru_cache(maxsize=8)
def sensor_grain(size: int) -> NDArray[np.float32]:
    """(2·size, 2·size, 3) white noise with deviation 1."""
    return np.random.default_rng(size).standard_normal((2 * size, 2 * size, 3), dtype=np.float32)


@functools.lru_cache(maxsize=8)
def canopy(pixels: int) -> Plane:
    """(2·pixels, 2·pixels) in [0, 1]: tree crowns from above, lit from one side."""
    rng = random.Random("canopy")
    width = 2 * pixels
    image = Image.new("L", (width, width), 30)
    draw = ImageDraw.Draw(image)
    for _ in range(5200):
        x, y, radius = rng.random() * width, rng.random() * width, rng.uniform(0.011, 0.024) * width
        tone = rng.randint(90, 170)
        for shift, scale, light in ((0.35, 1.0, 35), (0.0, 1.0, tone), (-0.25, 0.6, tone + 50)):
            a, b, r = x + shift * radius, y + shift * radius, scale * radius
            draw.ellipse((a - r, b - r, a + r, b + r), fill=light)
    return _plane(np.asarray(image) / 255)


def shade(colour: RGB, factor: float) -> RGB:
    red, green, blue = (min(255, max(0, round(value * factor))) for value in colour)
    return red, green, blue


class Canvas:
    """A square image being painted; all lengths are fractions of its side.

    `sun` is the direction shadows fall to. `rng` gives the looks that no caption speaks of.
    """

    def __init__(self, pixels: int, rng: random.Random) -> None:
        self.pixels = pixels
        self.rng = rng
        angle = rng.uniform(0, math.tau)
        self.sun = (math.cos(angle), math.sin(angle))
        self.image = Image.new("RGB", (pixels, pixels))
        self.draw = ImageDraw.Draw(self.image, "RGBA")

    def window(self, tile: Plane) -> Plane:
        """(pixels, pixels): a random part of a tile, at the same place of the world for every size."""
        x, y = int(self.rng.random() * self.pixels), int(self.rng.random() * self.pixels)
        return tile[y : y + self.pixels, x : x + self.pixels]

    def blend(self, dark: RGB, light: RGB, amount: Plane) -> Image.Image:
        """An image between two colours; `amount` (pixels, pixels) is 0 for dark and 1 for light."""
        image = Image.fromarray(np.clip(amount * 255, 0, 255).astype(np.uint8))
        steps = np.linspace(dark, light, 256)  # (256, 3)
        image.putpalette(np.clip(steps, 0, 255).astype(np.uint8).tobytes())
        return image.convert("RGB")

    def ground(self, dark: RGB, light: RGB, kind: str = "natural") -> Image.Image:
        """An image of textured ground between two tones."""
        return self.blend(dark, light, self.window(ground_tile(self.pixels, kind)))

    def mask(self, outlines: Sequence[Sequence[Point]]) -> Image.Image:
        image = Image.new("L", (self.pixels, self.pixels))
        draw = ImageDraw.Draw(image)
        for outline in outlines:
            draw.polygon([(x * self.pixels, y * self.pixels) for x, y in outline], fill=255)
        return image

    def water(self, outlines: Sequence[Sequence[Point]], colour: RGB, bank: RGB | None = None) -> None:
        """Water that darkens with the distance from its edge, with a paler strip along the bank."""
        area = self.mask(outlines)
        depth = np.asarray(area.filter(ImageFilter.BoxBlur(0.05 * self.pixels)), np.float32) / 255
        light = _plane(0.85 - 1.25 * depth + self.window(ground_tile(self.pixels, "water")))
        if bank is not None:
            for outline in outlines:
                self.line([*outline, outline[0]], bank, 0.022)
        self.image.paste(self.blend(shade(colour, 0.8), shade(colour, 1.35), light), mask=area)

    def alpha(self, values: NDArray[np.floating]) -> Image.Image:
        """A mask from values between 0 and 255."""
        return Image.fromarray(values.astype(np.uint8))

    def textured(self, outlines: Sequence[Sequence[Point]], texture: Image.Image) -> None:
        self.image.paste(texture, mask=self.mask(outlines))

    # --- flat shapes -------------------------------------------------------------------------------------

    def polygon(self, points: Sequence[Point], colour: RGB, alpha: int = 255) -> None:
        scale = self.pixels
        self.draw.polygon([(x * scale, y * scale) for x, y in points], fill=(*colour, alpha))

    def line(self, points: Sequence[Point], colour: RGB, width: float, alpha: int = 255) -> None:
        scale = self.pixels
        pixels = max(1, round(width * scale))
        flat = [(x * scale, y * scale) for x, y in points]
        self.draw.line(flat, fill=(*colour, alpha), width=pixels, joint="curve" if pixels > 3 else None)

    def disc(self, x: float, y: float, radius: float, colour: RGB, alpha: int = 255) -> None:
        a, b, r = x * self.pixels, y * self.pixels, radius * self.pixels
        self.draw.ellipse((a - r, b - r, a + r, b + r), fill=(*colour, alpha))

    def dashes(self, points: Sequence[Point], colour: RGB, width: float, length: float) -> None:
        """A broken line along a path."""
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            distance = math.hypot(x1 - x0, y1 - y0)
            steps = max(1, round(distance / (2 * length)))
            for step in range(steps):
                a, b = step / steps, (step + 0.5) / steps
                ends = [(x0 + t * (x1 - x0), y0 + t * (y1 - y0)) for t in (a, b)]
                self.line(ends, colour, width)

    def shadow(self, points: Sequence[Point], height: float, alpha: int = 95) -> None:
        """The shadow an outline of this height throws."""
        dx, dy = self.sun[0] * height, self.sun[1] * height
        for part in (0.5, 1.0):
            self.polygon(
                [(x + part * dx, y + part * dy) for x, y in points], (20, 22, 30), alpha if part == 1 else 60
            )


def turned(points: Sequence[Point], x: float, y: float, angle: float, scale: float = 1.0) -> list[Point]:
    """Points of a drawing around the origin, scaled, turned and moved to (x, y)."""
    cosine, sine = math.cos(angle) * scale, math.sin(angle) * scale
    return [(x + u * cosine - v * sine, y + u * sine + v * cosine) for u, v in points]


def box(x: float, y: float, angle: float, half_length: float, half_width: float) -> list[Point]:
    return turned([(u * half_length, v * half_width) for u, v in _BOX], x, y, angle)


def oval(x: float, y: float, angle: float, half_length: float, half_width: float) -> list[Point]:
    return turned([(u * half_length, v * half_width) for u, v in _CIRCLE], x, y, angle)


def blob(
    rng: random.Random, x: float, y: float, angle: float, half_length: float, half_width: float
) -> list[Point]:
    """An oval with an uneven edge, as nature draws it."""
    a, b = rng.uniform(0, math.tau), rng.uniform(0, math.tau)
    points = []
    for step, (u, v) in enumerate(_CIRCLE):
        turn = math.tau * step / 24
        swell = 0.94 + 0.06 * math.sin(2 * turn + a) + 0.05 * math.sin(5 * turn + b)
        points.append((u * half_length * swell, v * half_width * swell))
    return turned(points, x, y, angle)
