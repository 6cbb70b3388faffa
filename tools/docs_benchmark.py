"""Tables of the documents on the benchmark itself: what is chance, natural noise, what was never measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from pmpguard.evaluation.significance import PairedDifference, paired_difference
from pmpguard.experiments.paper_reference import paper_rows
from pmpguard.experiments.rows import read_rows
from pmpguard.files import read_json
from tools.docs_audit import markdown_table, percent

# Of each of the paper's tables: its encoders, what a measurement needs, and how much disk that takes.
NEEDS = {
    1: ("Swin-T + BERT", "weights `swin-t` and `bert-base`", 0.6),
    2: ("GeoRSCLIP ViT-B/32", "weights `RS5M_ViT-B-32.pt`, converted", 1.2),
    3: ("GeoRSCLIP ViT-B/32", "the same weights", 1.2),
    4: ("Swin-T + BERT", "weights `swin-t` and `bert-base`", 0.6),
}
GIGABYTES = {"RSICD": 0.6, "RSITMD": 0.5, "RS5M": 500.0}
CHECKPOINTS = 4.0  # gigabytes of a run that is under way
NATURAL = {"ucm": "UCM-Captions", "rsicd": "RSICD"}
Lines = Sequence[tuple[str, str]]


def by_seed(
    results: Path, name: str, level: str = "caption", metric: str = "mr"
) -> dict[tuple[str, float], dict[int, float]]:
    """A metric of each recorded line at each rate, seed by seed, where it has it."""
    found: dict[tuple[str, float], dict[int, float]] = {}
    for row in read_rows(results / f"{name}.jsonl"):
        if row.level == level and metric in row.metrics:
            found.setdefault((row.method, row.rate), {})[row.seed] = row.metrics[metric]
    return found


def chance_table(results: Path, name: str, lines: Lines, ours: str, level: str = "caption") -> str:
    """Ours seed by seed against the best other method and against the oracle, at every rate."""
    label_of = {method: label for label, method in lines if not method.startswith("oracle")}
    found, cells = by_seed(results, name, level), []
    for rate in sorted({rate for _, rate in found}):
        own, told = found.get((ours, rate)), found.get(("oracle", rate))
        others = {method: each for (method, at), each in found.items()
                  if at == rate and method in label_of and method != ours}  # fmt: skip
        if own is None or not others:
            continue
        best = max(others, key=lambda method: fmean(others[method].values()))
        cells.append(
            [
                percent(rate), label_of[best], *_said(paired_difference(own, others[best])),
                *(["–", "no row yet"] if told is None else _said(paired_difference(own, told))),
            ]
        )  # fmt: skip
    heads = ["mismatch rate", "best other method", "PMPGuard to it", "", "PMPGuard to the oracle", ""]
    return markdown_table(heads, cells)


def part_chance_table(results: Path, lines: Lines, rates: Sequence[float]) -> str:
    """Each changed part on validation, seed by seed against the one model it is a change of."""
    found, cells = by_seed(results, "rsicd-ablation", metric="val_mr"), []
    changed = [(label, method) for label, method in lines if method not in ("pmpguard", "one model")]
    for label, method in (("a second model", "pmpguard"), *changed):
        line = [label]
        for rate in rates:
            base = "one model" if ("one model", rate) in found else "pmpguard"
            told = paired_difference(found.get((method, rate), {}), found.get((base, rate), {}))
            line.append("none is trained" if method == base else ", ".join(_said(told)))
        cells.append(line)
    return markdown_table(["on validation", *map(percent, rates)], cells)


def _said(found: PairedDifference | None) -> list[str]:
    """
    >>> _said(PairedDifference(1.5, (0.5, 2.5), 3)), _said(PairedDifference(1.5, None, 1))
    (['+1.50 (+0.50 to +2.50)', 'ahead'], ['+1.50', 'one seed'])
    >>> _said(PairedDifference(1.5, (-8.5, 11.5), 2))
    ['+1.50 (-8.50 to +11.50)', 'within chance, two seeds']
    """
    if found is None:
        return ["–", "no seed in common"]
    interval = "" if found.interval is None else " ({:+.2f} to {:+.2f})".format(*found.interval)
    return [f"{found.mean:+.2f}{interval}", f"{found.reading}{', two seeds' * (found.seeds == 2)}"]


def natural_table(results: Path) -> str:
    """Every judge on two datasets as published: what is known of its first fifty pairs."""
    rows = []
    for name, found in read_json(results / "natural_noise.json")["datasets"].items():
        for judge, scored in found["judges"].items():
            count, (low, high) = scored["first_50"], scored["precision_at_50"]
            precision = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
            auroc = f"{scored['auroc_of_known']:.3f}" if "auroc_of_known" in scored else "–"
            numbers = [str(count[verdict]) for verdict in ("wrong", "doubtful", "right", "unread")]
            rows.append([NATURAL[name], judge, precision, *numbers, auroc])
    heads = ["dataset", "judge", "precision at 50", "wrong", "doubtful", "right", "unread", "AUROC of known"]
    return markdown_table(heads, rows)


def unmeasured_table(results: Path) -> str:
    """The paper's printed rows of each table and dataset, and what measuring them takes."""
    rows = []
    for table, (encoders, weights, size) in NEEDS.items():
        path = results / f"table{table}.jsonl"
        done = read_rows(path) if path.is_file() else []
        for dataset in dict.fromkeys(row.dataset for row in paper_rows() if row.table == table):
            printed = [row for row in paper_rows() if (row.table, row.dataset) == (table, dataset)]
            measured = {(row.method, row.rate) for row in done if row.dataset.lower() == dataset.lower()}
            needs = weights if dataset == "RSICD" else f"{dataset}; {weights}"
            space = GIGABYTES[dataset] + size + CHECKPOINTS
            command = f"`pmpguard table table{table} --dataset data/{dataset.lower()}`"
            numbers = [str(len(printed)), str(len(measured))]
            rows.append([f"{table}, {dataset}", encoders, *numbers, needs, command, f"{space:.0f} GB"])
    heads = ["table", "encoders", "rows printed", "measured", "not at hand", "command", "disk"]
    return markdown_table(heads, rows)
