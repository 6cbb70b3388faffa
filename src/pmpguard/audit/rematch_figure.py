"""The paper's Figure 3 for any audited pairs: image, mismatched caption with its unsupported words in red,
and the caption it was rematched with, its words that the image bears out in green."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from pmpguard.audit.rows import BORNE_OUT, AuditRow, WordVerdict
from pmpguard.errors import ConfigError, DataError, require
from pmpguard.files import write_atomic

RED, GREEN, PLAIN, GREY = "#c62828", "#2e7d32", "#202020", "#757575"
WIDTH, HEIGHT = 9.0, 2.1  # inches of one pair
MAX_PAIRS = 100  # of a figure
TEXT_LEFT, FONT = 0.265, 11
LINE = 0.115  # of the pair's height, between two lines of text

Coloured = list[tuple[str, str]]  # (word, colour)


def draw_rematches(
    path: Path, rows: Sequence[AuditRow], load_image: Callable[[str], Image.Image | None]
) -> Path:
    """Draw the pairs one under another into a PNG, SVG or PDF file."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError(
            f"{path}: cannot draw a .{kind} file", fix="use a name ending in .png, .svg or .pdf"
        )
    if not rows:
        raise ConfigError("no pairs to draw: none was flagged and has a proposal", fix="name some (--pairs)")
    if len(rows) > MAX_PAIRS:
        raise ConfigError(f"{len(rows)} pairs do not fit into one figure", fix=f"at most {MAX_PAIRS} of them")
    figures = require("matplotlib.figure", "plots")
    backend = require("matplotlib.backends.backend_agg", "plots")
    figure = figures.Figure(figsize=(WIDTH, HEIGHT * len(rows)), dpi=150)
    backend.FigureCanvasAgg(figure)  # measures text
    for place, row in enumerate(rows):
        _draw_pair(figure, row, load_image(row.image), place, len(rows))
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, facecolor="white")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, buffer.getvalue())
    return path


def chosen_rows(rows: Sequence[AuditRow], pairs: Sequence[str]) -> list[AuditRow]:
    """The rows of the given pair ids, in that order."""
    by_id = {row.pair_id: row for row in rows}
    missing = [pair for pair in pairs if pair not in by_id]
    if missing:
        raise DataError(f"pair {missing[0]!r} is not in this report", fix="ids are in issues.parquet")
    return [by_id[pair] for pair in pairs]


def coloured_words(caption: str, words: Sequence[WordVerdict], *, supported: bool) -> Coloured:
    """The caption word by word; wrong words red, or those the image bears out green.

    >>> coloured_words("a red roof", [WordVerdict(2, 5, 0.1, True)], supported=False)
    [('a', '#202020'), ('red', '#c62828'), ('roof', '#202020')]
    """
    colour_of = {}
    for word in words:
        if supported and word.support >= BORNE_OUT:
            colour_of[word.start] = GREEN
        elif not supported and word.wrong:
            colour_of[word.start] = RED
    coloured, start = [], 0
    for text in caption.split():
        start = caption.index(text, start)
        inside = [colour for place, colour in colour_of.items() if start <= place < start + len(text)]
        coloured.append((text, inside[0] if inside else PLAIN))
        start += len(text)
    return coloured


def _draw_pair(figure: Any, row: AuditRow, image: Image.Image | None, place: int, count: int) -> None:
    bottom = 1 - (place + 1) / count
    axes = figure.add_axes((0.01, bottom + 0.06 / count, 0.235, 0.88 / count))
    axes.set_axis_off()
    if image is None:
        axes.text(0.5, 0.5, "no image", ha="center", va="center", color=GREY)
    else:
        axes.imshow(image)
    panel = figure.add_axes((TEXT_LEFT, bottom, 0.98 - TEXT_LEFT, 1 / count))
    panel.set_axis_off()
    panel.set(xlim=(0, 1), ylim=(0, 1))
    panel.text(0, 0.9, f"labelled, p(match) {row.p_match:.2f}", color=GREY, fontsize=9, va="center")
    low = _draw_words(figure, panel, coloured_words(row.caption, row.words, supported=False), 0.77)
    if row.proposals:
        best = row.proposals[0]
        top = min(low - 0.05, 0.47)
        panel.text(0, top, f"rematched, p(match) {best.p_match:.2f}", color=GREY, fontsize=9, va="center")
        _draw_words(figure, panel, coloured_words(best.caption, best.words, supported=True), top - 0.13)
    if place:
        panel.axhline(1.0, xmin=-1, color="#dddddd", linewidth=0.8, clip_on=False)


def _draw_words(figure: Any, panel: Any, words: Coloured, top: float) -> float:
    """Write words left to right, breaking lines; returns the height under the last line."""
    renderer = figure.canvas.get_renderer()
    to_panel = panel.transData.inverted()
    x, y = 0.0, top
    space = 0.012
    for text, colour in words:
        weight = "normal" if colour == PLAIN else "bold"
        drawn = panel.text(x, y, _literal(text), color=colour, fontsize=FONT, va="center", fontweight=weight)
        box = drawn.get_window_extent(renderer).transformed(to_panel)
        if box.x1 > 1.0 and x > 0 and any(map(str.isalnum, text)):  # no full stop begins a line
            x, y = 0.0, y - LINE
            drawn.set_position((x, y))
            box = drawn.get_window_extent(renderer).transformed(to_panel)
        x = box.x1 + space
    return y - LINE


def _literal(text: str) -> str:
    """Captions are text: a dollar sign starts no formula."""
    return text.replace("$", r"\$")
