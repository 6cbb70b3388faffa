"""Tables of README and documents, rendered from recorded rows between markers.

    python -m tools.docs_numbers            # writes what has changed
    python -m tools.docs_numbers --check    # names the pages that differ, exit code 1

A page asks for a table by `<!-- results: NAME -->`; it stands between that line and `<!-- /results -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pmpguard.errors import DataError
from pmpguard.evaluation.recall import recall_names
from pmpguard.experiments.paper_reference import find_paper_row
from pmpguard.experiments.rows import Statistic, Summary, read_rows, summarise
from pmpguard.files import read_json, write_atomic
from tools.docs_audit import (
    audit_cleaned_table,
    audit_detection_table,
    audit_one_caption_table,
    audit_quick_table,
    audit_words_table,
    first_look_table,
    markdown_table,
    percent,
)
from tools.docs_benchmark import by_seed, chance_table, natural_table, part_chance_table, unmeasured_table
from tools.docs_search import codecs_table, default_head_table, large_table, load_table, stores_table
from tools.docs_speed import convolution_table, judging_table, scoring_table, step_table

OURS = "PMPGuard, this package"
HEADLINE = (
    ("InfoNCE", "infonce"), ("CCL", "ccl"), ("CCL, learning rate tuned at 80 %", "ccl tuned at 0.8"),
    ("L2RM", "l2rm"), (OURS, "pmpguard"),
)  # fmt: skip
LIGHT = (
    ("InfoNCE", "infonce"), ("VSE++", "vse"), ("NAAF", "naaf"), ("CCL", "ccl"),
    ("CCL, learning rate tuned at 80 %", "ccl tuned at 0.8"), ("L2RM", "l2rm"), ("RRSITR", "rrsitr"),
    ("DECL", "decl"), ("BiCro", "bicro"), ("NCR", "ncr"), ("CRCL", "crcl"), ("NPC", "npc"), ("IN2R", "in2r"),
    ("S-CLIP", "sclip"), ("OSA", "osa"), ("PIR", "pir"), ("DOVE", "dove"), ("HarMA", "harma"),
    ("SWAN", "swan"), (OURS, "pmpguard"),
)  # fmt: skip
ONE_MODEL = ("the same, always one model", "pmpguard, one model")
ORACLE = ("oracle: the same training, told which pairs are right", "oracle")
ORACLES = (ORACLE, ("oracle, two models", "oracle, two models"))
FROZEN = (
    *((name, method) for name, method in LIGHT if method not in ("ccl tuned at 0.8", "harma", "pmpguard")),
    (OURS, "pmpguard"),
    ORACLE,
)
ABLATION = (
    ("`pmpguard` of the table", "pmpguard"), ("one model", "one model"),
    ("with cross-gated attention", "with CGA"), ("without awareness attention", "w/o PNAA"),
    ("without suppression", "w/o suppression"), ("with rematching", "with rematching"),
    ("as printed (preset `paper`)", "as printed"), ("oracle, one model told the labels", "oracle"),
)  # fmt: skip
SCENES_ABLATION = (
    ("InfoNCE", "infonce"), ("PMPGuard without gates and rematching", "pmpguard"),
    ("with cross-gated attention", "with cross-gated attention"), ("with rematching", "with rematching"),
    ("every pair once an epoch", "every pair once"),
    ("without awareness attention", "without awareness attention"),
    ("without suppression", "without suppression"), ("oracle: told which pairs match", "oracle"),
)  # fmt: skip
ONE_CAPTION = (
    ("InfoNCE", "infonce"), ("CCL", "ccl"), ("L2RM", "l2rm"), ("RRSITR", "rrsitr"), ("BiCro", "bicro"),
    ("DECL", "decl"), ("NCR", "ncr"), ("CRCL", "crcl"), ("NPC", "npc"), ("IN2R", "in2r"), ("S-CLIP", "sclip"),
    (OURS, "pmpguard, a fifth kept back"), *ORACLES,
)  # fmt: skip
DETECTED = (
    ("mismatched pairs found by PMPGuard (AUROC)", "detection_auroc"),
    ("mismatch rate estimated by it", "detection_estimated_rate"),
    ("captions it proposes: of the image's scene class", "rematch_same_class"),
)
DETECTION = ("residual_rate", "right_flagged_rate", "auroc", "estimated_rate")
RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
FEW_RATES = (0.0, 0.4, 0.8)
PAIRS = (1_000_000, 5_000_000, 100_000_000)
CASES = {
    "scenes": "scenes, tiny encoders trained whole",
    "rsicd": "RSICD's first images, frozen light encoders",
}
Lines = Sequence[tuple[str, str]]


class Recorded:
    """The summaries of one file of rows, by method and mismatch rate; none where there is no file yet."""

    def __init__(self, results: Path, name: str, level: str = "caption") -> None:
        path = results / f"{name}.jsonl"
        summaries = (
            [each for each in summarise(read_rows(path)) if each.level == level] if path.is_file() else []
        )
        self.by_line: dict[tuple[str, float], Summary] = {}
        for each in summaries:
            if self.by_line.setdefault((each.method, each.rate), each) is not each:
                raise DataError(
                    f"{path}: rows of {each.method!r} at {each.rate:g} differ in their settings",
                    fix=f"keep one line's rows, the others go to {name}-earlier.jsonl",
                )

    def measured(self, lines: Lines) -> Lines:
        """The lines that have a row."""
        return [(label, method) for label, method in lines if any(name == method for name, _ in self.by_line)]

    def metric(self, method: str, rate: float, name: str) -> Statistic | None:
        summary = self.by_line.get((method, rate))
        return None if summary is None else summary.metrics.get(name)

    def cell(self, method: str, rate: float) -> str:
        return with_deviation(self.metric(method, rate, "mr"))

    def cells(self, lines: Lines, rates: Sequence[float]) -> list[list[str]]:
        """mR of every line that has a row, ours in bold."""
        rows = [
            [label, *(self.cell(method, rate) for rate in rates)] for label, method in self.measured(lines)
        ]
        return [[f"**{cell}**" for cell in row] if row[0] == OURS else row for row in rows]

    def one_model(self, rates: Sequence[float]) -> list[str]:
        """mR of one model; where no second was trained, pmpguard's rows are that already."""
        label, one = ONE_MODEL
        return [
            label,
            *(self.cell(one if (one, rate) in self.by_line else "pmpguard", rate) for rate in rates),
        ]

    def detected(self, method: str, rates: Sequence[float], count: int) -> list[list[str]]:
        """How true the detection of one method was, the first `count` figures."""
        rows = []
        for label, name in DETECTED[:count]:
            shown = [rate for rate in rates if rate or name == "detection_estimated_rate"]
            rows.append([label, *(self.mean(method, rate, name) if rate in shown else "–" for rate in rates)])
        return rows

    def mean(self, method: str, rate: float, name: str, digits: int = 3) -> str:
        found = self.metric(method, rate, name)
        return "–" if found is None else f"{found.mean:.{digits}f}"


