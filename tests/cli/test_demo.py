"""The demo in miniature: tiny encoders, sixty scenes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import pmpguard
from pmpguard.cli.demo import FUNCTION_WORDS, mark_words
from pmpguard.cli.main import main
from pmpguard.synthetic.scenes import synthetic_scenes


@pytest.mark.slow
def test_the_demo_trains_both_methods_and_leaves_model_report_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    words = [
        "demo",
        "--out",
        str(out),
        "--scenes",
        "60",
        "--epochs",
        "3",
        "--encoders",
        "tiny",
        "--pairs",
        "4",
    ]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["rows"]) == {"infonce", "pmpguard"}
    metrics = report["rows"]["pmpguard"]["metrics"]
    assert 0 <= metrics["detection_estimated_rate"] <= 1
    assert metrics["detection_true_rate"] == pytest.approx(0.4, abs=0.01)
    assert json.loads((out / "report.json").read_text())["rows"] == report["rows"]
    page = (out / "flagged.html").read_text(encoding="utf-8")
    assert "estimated mismatch rate" in page and "http" not in page.replace("http-equiv", "")
    retriever = pmpguard.load(out / "pmpguard" / "model")
    assert retriever.config.ranking == "pooled+awareness"
    # The same command again continues, which here means that nothing is left to do.
    assert main([*words, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["rows"]["pmpguard"]["metrics"]["mr"] == metrics["mr"]

    from PIL import Image

    image = Image.fromarray(np.asarray(synthetic_scenes(1, size=64).images[0].permute(1, 2, 0)))
    red = mark_words(retriever, "a red roof beside the pond", image, supported=False)
    green = mark_words(retriever, "a red roof beside the pond", image, supported=True)
    assert [word.text for word in red] == ["a", "red", "roof", "beside", "the", "pond"]
    for wrong, right in zip(red, green, strict=True):
        assert (wrong.marked != right.marked) == (wrong.text not in FUNCTION_WORDS)
