"""Tables of the documents on detection and audits, from the JSON files that benchmarks wrote."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pmpguard.files import read_json

SYSTEMS = {
    "pmpguard": "ours", "cosine (percentile)": "cosine", "self-confidence": "self_confidence",
    "loss-GMM": "loss_gmm", "loss-GMM, held out": "loss_gmm_held_out",
}  # fmt: skip
GUESSED = ("cosine", "self_confidence")  # their rate is given to them: they estimate none
MEASURES = {
    "AUROC": "auroc", "AP": "average_precision", "precision": "precision_at_true_rate",
    "estimated rate": "estimated_rate",
}  # fmt: skip
ONE_CAPTION = {
    "AUROC": "auroc", "AP": "average_precision", "precision of the flags": "flags_precision",
    "recall of the flags": "flags_recall", "estimated rate": "estimated_rate",
}  # fmt: skip
FALSE_WORDS = {
    "any": "partly_wrong_captions", "object": "partly_wrong_captions, object",
    "colour": "partly_wrong_captions, colour", "count": "partly_wrong_captions, count",
    "relation": "partly_wrong_captions, relation",
}  # fmt: skip
CLEANED = {
    "the dirty captions": "dirty", "cleaned, `drop`": "cleaned, drop",
    "cleaned, `rematch`": "cleaned, rematch", "the true captions": "true",
}  # fmt: skip
Found = Mapping[str, Any]


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def audit_detection_table(results: Path) -> str:
    """Ours beside what is usual, at every rate; the best of each line in bold."""
    rates = read_json(results / "audit_detection_rsicd.json")["rates"]
    rows = []
    for rate, found in rates.items():
        for label, measure in MEASURES.items():
            told = {name: found[name].get(measure) for name in SYSTEMS.values()}
            if measure == "estimated_rate":
                told |= dict.fromkeys(GUESSED)
            best = max(v for v in told.values() if v is not None) if measure != "estimated_rate" else None
            cells = ["–" if v is None else f"**{v:.3f}**" if v == best else f"{v:.3f}" for v in told.values()]
            rows.append([percent(float(rate)), label, *cells])
    return markdown_table(["noise rate", "", *SYSTEMS], rows)


def audit_quick_table(results: Path) -> str:
    """A quick audit at every level and rate with noise."""
    cases = [case for case in read_json(results / "audit_quick_rsicd.json")["cases"] if case["rate"]]
    rows = [[label, *(f"{case[measure]:.3f}" for case in cases)] for label, measure in MEASURES.items()]
    return markdown_table(["", *map(_case, cases)], rows)


def audit_one_caption_table(results: Path) -> str:
    """A quick audit with one caption an image: mean and standard deviation of the draws."""
    cases = read_json(results / "audit_quick_rsicd_one_caption.json")["cases"]
    rows = []
    for label, measure in ONE_CAPTION.items():
        values = [case[measure] for case in cases]
        rows.append([label, f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"])
    rows.append(["draws whose interval holds the true rate", f"{_covered(cases)} of {len(cases)}"])
    return markdown_table(["", f"{percent(cases[0]['rate'])} mismatched"], rows)


def _covered(cases: Sequence[dict[str, Any]]) -> int:
    return sum(case["interval_low"] <= case["true_rate"] <= case["interval_high"] for case in cases)


def audit_words_table(results: Path) -> str:
    """How well single false words are found, by kind."""
    found = read_json(results / "audit_words.json")
    rows = []
    for label, key in FALSE_WORDS.items():
        one = found[key]
        red = percent(one["precision_of_red"]) if one["precision_of_red"] else "–"
        shown = [f"{one['average_precision']:.2f}", f"{one['auroc']:.2f}", red, percent(one["recall_of_red"])]
        rows.append([label, percent(one["base_rate"]), *shown])
    heads = ["false word", "share of words", "average precision", "AUROC", "red words that are false",
             "false words that are red"]  # fmt: skip
    return markdown_table(heads, rows)


def audit_cleaned_table(results: Path) -> str:
    """mR of the same training on dirty, cleaned and true captions."""
    (found,) = read_json(results / "audit_cleaned_training_rsicd.json")["test_mr"].values()
    return markdown_table(
        ["trained on", "mR"], [[label, f"{found[key]:.1f}"] for label, key in CLEANED.items()]
    )


def first_look_table(results: Path) -> str:
    """Training-free detection on all of RSICD's training split, after one round and after the last."""
    cases = [case for case in read_json(results / "first_look.json")["cases"] if case["rate"]]
    last = max(case["rounds"] for case in cases)

    def row(label: str, rounds: int, measure: str) -> list[str]:
        return [label, *(f"{case[measure]:.3f}" for case in cases if case["rounds"] == rounds)]

    rows = [
        row("AUROC, one round", 1, "auroc"),
        row(f"AUROC, {last} rounds", last, "auroc"),
        row("estimated rate", last, "estimated_rate"),
    ]
    return markdown_table(["captions mismatched", *(_case(c) for c in cases if c["rounds"] == last)], rows)


def percent(share: float) -> str:
    """
    >>> percent(0.2), percent(0.7585)
    ('20 %', '76 %')
    """
    return f"{share:.0%}".replace("%", " %")


def _case(case: Found) -> str:
    return f"{'image level, ' if case['level'] == 'image' else ''}{percent(case['rate'])}"
