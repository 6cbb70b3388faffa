"""Submitted rows: what does not hold together is named; a run gives a row again, or how far off it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pmpguard.cli.main import main
from pmpguard.config import from_dict
from pmpguard.experiments.rows import ResultRow, append_row, row_fingerprint
from pmpguard.experiments.run import ExperimentConfig, run_experiment
from pmpguard.experiments.submission import check_submission, compare, protocol_noise, row_problems

SETTINGS = {
    "scenes": 60, "noise": {"rate": 0.4},
    "train": {
        "method": "infonce", "epochs": 1, "batch_size": 40, "device": "cpu", "precision": "fp32", "ema": 0.0,
        "model": {"vision": "tiny", "text": "tiny", "dim": 32, "image_size": 64, "max_tokens": 24},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> ResultRow:
    torch.set_num_threads(1)
    config = from_dict(ExperimentConfig, SETTINGS)
    return run_experiment(config, tmp_path_factory.mktemp("run") / "a").row


def changed(row: ResultRow, **settings: Any) -> ResultRow:
    """With other settings and their true fingerprint."""
    both = row.settings | settings
    return replace(row, settings=both, fingerprint=row_fingerprint(row.method, both))


def of_rsicd(row: ResultRow, noise: str) -> ResultRow:
    return replace(changed(row, dataset="rsicd"), dataset="rsicd", noise_sha256=noise)


def listed(*place: Any) -> str:
    return next(sha256 for sha256, entry in protocol_noise().items() if entry == place)


def test_a_row_as_a_run_writes_it_is_in_order(row: ResultRow) -> None:
    assert row_problems(row) == [] and len(row.noise_sha256) == 64
    assert row.metrics["mr_low"] <= row.metrics["mr"] <= row.metrics["mr_high"]
    assert row.metrics["peak_memory_gb"] > 0


def test_what_does_not_hold_together_is_named(row: ResultRow) -> None:
    train = row.settings["train"]
    for bad, what in (
        (replace(row, fingerprint="0" * 16), "fingerprint is not that"),
        (replace(row, settings_known="given"), "not every setting is known"),
        (replace(row, seed=1), "seed is 1, its settings say 0"),
        (replace(row, rate=0.2), "rate is 0.2, its settings say 0.4"),
        (replace(row, encoder="a+b"), "encoder is 'a+b', its settings say 'tiny+tiny'"),
        (replace(row, selected_on="test"), "models are selected on val"),
        (replace(row, commit=""), "commit is missing"),
        (replace(row, metrics=row.metrics | {"mr": row.metrics["mr"] + 1}), "the mean of its recalls"),
        (replace(row, metrics=row.metrics | {"i2t_r1": 200.0}), "i2t_r1 is 200, not a percentage"),
        (replace(row, metrics=row.metrics | {"t2i_r1": 99.0}), "a recall falls as K grows"),
        (replace(row, metrics=row.metrics | {"detection_auroc": 3.0}), "detection_auroc is 3, not a share"),
        (replace(row, metrics={"mr": 1.0}), "i2t_r1, i2t_r5, "),
        (changed(row, train=train | {"speed": 3}), "train.speed: unknown setting"),
        (changed(row, train={k: v for k, v in train.items() if k != "ema"}), "not resolved"),
    ):  # fmt: skip
        assert any(what in told for told in row_problems(bad)), what


def test_noise_is_one_of_the_protocol(row: ResultRow) -> None:
    right = listed("rsicd", "caption", 0.4, 0)
    assert row_problems(of_rsicd(row, right)) == []
    other = listed("rsicd", "image", 0.4, 0)
    for noise, what in (
        ("", "noise_sha256 is missing"),
        ("a" * 64, "of no noise file"),
        (other, "is of rsicd"),
    ):
        [told] = row_problems(of_rsicd(row, noise))
        assert what in told
    assert len(protocol_noise()) == 96


def test_one_caption_has_noise_of_its_own(row: ResultRow) -> None:
    one = changed(of_rsicd(row, listed("rsicd, one caption", "caption", 0.4, 0)), one_caption=True)
    assert row_problems(one) == []
    assert row_problems(replace(one, noise_sha256=listed("rsicd", "caption", 0.4, 0)))


def test_a_run_again_is_compared_within_the_tolerance(row: ResultRow) -> None:
    near, far = (replace(row, metrics=row.metrics | {"mr": row.metrics["mr"] + by}) for by in (0.9, 1.1))
    assert compare(row, near).problems == ()
    assert "more than 1 apart" in compare(row, far).problems[0]
    assert "other noise" in compare(row, replace(row, noise_sha256="b")).problems[0]


def test_the_command_checks_and_runs_again(
    row: ResultRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    append_row(Path("rows.jsonl"), row)
    assert main(["table", "--check", "rows.jsonl", "--rerun", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 1 and told["problems"] == []
    mr = f"{row.metrics['mr']:.2f}"
    assert f"run again: mR {mr}, the row says {mr} (tolerance 1)" in told["notes"]  # on one CPU it is exact
    assert "seed 0: the protocol asks for 0, 1 and 2" in told["notes"][0]
    append_row(Path("rows.jsonl"), row)
    assert main(["table", "--check", "rows.jsonl"]) == 1
    assert "stands there 2 times" in capsys.readouterr().out
    assert main(["table", "--check", "rows.jsonl", "--rerun", "9"]) == 1
    assert "there is no row 9" in capsys.readouterr().err
    assert main(["table", "--check", "absent.jsonl"]) == 1


def test_lines_of_other_settings_are_not_the_same_line(row: ResultRow, tmp_path: Path) -> None:
    path, train = tmp_path / "rows.jsonl", row.settings["train"]
    append_row(path, row)
    append_row(path, changed(row, train=train | {"batch_size": 20}))
    append_row(path, changed(row, one_caption=True))
    report = check_submission(path)
    assert report.problems == () and len(report.notes) == 3  # each lacks seeds 1 and 2
    append_row(path, changed(row, train=train | {"batch_size": 20}))
    assert "stands there 2 times" in check_submission(path).problems[0]


def test_an_empty_file_is_no_submission(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(Exception, match="no rows in it"):
        check_submission(tmp_path / "rows.jsonl")
