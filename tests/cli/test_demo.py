"""The demo in miniature: tiny encoders, sixty scenes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pmpguard
from pmpguard.audit.issues import ISSUES, SUMMARY, read_issues, read_summary
from pmpguard.cli.main import main
from pmpguard.experiments.downloads import WHEELS


@pytest.mark.slow
def test_the_demo_trains_both_methods_and_leaves_model_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    words = ["demo", "--out", str(out), "--scenes", "60", "--epochs", "3", "--encoders", "tiny"]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["rows"]) == {"infonce", "pmpguard"}
    metrics = report["rows"]["pmpguard"]["metrics"]
    assert 0 <= metrics["detection_estimated_rate"] <= 1
    assert metrics["detection_true_rate"] == pytest.approx(0.4, abs=0.01)
    assert json.loads((out / "report.json").read_text())["rows"] == report["rows"]
    assert report["page"] == str(out / "report" / "index.html") and Path(report["page"]).is_file()
    summary, rows = read_summary(out / "report" / SUMMARY), read_issues(out / "report" / ISSUES)
    assert summary.mismatch_rate == metrics["detection_estimated_rate"]
    assert sum(row.flag for row in rows) == summary.flagged
    unlikely = sum(row.p_match < 0.5 for row in rows) / len(rows)
    assert unlikely == pytest.approx(metrics["detection_flagged_rate"])
    retriever = pmpguard.load(out / "pmpguard" / "model")
    assert retriever.config.ranking == "pooled+awareness"
    # The same command again continues, which here means that nothing is left to do.
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"test mR: {metrics['mr']:.1f}" in text and "note: among 6 images recalls are high" in text


def test_without_its_encoders_it_names_both_ways_out_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install = WHEELS["minilm-l6"][1]
    monkeypatch.setitem(WHEELS, "minilm-l6", ("no_such_package", install))
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 1
    assert f"Fix: {install}, or pass --encoders tiny" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
