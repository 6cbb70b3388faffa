"""Many images with their captions on one page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pmpguard.data.pairs import PairTable
from pmpguard.data.text import normalise_caption
from pmpguard.errors import ConfigError
from pmpguard.files import write_atomic
from pmpguard.stable_random import StableRandom

_PAPER, _INK, _EDGE = (255, 255, 255), (38, 42, 48), (214, 218, 224)
_LINES = 3  # of a caption; the rest becomes dots


def contact_sheet(
    images: Sequence[Image.Image], captions: Sequence[str], columns: int = 4, cell: int = 224
) -> Image.Image:
    """Draw each image, fitted into a square of `cell` pixels, with its caption below it."""
    if len(images) != len(captions) or not images:
        raise ConfigError(f"{len(images)} images and {len(captions)} captions for a contact sheet")
    if columns < 1 or cell < 16:
        raise ConfigError(f"contact sheet of {columns} columns and {cell} pixels an image")
    columns = min(columns, len(images))
    gap, size = max(8, cell // 16), max(11, cell // 16)
    font = ImageFont.load_default(size)
    texts = [wrap(tidy(caption), font, cell) for caption in captions]
    line = round(size * 1.35)
    rows = [range(start, min(start + columns, len(images))) for start in range(0, len(images), columns)]
    heights = [cell + gap // 2 + line * max(len(texts[index]) for index in row) + gap for row in rows]
    sheet = Image.new("RGB", (gap + columns * (cell + gap), gap + sum(heights)), _PAPER)
    pen = ImageDraw.Draw(sheet)
    top = gap
    for row, height in zip(rows, heights, strict=True):
        for column, index in enumerate(row):
            left = gap + column * (cell + gap)
            _place(sheet, pen, images[index], left, top, cell)
            for number, text in enumerate(texts[index]):
                pen.text((left, top + cell + gap // 2 + number * line), text, _INK, font)
        top += height
    return sheet


def write_sheet(
    path: Path, images: Sequence[Image.Image], captions: Sequence[str], columns: int
) -> tuple[int, int]:
    """Draw a contact sheet into a PNG file; returns its width and height."""
    sheet = contact_sheet(images, captions, columns)
    stream = io.BytesIO()
    sheet.save(stream, "PNG")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, stream.getvalue())
    return sheet.size


def random_rows(table: PairTable, count: int, seed: int = 0) -> list[int]:
    """Rows of `count` different images, or of all there are, each with one of its captions."""
    draws, chosen = StableRandom("contact sheet", seed), []
    for image in draws.choice(len(table.first_rows), count):
        rows = np.flatnonzero(table.image_codes == image)
        chosen.append(int(rows[draws.below(len(rows), 1)[0]]))
    return chosen


def _place(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, image: Image.Image, left: int, top: int, cell: int
) -> None:
    """Fit the image into its square, whole and undistorted; small ones are enlarged without blurring."""
    scale = cell / max(image.size)
    fitted = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    sharp = scale >= 2
    resized = image.convert("RGB").resize(
        fitted, Image.Resampling.NEAREST if sharp else Image.Resampling.LANCZOS
    )
    place = (left + (cell - fitted[0]) // 2, top + (cell - fitted[1]) // 2)
    sheet.paste(resized, place)
    corner = (place[0] + fitted[0] - 1, place[1] + fitted[1] - 1)
    pen.rectangle((place, corner), outline=_EDGE)


def tidy(caption: str) -> str:
    """As people write: many datasets put a space before the full stop.

    >>> tidy("two planes , near a road .")
    'two planes, near a road.'
    """
    return re.sub(r" +([.,;:!?])", r"\1", normalise_caption(caption))


def wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """Break a caption into at most three lines of `width` pixels; what does not fit becomes dots."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if font.getlength(longer) <= width:
            lines[-1] = longer
        elif lines[-1]:
            lines.append(word)
        else:
            lines[-1] = word
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"{lines[_LINES - 1]} ..."]
    return [_cut(line, font, width) for line in lines]


def _cut(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Shorten a line that is too wide and end it with dots."""
    if font.getlength(line) <= width:
        return line
    kept = line.removesuffix(" ...")
    while kept and font.getlength(f"{kept}...") > width:
        kept = kept[:-1]
    return f"{kept.rstrip()}..."
