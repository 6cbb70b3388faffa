"""mR against the mismatch rate: ours with deviations, the paper's printed values dashed."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pmpguard.errors import DataError, require
from pmpguard.experiments.paper_reference import find_paper_row
from pmpguard.experiments.render import same_method
from pmpguard.experiments.rows import Summary
from pmpguard.files import write_atomic

# Okabe and Ito's colours, told apart by colour-blind readers too; the markers help in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
MARKERS = "osD^vPX*"


def plot_mr(
    summaries: Iterable[Summary], path: Path, paper_table: int | None = None, paper_dataset: str = ""
) -> None:
    """Draw one panel per dataset, encoder and noise level; the suffix of `path` chooses PNG, SVG or PDF."""
    figures = require("matplotlib.figure", "plots")
    panels: dict[tuple[str, str, str], list[Summary]] = {}
    for summary in summaries:
        if "mr" in summary.metrics:
            panels.setdefault((summary.dataset, summary.encoder, summary.level), []).append(summary)
    if not panels:
        raise DataError(f"{path}: there is no mR to plot", fix="run the table first")
    figure = figures.Figure(figsize=(5.6 * len(panels) + 1.4, 4.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    methods = list(dict.fromkeys(summary.method for members in panels.values() for summary in members))
    for axis, ((dataset, encoder, level), members) in zip(axes, panels.items(), strict=True):
        _draw_ours(axis, members, methods)
        if paper_table is not None:
            _draw_paper(axis, paper_table, paper_dataset or dataset, methods)
        axis.set_title(f"{dataset}, {level}-level noise\n{encoder}", fontsize=10)
        axis.set_xlabel("mismatched pairs (%)")
        axis.set_ylabel("mR (%)")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    entries: dict[str, Any] = {}  # one legend for all panels
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside right center", frameon=False, fontsize=9)
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lstrip(".") or "png", dpi=150)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, image.getvalue())


def _draw_ours(axis: Any, members: list[Summary], methods: list[str]) -> None:
    for number, method in enumerate(methods):
        points = sorted(
            (100 * summary.rate, summary.metrics["mr"].mean, summary.metrics["mr"].std or 0.0)
            for summary in members
            if summary.method == method
        )
        if points:
            rates, means, deviations = zip(*points, strict=True)
            axis.errorbar(rates, means, deviations, label=method, capsize=3, linewidth=1.8, **_look(number))


def _draw_paper(axis: Any, table: int, dataset: str, methods: list[str]) -> None:
    """Printed lines are thin, dashed and named at their end; one of ours lends its namesake the colour."""
    rows = find_paper_row(table, dataset)
    ends = []
    for name in dict.fromkeys(row.method for row in rows):
        points = sorted(
            (100 * row.rate, row.mr) for row in rows if row.method == name and row.rate is not None
        )
        if not points:
            continue
        namesakes = [number for number, method in enumerate(methods) if same_method(name, method)]
        colour = COLOURS[namesakes[0] % len(COLOURS)] if namesakes else "#9A9A9A"
        rates, values = zip(*points, strict=True)
        axis.plot(rates, values, "--", linewidth=1.1, color=colour, label=f"printed, table {table}", zorder=1)
        ends.append((values[-1], rates[-1], name, colour))
    spacing = 0.035 * axis.get_ylim()[1]
    height = -spacing
    for value, rate, name, colour in sorted(ends):  # from below, each label clear of the one under it
        height = max(value, height + spacing)
        offset = {"xytext": (rate + 1.5, height), "textcoords": "data", "va": "center"}
        axis.annotate(f"{name} (printed)", (rate, value), fontsize=6.5, color=colour, **offset)


def _look(number: int) -> dict[str, str]:
    """Where there are more methods than colours, the others have dotted lines and hollow markers."""
    colour = COLOURS[number % len(COLOURS)]
    first = number < len(COLOURS)
    return {
        "color": colour,
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": "-" if first else ":",
        "markerfacecolor": colour if first else "white",
    }
