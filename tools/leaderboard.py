"""The leaderboard: every line of the recorded tables on one page to sort and filter, with each run behind it.

    python -m tools.leaderboard OUT.html [--results benchmarks/results]

writes it as a page of its own; the documentation holds the same. It asks for nothing outside itself. Without
scripts it is one long table.
"""

from __future__ import annotations

import argparse
import html
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmpguard.config import fingerprint, to_dict
from pmpguard.evaluation.significance import paired_difference
from pmpguard.experiments.rows import ResultRow, Statistic, lines_of, over_seeds, read_rows
from pmpguard.experiments.submission import noise_place, protocol_noise
from pmpguard.files import write_atomic

FILES = (
    "rsicd-light", "rsicd-ablation", "rsicd-one-caption", "rsicd-frozen", "ucm-light", "table1", "table2",
    "table3", "table4", "scenes-ablation", "submissions",
)  # fmt: skip
FILTERS = {
    "dataset": "dataset", "level": "noise level", "rate": "mismatched", "captions": "captions an image",
    "encoders": "encoders", "models": "models trained",
}  # fmt: skip
SHOWN_FIRST = {"dataset": "rsicd", "level": "caption", "rate": "0.4", "captions": "all",
               "encoders": "light, trained"}  # fmt: skip
COLUMNS = {
    "mr": "mR", "i2t_r1": "i2t R@1", "t2i_r1": "t2i R@1", "detection_auroc": "AUROC",
    "detection_estimated_rate": "est. rate", "detection_residual_rate": "residual noise",
    "train_seconds": "seconds", "peak_memory_gb": "GB",
}  # fmt: skip
LIGHT = {"mobilenet-v2+minilm-l6", "efficientnet-lite0+minilm-l6"}
INTRODUCTION = """\
Every line of the recorded tables: one method with one kind and rate of noise, over the seeds it was run with.
The bar is mR, its whisker the standard deviation over seeds. Lines that are told which pairs match are no
competitors. Residual noise is what is mismatched among the pairs that are not flagged. A click on a name
shows settings, commit, noise file and every seed. Differences of less than a whisker are often chance:
[Results](results.md) says which. [Protocol](protocol.md) says how to hand in a row.
"""


@dataclass(frozen=True)
class Entry:
    """One line: what may be filtered by, the means, and the rows they are of."""

    method: str
    dataset: str
    level: str
    rate: float
    captions: str  # "one" or "all" of each training image
    encoders: str  # their class
    models: int
    told: bool
    metrics: dict[str, Statistic]
    rows: tuple[ResultRow, ...]

    @property
    def place(self) -> dict[str, str]:
        """What it is filtered by, as texts."""
        return {name: f"{value:g}" if isinstance(value, float) else str(value)
                for name, value in ((name, getattr(self, name)) for name in FILTERS)}  # fmt: skip


def read_entries(results: Path) -> list[Entry]:
    """All lines, the best first among those that may be compared."""
    entries, seen = [], set[str]()
    for name in FILES:
        path = results / f"{name}.jsonl"
        rows = read_rows(path) if path.is_file() else []
        new = [row for row in rows if fingerprint(row.settings) not in seen]  # tables may share a run
        entries += [entry(line) for line in lines_of(new)]
        seen |= {fingerprint(row.settings) for row in rows}
    groups = ("dataset", "captions", "encoders", "level", "rate")
    return sorted(
        entries, key=lambda e: (*(getattr(e, name) for name in groups), -e.metrics["mr"].mean, e.method)
    )


def entry(rows: Sequence[ResultRow]) -> Entry:
    first = rows[0]
    return Entry(
        first.method, first.dataset, first.level, first.rate,
        "one" if first.settings.get("one_caption") else "all",
        encoder_class(first), round(statistics.fmean(map(models_trained, rows))),
        bool(first.settings.get("oracle")), over_seeds(rows), tuple(rows),
    )  # fmt: skip


def encoder_class(row: ResultRow) -> str:
    """Size of the encoders, and whether they were trained."""
    options = row.settings.get("train", {}).get("model", {}).get("vision_options", {})
    size = "light" if row.encoder in LIGHT else row.encoder
    return f"{size}, {'frozen' if options.get('frozen') else 'trained'}"


def models_trained(row: ResultRow) -> int:
    """How many models a run trained; earlier rows say by which rule a second one was."""
    if "models_trained" in row.metrics:
        return round(row.metrics["models_trained"])
    threshold = row.settings.get("train", {}).get("settings", {}).get("distill_above_rate")
    estimated = row.metrics.get("detection_estimated_rate")
    return 2 if threshold and estimated is not None and estimated >= threshold else 1