def with_deviation(value: Statistic | None) -> str:
    """
    >>> with_deviation(Statistic(26.2, 0.2, 3)), with_deviation(Statistic(26.718, None, 1))
    ('26.20 ± 0.20', '26.72 ¹')
    """
    if value is None:
        return "–"
    return f"{value.mean:.2f} ¹" if value.std is None else f"{value.mean:.2f} ± {value.std:.2f}"


def light_table(results: Path, lines: Lines, *, full: bool) -> str:
    """mR on RSICD at every mismatch rate, what is printed in the paper, and how true detection was."""
    found = Recorded(results, "rsicd-light")
    rows = found.cells(lines, RATES)
    if full:
        rows.append(found.one_model(RATES))
    rows += found.cells(ORACLES if full else (ORACLE,), RATES)
    paper = {row.rate: row.mr for row in find_paper_row(1, "RSICD") if row.method == "PMPGuard"}
    rows.append(["PMPGuard, printed in the paper", *(f"{paper[rate]:.2f}" for rate in RATES)])
    rows += found.detected("pmpguard", RATES, 3 if full else 2)
    return markdown_table(["mismatch rate", *map(percent, RATES)], rows)


def ucm_table(results: Path) -> str:
    """mR on UCM-Captions, where rows are recorded."""
    found = Recorded(results, "ucm-light")
    rows = [*found.cells((*LIGHT, *ORACLES), FEW_RATES), *found.detected("pmpguard", FEW_RATES, 2)]
    none = [["no row yet", *("–" for _ in FEW_RATES)]]
    return markdown_table(["mismatch rate", *map(percent, FEW_RATES)], rows if found.by_line else none)


