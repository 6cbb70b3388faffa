"""Tables on the benchmark itself: what is chance, natural noise, what of the paper was never measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pmpguard.experiments.paper_reference import paper_rows
from pmpguard.experiments.rows import ResultRow, append_row
from tools.docs_benchmark import chance_table, natural_table, part_chance_table, unmeasured_table


def row(method: str, seed: int, mr: float, rate: float = 0.4) -> ResultRow:
    return ResultRow("rsicd", method, "caption", rate, seed, "a+b", "val", {"mr": mr})


def test_ours_stands_against_the_best_other_and_the_oracle_seed_by_seed(tmp_path: Path) -> None:
    file, lines = tmp_path / "t.jsonl", (("InfoNCE", "infonce"), ("CCL", "ccl"), ("Ours", "ours"))
    for seed, mr in enumerate((20.0, 21.0, 22.0)):
        append_row(file, row("ours", seed, mr))
        append_row(file, row("ccl", seed, mr - 3 + 0.1 * seed))
        append_row(file, row("infonce", seed, 10.0))
        append_row(file, row("oracle", seed, mr + seed - 1))
        append_row(file, row("a line the table does not show", seed, 99.0))
    append_row(file, row("ours", 0, 9.0, rate=0.8))
    append_row(file, row("infonce", 0, 5.0, rate=0.8))
    text = chance_table(tmp_path, "t", lines, "ours").splitlines()
    assert (
        text[2] == "| 40 % | CCL | +2.90 (+2.65 to +3.15) | ahead | +0.00 (-2.48 to +2.48) | within chance |"
    )
    assert text[3] == "| 80 % | InfoNCE | +4.00 | one seed | – | no row yet |"


def test_a_part_stands_against_one_model_on_validation(tmp_path: Path) -> None:
    for seed in range(3):
        for method, rate, mr in (("pmpguard", 0.4, 20.0), ("pmpguard", 0.8, 15.0), ("one model", 0.8, 14.0),
                                 ("gated", 0.4, 19.0), ("gated", 0.8, 10.0)):  # fmt: skip
            metrics = {"mr": 0.0, "val_mr": mr + 0.1 * seed}
            own = replace(row(method, seed, 0, rate), metrics=metrics)
            append_row(tmp_path / "rsicd-ablation.jsonl", own)
    lines = (("ours", "pmpguard"), ("one", "one model"), ("with gates", "gated"))
    assert part_chance_table(tmp_path, lines, (0.4, 0.8)).splitlines()[2:] == [
        "| a second model | none is trained | +1.00 (+1.00 to +1.00), ahead |",
        "| with gates | -1.00 (-1.00 to -1.00), behind | -4.00 (-4.00 to -4.00), behind |",
    ]


def test_every_judge_of_natural_noise_has_its_line(tmp_path: Path) -> None:
    count = {"wrong": 20, "doubtful": 5, "right": 10, "unread": 15}
    full = {"first_50": count, "precision_at_50": [0.4, 0.7], "auroc_of_known": 0.91}
    read = {"first_50": {**count, "unread": 0}, "precision_at_50": [0.4, 0.4]}
    found = {"datasets": {"ucm": {"judges": {"cosine": full, "recorded": read}}}}
    (tmp_path / "natural_noise.json").write_text(json.dumps(found))
    assert natural_table(tmp_path).splitlines()[2:] == [
        "| UCM-Captions | cosine | 0.40 to 0.70 | 20 | 5 | 10 | 15 | 0.910 |",
        "| UCM-Captions | recorded | 0.40 | 20 | 5 | 10 | 0 | – |",
    ]


def test_printed_rows_that_were_never_measured_are_counted(tmp_path: Path) -> None:
    before = unmeasured_table(tmp_path)
    assert sum(int(line.split("|")[3]) for line in before.splitlines()[2:]) == len(paper_rows())
    assert "| 1, RSITMD | Swin-T + BERT | 30 | 0 | RSITMD; weights" in before
    append_row(tmp_path / "table1.jsonl", row("pmpguard", 0, 20.0))
    append_row(tmp_path / "table1.jsonl", row("pmpguard", 1, 20.0))
    assert "| 1, RSICD | Swin-T + BERT | 30 | 1 |" in unmeasured_table(tmp_path)


@pytest.mark.parametrize("table", [1, 2, 3, 4])
def test_the_command_of_every_table_is_a_recipe(table: int, tmp_path: Path) -> None:
    from pmpguard.experiments.recipe_names import find_recipe

    assert f"`pmpguard table table{table} --dataset" in unmeasured_table(tmp_path)
    assert find_recipe(f"table{table}").is_file()
