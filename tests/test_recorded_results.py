"""What was measured is on record: every row names its commit, and what the documents claim of it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
FILES = sorted(path for path in RESULTS.iterdir() if path.suffix in (".json", ".jsonl"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    return [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_row_names_its_commit_and_machine(path: Path) -> None:
    for row in rows_of(path):
        commit = str(row["commit"]).removesuffix("-dirty")  # said openly where changes were not committed yet
        assert len(commit) >= 7 and set(commit) <= set("0123456789abcdef"), commit
        assert row.get("hardware") or row.get("machine")


def test_wrong_captions_are_found_better_than_by_what_is_usual_at_every_rate() -> None:
    (found,) = rows_of(RESULTS / "audit_detection_rsicd.json")
    assert set(found["rates"]) == {"0.2", "0.4", "0.6", "0.8"}
    for rate, systems in found["rates"].items():
        ours = systems["ours"]
        assert abs(ours["estimated_rate"] - float(rate)) < 0.03
        for name in ("cosine", "self_confidence", "loss_gmm", "loss_gmm_held_out"):
            for measure in ("auroc", "average_precision", "precision_at_true_rate"):
                assert ours[measure] > systems[name][measure], (rate, name, measure)