def one_caption_table(results: Path) -> str:
    """mR on RSICD with one caption per image, and how true detection was."""
    found = Recorded(results, "rsicd-one-caption")
    rows = [*found.cells(ONE_CAPTION, RATES), *found.detected(dict(ONE_CAPTION)[OURS], RATES, 2)]
    return markdown_table(["mismatch rate", *map(percent, RATES)], rows)


def detection_table(results: Path, name: str, lines: Lines) -> str:
    """What each method that judges pairs leaves among those it keeps, and how it ranks them."""
    found = Recorded(results, name)
    rows = []
    for rate in (0.4, 0.8):
        for label, method in found.measured(lines):
            if found.metric(method, rate, "detection_auroc") is None:
                continue
            residual = found.metric(method, rate, "detection_residual_rate")
            spread = "" if residual is None or residual.std is None else f" ± {residual.std:.3f}"
            told = [found.mean(method, rate, f"detection_{each}") for each in DETECTION]
            told[0] += spread
            rows.append([percent(rate), label, *told, found.mean(method, rate, "train_seconds", 0)])
    heads = ["mismatch rate", "method", "residual noise", "right pairs flagged", "AUROC", "estimated rate"]
    return markdown_table([*heads, "seconds"], rows)


def scenes_ablation_table(results: Path) -> str:
    """mR on synthetic scenes with one part changed at a time, and what the training took."""
    found, rates = Recorded(results, "scenes-ablation"), (0.4, 0.8)
    rows = []
    for label, method in SCENES_ABLATION:
        slowest = max(rate for rate in rates if (method, rate) in found.by_line)
        seconds = found.mean(method, slowest, "train_seconds", 0)
        rows.append([label, *(found.cell(method, rate) for rate in rates), seconds])
    heads = ["", "mR at 40 %", "mR at 80 %", "seconds of training (at 80 %; ¹ at 40 %)"]
    return markdown_table(heads, rows)


def image_level_table(results: Path) -> str:
    """mR on RSICD where all captions of an image are mismatched together, and how true detection was."""
    found = Recorded(results, "rsicd-light", level="image")
    rates = [rate for rate in RATES if ("pmpguard", rate) in found.by_line]
    rows = [*found.cells(LIGHT, rates), found.one_model(rates), *found.cells(ORACLES, rates)]
    rows += found.detected("pmpguard", rates, 2)
    seeds = by_seed(results, "rsicd-light", "image", "detection_estimated_rate")
    told = [", ".join(f"{seeds['pmpguard', rate][seed]:.3f}" for seed in sorted(seeds["pmpguard", rate]))
            for rate in rates]  # fmt: skip
    rows.append(["by seed", *told])
    return markdown_table(["mismatch rate", *map(percent, rates)], rows)


def frozen_table(results: Path) -> str:
    """mR over frozen encoders; the best that is not told the labels in bold."""
    found = Recorded(results, "rsicd-frozen")
    lines, best = found.measured(FROZEN), {}
    for rate in FEW_RATES:
        scored = {method: found.metric(method, rate, "mr") for _, method in lines if method != "oracle"}
        best[rate] = max((value.mean, method) for method, value in scored.items() if value is not None)[1]
    rows = [
        [label, *(f"**{found.cell(method, rate)}**" if best[rate] == method else found.cell(method, rate)
                  for rate in FEW_RATES)]
        for label, method in lines
    ]  # fmt: skip
    return markdown_table(["mismatch rate", *map(str, FEW_RATES)], rows)


