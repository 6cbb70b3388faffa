"""What the running text of README and docs/results.md claims in figures is what the recorded rows say."""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path
from statistics import mean

import pytest

from pmpguard.experiments.rows import read_rows
from pmpguard.files import read_json

ROOT = Path(__file__).parents[1]
RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
Means = dict[tuple[str, float], float]


def plain(page: str) -> str:
    """A page as one line without emphasis."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("**", "")
    return re.sub(r"\s+", " ", text)


def means(name: str, metric: str = "mr") -> Means:
    found: dict[tuple[str, float], list[float]] = {}
    for row in read_rows(ROOT / "benchmarks" / "results" / f"{name}.jsonl"):
        if row.level == "caption" and metric in row.metrics:
            found.setdefault((row.method, row.rate), []).append(row.metrics[metric])
    return {key: mean(values) for key, values in found.items()}


def bound(value: float) -> str:
    """Rounded up to three digits."""
    return f"{ceil(value * 1000) / 1000:.3f}"


@pytest.fixture(scope="module")
def results() -> str:
    return plain("docs/results.md")


def test_what_is_kept_at_80_percent(results: str) -> None:
    mr = means("rsicd-light")
    ours, plain_, told = (mr[name, 0.8] / mr[name, 0.0] for name in ("pmpguard", "infonce", "oracle"))
    said = f"it keeps {ours:.1%} of its clean mR, InfoNCE {plain_:.0%}, the oracle {told:.0%}"
    assert said.replace("%", " %") in results


def test_the_distance_to_the_oracle_and_of_the_estimated_rate(results: str) -> None:
    mr, estimated = means("rsicd-light"), "detection_estimated_rate"
    worst = max(mr["oracle", rate] - mr["pmpguard", rate] for rate in RATES)
    assert f"within {worst:.2f} of the oracle at every rate" in results
    rows = read_rows(ROOT / "benchmarks" / "results" / "rsicd-light.jsonl")
    ours = [row for row in rows if row.method == "pmpguard" and row.level == "caption"]
    assert len(ours) == 15
    worst = max(abs(row.metrics[estimated] - row.rate) for row in ours)
    assert f"within {bound(worst)} of the truth" in results


def test_the_strongest_baselines(results: str) -> None:
    mr = means("rsicd-light")
    behind = [mr["pmpguard", 0.4] - mr[name, 0.4] for name in ("rrsitr", "l2rm")]
    assert f"RRSITR and L2RM, {behind[0]:.1f} and {behind[1]:.1f} behind" in results
    assert f"a tenth of the learning rate ({mr['ccl tuned at 0.8', 0.8]:.1f})" in results


def test_one_caption_per_image(results: str) -> None:
    mr = means("rsicd-one-caption")
    line = "pmpguard, a fifth kept back"
    assert f"PMPGuard is {mr['oracle', 0.8] - mr[line, 0.8]:.1f} below the oracle there" in results
    baselines = {name for name, _ in mr} - {line, "oracle", "pmpguard", "oracle, two models"}
    assert len(baselines) >= 6 and all(mr[name, 0.8] < 5 for name in baselines)
    rates = means("rsicd-one-caption", "detection_estimated_rate")
    worst = max(abs(value - rate) for (name, rate), value in rates.items() if name == line)
    assert f"Its estimated rate is within {bound(worst)}" in results


def test_the_clean_row_against_the_paper(results: str) -> None:
    i2t, t2i = (means("rsicd-light", name)["pmpguard", 0.0] for name in ("i2t_r1", "t2i_r1"))
    assert f"({i2t:.2f} and {t2i:.2f} against 12.56 and 9.76)" in results


def test_frozen_encoders_are_no_win_everywhere(results: str) -> None:
    mr = means("rsicd-frozen")
    assert f"The oracle is {mr['oracle', 0.8] - mr['pmpguard', 0.8]:.1f} above it" in results
    assert max((value, name) for (name, rate), value in mr.items() if not rate)[1] == "dove"
    assert "PMPGuard is not the best everywhere" in results
    assert "PMPGuard is not the best everywhere" in plain("README.md")


def test_a_judge_from_outside() -> None:
    rows = read_json(ROOT / "benchmarks" / "results" / "outside_judge_rsicd.json")["rows"]
    auroc = {kind: [row["auroc"] for row in rows if row["judge"] == kind] for kind in ("none", "clean pairs")}
    alone, heard = (mean(values) for values in auroc.values())
    assert len(auroc["none"]) == 3
    assert f"raises AUROC from {alone:.3f} to {heard:.3f} (means of three seeds)" in plain("docs/audit.md")
