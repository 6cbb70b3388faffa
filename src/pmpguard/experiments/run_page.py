"""A run to look at: curves, figures and settings as one page, from what the run left on record.

The page has no script and asks the network for nothing. It is drawn from `metrics.jsonl`, `config.json` and
`environment.json`, so it can be made of a run that is still going on, too.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pmpguard.errors import DataError
from pmpguard.files import read_json, write_atomic

Curve = list[tuple[float, float]]  # (x, y)
WIDTH, HEIGHT, LEFT, BOTTOM = 320, 180, 44, 24
COLOURS = ("#c2410c", "#0f766e", "#4338ca", "#a16207", "#be185d", "#475569")
DETECTION = {
    "estimated_mismatch_rate": "estimated rate", "true_true_rate": "injected rate", "true_auroc": "AUROC",
}  # fmt: skip
BOUNDARY = {"t": "t_k", "mu+": "matched", "mu-": "mismatched"}
UNDRAWN = {"kind", "step", "lr", "sigma+", "sigma-", "t_kept", "mismatch"}
WORDS = {
    "R@K": "share of queries, in percent, that have a hit among the first K",
    "i2t, t2i": "images ask for captions, captions ask for images",
    "mR": "mean of R@1, R@5 and R@10 both ways",
    "mr_string": "mR where an equal caption counts as a hit, whichever image it was written for",
    "AUROC": "chance that a mismatched pair is given a lower clean probability than a matched one",
    "estimated rate": "share of pairs that the method takes for mismatched; it never sees what was injected",
    "t_k": "boundary of awareness attention: similarities below it speak against a pair; beside it the mean "
    "similarity of matched and of mismatched fragments",
}


def write_run_page(
    run: Path,
    figures: Mapping[str, float] | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write `run/index.html`; `figures` are those of the test split, once there are any."""
    folders = (run, run / "teacher", run / "student")
    parts = [folder for folder in folders if (folder / "metrics.jsonl").is_file()]
    if not parts:
        raise DataError(f"{run}: no metrics.jsonl in it", fix="name the folder of a training run")
    config = read_json(parts[-1] / "config.json")
    environment_file = parts[-1] / "environment.json"
    environment = read_json(environment_file) if environment_file.is_file() else {}
    curves: dict[str, dict[str, Curve]] = {}
    for folder in parts:
        whose = "" if folder == run else f", {folder.name}"
        curves |= {f"{title}{whose}": lines for title, lines in run_curves(folder).items()}
    title = f"{config.get('method', 'run')}, {run.resolve().name}"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="sub">{html.escape(_about(config, environment))}</p>',
        *([] if figures is None else ["<h2>Test split</h2>", figure_table(figures, intervals or {})]),
        *(f'<p class="sub">{html.escape(note[0].upper() + note[1:])}.</p>' for note in notes),
        "<h2>Curves</h2>",
        f'<div class="curves">{"".join(chart(name, lines) for name, lines in curves.items())}</div>',
        "<h2>Words</h2>",
        "<dl>" + "".join(f"<dt>{word}</dt><dd>{text}</dd>" for word, text in WORDS.items()) + "</dl>",
        "<h2>Settings</h2>",
        f"<pre>{html.escape(json.dumps(config, indent=1))}</pre>",
    ]
    style = resources.files("pmpguard.web").joinpath("run/run.css").read_text(encoding="utf-8")
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
    )
    page = run / "index.html"
    write_atomic(page, f"{head}<body>{''.join(body)}</body></html>\n")
    return page


def run_curves(folder: Path) -> dict[str, dict[str, Curve]]:
    """What changed over a run: title -> name -> points. Epochs are counted from 1."""
    found: dict[str, dict[str, Curve]] = {"validation mR": {}, "detection": {}, "losses": {}, "boundary": {}}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] == "validation":
            found["validation mR"].setdefault("mR", []).append((record["epoch"] + 1, record["mr"]))
        elif record["kind"] == "detection":
            for key, name in DETECTION.items():
                none_injected = key == "true_true_rate" and not record.get(key)
                if isinstance(record.get(key), int | float) and not none_injected:
                    found["detection"].setdefault(name, []).append((record["epoch"] + 1, record[key]))
        elif record["kind"] == "step":
            for name, value in record.items():
                if name not in UNDRAWN and isinstance(value, int | float):
                    group = found["boundary" if name in BOUNDARY else "losses"]
                    group.setdefault(BOUNDARY.get(name, name), []).append((record["step"], value))
    return {title: lines for title, lines in found.items() if lines}