def leaderboard(entries: Sequence[Entry]) -> str:
    """The board as one block of HTML, with its style and script; it has no blank line, as Markdown wants."""
    style, script = (
        Path(__file__).with_suffix(f".{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
    )
    runs = json.dumps([_runs(each, entries) for each in entries], ensure_ascii=False).replace("</", "<\\/")
    heads = "".join(
        f'<th scope="col" data-key="{key}"><button type="button">{html.escape(title)}</button></th>'
        + ('<th scope="col" class="bar">± over seeds</th>' if key == "mr" else "")
        for key, title in {"method": "method", **COLUMNS}.items()
    )
    places = "".join(f'<th scope="col" class="place">{title}</th>' for title in FILTERS.values())
    block = [
        '<div id="board">',
        f"<style>{style}</style>",
        f"<form>{''.join(_filter(name, title, entries) for name, title in FILTERS.items())}</form>",
        '<p id="leaderboard-count" role="status"></p>',
        f'<div class="wide"><table class="leaderboard"><thead><tr>{heads}{places}</tr></thead><tbody>',
        *(_row(number, each, entries) for number, each in enumerate(entries)),
        "</tbody></table></div>",
        f'<script type="application/json" id="leaderboard-runs">{runs}</script>',
        f"<script>{script}</script>",
        "</div>",
    ]
    return "\n".join(line for line in "\n".join(block).splitlines() if line.strip()) + "\n"


def _filter(name: str, title: str, entries: Sequence[Entry]) -> str:
    values = sorted({each.place[name] for each in entries})
    usual = SHOWN_FIRST.get(name)
    options = "".join(
        f'<option value="{html.escape(value, quote=True)}"{" data-usual" if value == usual else ""}>'
        f"{html.escape(_text(name, value))}</option>"
        for value in values
    )
    return f'<label>{title} <select name="{name}"><option value="">any</option>{options}</select></label>'


def _text(name: str, value: str) -> str:
    return f"{float(value):.0%}".replace("%", " %") if name == "rate" else value


def _row(number: int, one: Entry, entries: Sequence[Entry]) -> str:
    longest = max(each.metrics["mr"].mean for each in entries if each.dataset == one.dataset) * 1.1
    data = {**one.place, "method": one.method}
    data |= {key: f"{one.metrics[key].mean:.6g}" for key in COLUMNS if key in one.metrics}
    attributes = "".join(f' data-{key}="{html.escape(value, quote=True)}"' for key, value in data.items())
    told = ' <span class="told">told which match</span>' if one.told else ""
    name = f'<button type="button" aria-expanded="false">{html.escape(one.method)}</button>'
    cells = [f'<th scope="row">{name}{told}</th>']
    for key in COLUMNS:
        cells.append(f'<td class="{key}">{_value(key, one.metrics.get(key))}</td>')
        if key == "mr":
            cells.append(f'<td class="bar">{_bar(one.metrics["mr"], longest)}</td>')
    cells += [
        f'<td class="place">{html.escape(_text(name, value))}</td>' for name, value in one.place.items()
    ]
    return f'<tr data-entry="{number}"{attributes}>{"".join(cells)}</tr>'


def _value(key: str, value: Statistic | None) -> str:
    if value is None:
        return "–"
    digits = 3 if key.startswith("detection") else {"train_seconds": 0, "peak_memory_gb": 1}.get(key, 2)
    deviation = "" if value.std is None or key != "mr" else f" ± {value.std:.2f}"
    return f"{value.mean:.{digits}f}{deviation}" + (" ¹" if value.std is None and key == "mr" else "")


def _bar(value: Statistic, longest: float) -> str:
    """A bar as long as the mean, with a whisker of one deviation each way."""
    end = 100 * value.mean / longest
    drawn = f'<rect y="2" height="8" width="{end:.1f}"/>'
    if value.std is not None:
        low, high = (end + sign * 100 * value.std / longest for sign in (-1, 1))
        drawn += f'<path d="M{low:.1f} 6H{high:.1f}M{low:.1f} 3V9M{high:.1f} 3V9"/>'
    return f'<svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


def against_best(one: Entry, entries: Sequence[Entry]) -> str:
    """How a line stands to the best competitor with the same data, noise and encoders, seed by seed."""
    group = [
        each
        for each in entries
        if not each.told and {**each.place, "models": ""} == {**one.place, "models": ""}
    ]
    best = max(group, key=lambda each: each.metrics["mr"].mean, default=one)
    mine, other = ({row.seed: row.metrics["mr"] for row in each.rows} for each in (one, best))
    found = paired_difference(mine, other)
    if best is one or found is None:
        return "the best here" if best is one else f"no seed in common with {best.method}, the best here"
    interval = "" if found.interval is None else " (95 % {:+.2f} to {:+.2f})".format(*found.interval)
    return f"{found.mean:+.2f}{interval} to {best.method}, the best here: {found.reading}"


def _runs(one: Entry, entries: Sequence[Entry]) -> dict[str, Any]:
    """What a click shows: every seed, and the settings they share."""
    listed = {place: sha256 for sha256, place in protocol_noise().items()}

    def noise(row: ResultRow) -> str:
        if row.noise_sha256 or not row.rate:
            return row.noise_sha256 or "none"
        known = listed.get(noise_place(row))
        return f"not recorded; the protocol's is {known}" if known else "drawn; not recorded"

    shared = {name: value for name, value in one.rows[0].settings.items() if name != "noise"}
    shared["train"] = {name: value for name, value in shared["train"].items() if name != "seed"}
    runs = [
        {
            "seed": row.seed, "mR": f"{row.metrics['mr']:.2f}",
            "95 % over test images": f"{row.metrics['mr_low']:.2f} to {row.metrics['mr_high']:.2f}"
            if "mr_low" in row.metrics else "not recorded",
            "commit": row.commit, "noise file, SHA-256": noise(row), "settings' fingerprint": row.fingerprint,
            "hardware": row.hardware, "time": row.time,
        }
        for row in one.rows
    ]  # fmt: skip
    known = "all settings" if one.rows[0].settings_known == "all" else "the settings that were given"
    return {"against": against_best(one, entries), "runs": runs, "known": known, "settings": to_dict(shared)}


def documentation_page(results: Path) -> str:
    """The page of the documentation, in Markdown."""
    head = "---\nhide: [toc]\nsearch:\n  exclude: true\n---\n"
    return f"{head}# Leaderboard\n\n{INTRODUCTION}\n{leaderboard(read_entries(results))}"


def standalone_page(results: Path) -> str:
    """A page of its own, in HTML."""
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Leaderboard</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head>'
    )
    return f"{head}<body><h1>Leaderboard</h1>{leaderboard(read_entries(results))}</body></html>\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    write_atomic(options.out, standalone_page(options.results))


if __name__ == "__main__":
    main()