def ablation_table(results: Path) -> str:
    """mR with one part changed at a time, in brackets on validation."""
    found = Recorded(results, "rsicd-ablation")
    rows = []
    for label, method in ABLATION:
        cells = []
        for rate in FEW_RATES:
            known = (method, rate) in found.by_line
            value = f"{found.cell(method, rate)} ({found.mean(method, rate, 'val_mr', 2)})"
            cells.append(value if known else "the same")
        rows.append([label, *cells])
    return markdown_table(["", "0", "40 % mismatched", "80 % mismatched"], rows)


def demo_table(results: Path) -> str:
    """Both trainings of the demo, seed by seed."""
    rows = {(row.method, row.rate, row.seed): row.metrics for row in read_rows(results / "demo_seeds.jsonl")}
    lines = []
    for method, rate, seed in sorted(rows):
        if method == "pmpguard":
            ours, plain = rows[method, rate, seed], rows["infonce", rate, seed]
            names = ("detection_auroc", "detection_estimated_rate", "rematch_same_class")
            shares = [f"{ours[name]:.3f}" for name in names]
            lines.append([str(rate), str(seed), f"{plain['mr']:.2f}", f"{ours['mr']:.2f}", *shares])
    heads = ["mismatch rate", "seed", "InfoNCE mR", "PMPGuard mR", "AUROC of detection", "estimated rate",
             "proposals of the right class"]  # fmt: skip
    return markdown_table(heads, lines)


def mteb_table(results: Path) -> str:
    """Recalls by MTEB and by our evaluator, and where ties leave room between them."""
    lines = []
    for name, found in read_json(results / "mteb.json")["datasets"].items():
        for key in recall_names():
            row = found["recalls"][key]
            low, high = f"{row['lost']:.2f}", f"{row['won']:.2f}"
            bounds = low if low == high else f"{low} to {high}"
            lines.append([name, key, f"{row['mteb']:.2f}", f"{row['ours']:.2f}", bounds])
    heads = ["dataset", "recall", "MTEB", "our evaluation", "ties lost to ties won"]
    return markdown_table(heads, lines)


def memory_table(results: Path) -> str:
    """Peak memory of commands as measured, and after "≈" extrapolated along a line."""
    measured = read_json(results / "memory_scale.json")["commands"]
    rows = []
    for command in ("stats", "check", "embed", "train", "audit"):
        if command not in measured:
            continue
        few, many, growth = (measured[command][name] for name in ("few", "many", "bytes_a_further_pair"))
        peaks = [f"{run['pairs']:,}: {run['peak_bytes'] / 1e9:.2f} GB" for run in (few, many)]
        told = {pairs: "" if pairs == many["pairs"] else "≈ " for pairs in PAIRS}  # not run
        further = [
            f"{told[pairs]}{(many['peak_bytes'] + growth * (pairs - many['pairs'])) / 1e9:,.1f} GB"
            for pairs in PAIRS
        ]
        seconds = f"{told[10**6]}{many['processor_seconds'] / many['pairs'] * 1e6:,.0f} s"
        rows.append([command, *peaks, f"{growth:,}", *further, seconds])
    heads = ["command", "few pairs", "many pairs", "bytes a further pair",
             *(f"{pairs // 10**6} million" for pairs in PAIRS), "processor time a million"]  # fmt: skip
    return markdown_table(heads, rows)


def shard_table(results: Path) -> str:
    """Random reads of few and of many shards."""
    found = read_json(results / "shard_reading.json")
    rows = [
        ["a read among 200 shards", f"{found['microseconds_a_read_of_200_shards']:.0f} µs"],
        [f"a read among {found['shards']:,} shards", f"{found['microseconds_a_read_of_all_shards']:.0f} µs"],
        [
            "ratio, by the clock and by processor time",
            f"{found['ratio']}, {found['ratio_of_processor_time']}",
        ],
        ["first reading of all shards, once", f"{found['first_reading_seconds']:.0f} s"],
        ["the same by a second process", f"{found['opened_by_a_second_process_seconds']:.1f} s"],
        ["positions on disk", f"{found['bytes_of_positions_a_member']} bytes a member"],
    ]
    return markdown_table(["", "measured"], rows)