def chart(title: str, lines: Mapping[str, Curve]) -> str:
    """Curves over the same axes, as SVG with a legend below."""
    unit = "step" if title.startswith(("losses", "boundary")) else "epoch"
    points = [point for line in lines.values() for point in line]
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    low_y, high_y = min(0.0, *(y for _, y in points)), max(y for _, y in points)
    high_y += high_y == low_y  # a line of zeros lies on the floor
    across, up = (high_x - low_x) or 1.0, high_y - low_y

    def place(x: float, y: float) -> str:
        right = LEFT + (x - low_x) / across * (WIDTH - LEFT - 8)
        down = 8 + (high_y - y) / up * (HEIGHT - BOTTOM - 8)
        return f"{right:.1f},{down:.1f}"

    drawn = "".join(
        f'<polyline class="{"line" if len(line) > 1 else "dot"}" stroke="{COLOURS[number % len(COLOURS)]}" '
        f'points="{" ".join(place(*p) for p in (line if len(line) > 1 else 2 * line))}"/>'  # one is a dot
        for number, line in enumerate(lines.values())
    )
    floor = HEIGHT - BOTTOM
    axes = (
        f'<line class="axis" x1="{LEFT}" y1="8" x2="{LEFT}" y2="{floor}"/>'
        f'<line class="axis" x1="{LEFT}" y1="{floor}" x2="{WIDTH - 8}" y2="{floor}"/>'
        f'<text x="{LEFT - 6}" y="16" text-anchor="end">{high_y:.2g}</text>'
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">{low_y:.2g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{low_x:g}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 8}" text-anchor="end">{unit} {high_x:g}</text>'
    )
    legend = ", ".join(
        f'<span style="color:{COLOURS[number % len(COLOURS)]}">{html.escape(name)}</span> {line[-1][1]:.3g}'
        for number, (name, line) in enumerate(lines.items())
    )
    label = html.escape(title)
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{axes}{drawn}</svg>'
        f"<figcaption>{label}: {legend}</figcaption></figure>"
    )


def figure_table(figures: Mapping[str, float], intervals: Mapping[str, tuple[float, float]]) -> str:
    """The recalls of the test split with their 95 % intervals, and what else was measured there."""
    recalls = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "mr")
    heads = ("i2t R@1", "R@5", "R@10", "t2i R@1", "R@5", "R@10", "mR")
    rows = _row("th", heads) + _row("td", [f"{figures[name]:.2f}" for name in recalls if name in figures])
    if intervals:
        bounds = [f"{low:.1f} to {high:.1f}" for low, high in (intervals[name] for name in recalls)]
        rows += _row("td", bounds)
    further = {
        "mr_string": "mr_string", "val_mr": "mR on validation", "detection_auroc": "AUROC of detection",
        "detection_estimated_rate": "estimated rate", "effective_rate": "injected rate",
    }  # fmt: skip
    known = {name: value for name, value in figures.items() if name != "effective_rate" or value}
    told = [f"{text} {known[name]:.3f}" for name, text in further.items() if name in known]
    told += ["below the recalls their 95 % intervals, from resampled images"] if intervals else []
    return f"<div class=wide><table>{rows}</table></div><p>{html.escape('; '.join(told))}</p>"


def _row(kind: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def _known(environment: Mapping[str, Any], name: str) -> bool:
    return str(environment.get(name, "unknown")) != "unknown"  # a wheel knows no commit


def _about(config: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    model = config.get("model", {})
    parts = [
        f"{model.get('vision', '?')} + {model.get('text', '?')}",
        f"{config.get('epochs', '?')} epochs of batches of {config.get('batch_size', '?')}",
        f"seed {config.get('seed', '?')}",
        *(str(environment[name]) for name in ("hardware", "commit", "started") if _known(environment, name)),
    ]
    return ", ".join(parts)