def detection_cost_table(results: Path) -> str:
    """What a look at the training set costs of an epoch, and what it finds."""
    cases = read_json(results / "detection_cost.json")["cases"]
    rows = []
    for case, name in CASES.items():
        for look in ("anew", "steps") if case in cases else ():
            runs = [run[look] for run in cases[case]["runs"]]
            share, auroc = (
                sum(run[each] for run in runs) / len(runs) for each in ("share_of_an_epoch", "auroc")
            )
            rows.append([name, f"{cases[case]['pairs']:,}", look, f"{share:.1%}", f"{auroc:.4f}"])
    return markdown_table(["pairs", "number", "`look`", "of an epoch's processor time", "AUROC"], rows)


TABLES: dict[str, Callable[[Path], str]] = {
    "rsicd-light headline": partial(light_table, lines=HEADLINE, full=False),
    "rsicd-light mr": partial(light_table, lines=LIGHT, full=True),
    "rsicd-light chance": partial(chance_table, name="rsicd-light", lines=LIGHT, ours="pmpguard"),
    "rsicd-light detection": partial(detection_table, name="rsicd-light", lines=(*LIGHT, ONE_MODEL)),
    "rsicd-light image level": image_level_table,
    "rsicd-light image level chance": partial(
        chance_table, name="rsicd-light", lines=LIGHT, ours="pmpguard", level="image"
    ),
    "ucm-light mr": ucm_table,
    "rsicd-frozen mr": frozen_table,
    "rsicd-frozen chance": partial(chance_table, name="rsicd-frozen", lines=FROZEN, ours="pmpguard"),
    "rsicd-frozen detection": partial(detection_table, name="rsicd-frozen", lines=FROZEN),
    "rsicd-ablation mr": ablation_table,
    "rsicd-ablation chance": partial(part_chance_table, lines=ABLATION, rates=FEW_RATES),
    "rsicd-one-caption mr": one_caption_table,
    "rsicd-one-caption chance": partial(
        chance_table, name="rsicd-one-caption", lines=ONE_CAPTION, ours=dict(ONE_CAPTION)[OURS]
    ),
    "scenes-ablation mr": scenes_ablation_table,
    "demo seeds": demo_table,
    "audit detection": audit_detection_table,
    "audit quick": audit_quick_table,
    "audit quick one caption": audit_one_caption_table,
    "audit words": audit_words_table,
    "audit cleaned": audit_cleaned_table,
    "first look": first_look_table,
    "paper unmeasured": unmeasured_table,
    "natural noise": natural_table,
    "mteb": mteb_table,
    "search codecs": codecs_table,
    "search large": large_table,
    "search load": load_table,
    "detection scale": judging_table,
    "search stores": stores_table,
    "shard-reading": shard_table,
    "memory-scale": memory_table,
    "detection-cost": detection_cost_table,
    "default head": default_head_table,
    "scoring gpu": scoring_table,
    "convolutions gpu": convolution_table,
    "step gpu": step_table,
}
BLOCK = re.compile(r"(<!-- results: ([^\n]+?) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)


def rendered(page: str, results: Path, name: str = "page") -> str:
    """The page with every table between markers as the recorded rows say."""
    if len(BLOCK.findall(page)) != page.count("<!-- results:"):
        raise DataError(f"{name}: a results marker is not closed", fix="end the table by <!-- /results -->")

    def table(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise DataError(f"{name}: no table {match[2]!r}", fix=f"known: {', '.join(TABLES)}")
        return f"{match[1]}{TABLES[match[2]](results)}\n{match[4]}"

    return BLOCK.sub(table, page)


def main(arguments: Sequence[str]) -> int:
    """Render README.md and docs/*.md of the checkout one stands in."""
    differing = []
    for path in (Path("README.md"), *sorted(Path("docs").glob("*.md"))):
        page = path.read_text(encoding="utf-8")
        text = rendered(page, Path("benchmarks/results"), str(path))
        if text != page:
            differing.append(str(path))
            if "--check" not in arguments:
                write_atomic(path, text)
    print("\n".join(differing) or "all pages are as their files say")
    return int("--check" in arguments and bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
