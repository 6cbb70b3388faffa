"""The page of a run: every record is drawn, strangers' words are inert, nothing is asked of the network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pmpguard.errors import DataError
from pmpguard.experiments.run_page import chart, run_curves, write_run_page

FIGURES = {f"{way}_r{k}": float(k) for way in ("i2t", "t2i") for k in (1, 5, 10)} | {
    "mr": 5.33,
    "val_mr": 5.1,
}


def record_run(folder: Path, method: str = "pmpguard") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "method": method,
        "epochs": 2,
        "batch_size": 8,
        "seed": 3,
        "model": {"vision": "tiny", "text": "tiny"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    records = [
        {"kind": "detection", "step": 0, "epoch": 0, "estimated_mismatch_rate": 0.4, "true_auroc": 0.98},
        {"kind": "step", "step": 10, "loss": 3.5, "t": 0.1, "lr": 1e-4},
        {"kind": "validation", "step": 10, "epoch": 0, "mr": 12.0},
        {"kind": "step", "step": 20, "loss": 3.0, "t": 0.2, "lr": 5e-5},
        {"kind": "validation", "step": 20, "epoch": 1, "mr": 15.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_the_curves_are_those_of_the_record(tmp_path):
    record_run(tmp_path)
    assert run_curves(tmp_path) == {
        "validation mR": {"mR": [(1, 12.0), (2, 15.0)]},
        "detection": {"estimated rate": [(1, 0.4)], "AUROC": [(1, 0.98)]},
        "losses": {"loss": [(10, 3.5), (20, 3.0)]},
        "boundary": {"t_k": [(10, 0.1), (20, 0.2)]},
    }


def test_the_page_is_whole_and_asks_for_nothing(tmp_path):
    record_run(tmp_path / "run", "<script>alert(1)</script>")
    page = write_run_page(tmp_path / "run", FIGURES).read_text()
    assert "<script" not in page and "http" not in page and "src=" not in page
    assert page.count("<svg") == 4 and "mean of R@1, R@5 and R@10 both ways" in page
    assert re.search(r"<td>1\.00</td>.*<td>5\.33</td>", page) and "mR on validation 5.100" in page


def test_the_page_gives_intervals_and_warns_of_small_galleries(tmp_path):
    record_run(tmp_path)
    bounds = {name: (value - 1, value + 2) for name, value in FIGURES.items() if name != "val_mr"}
    page = write_run_page(tmp_path, FIGURES, bounds, ["among 9 images recalls are high"]).read_text()
    assert "<td>4.3 to 7.3</td>" in page and "95 % intervals" in page
    assert "Among 9 images recalls are high." in page
    assert "95 %" not in write_run_page(tmp_path, FIGURES).read_text()


def test_what_nobody_injected_or_knows_is_not_shown(tmp_path):
    record_run(tmp_path)
    (tmp_path / "environment.json").write_text(json.dumps({"commit": "unknown", "hardware": "a CPU"}))
    for rate in (0.0, 0.4):
        record = {"kind": "detection", "step": 0, "epoch": 0, "true_true_rate": rate}
        (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        page = write_run_page(tmp_path, {**FIGURES, "effective_rate": rate}).read_text()
        assert page.count("injected rate") == (2 if rate else 0)  # figures and curve
        assert "a CPU" in page and "unknown" not in page


def test_a_distilled_run_shows_teacher_and_student(tmp_path):
    for part in ("teacher", "student"):
        record_run(tmp_path / part)
    page = write_run_page(tmp_path).read_text()
    assert "validation mR, teacher" in page and "validation mR, student" in page and "Test split" not in page


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(DataError, match=r"no metrics\.jsonl"):
        write_run_page(tmp_path)


def test_points_lie_where_they_belong():
    drawing = chart("a", {"one": [(0.0, 0.0), (1.0, 10.0)], "flat": [(0.0, 5.0), (1.0, 5.0)]})
    lines = ElementTree.fromstring(drawing).findall(".//polyline")
    (left, low), (right, high) = (
        [float(each) for each in point.split(",")] for point in lines[0].get("points").split()
    )
    assert left < right and high < low  # a higher value stands higher up
    middle = {point.split(",")[1] for point in lines[1].get("points").split()}
    assert middle == {f"{(low + high) / 2:.1f}"}
    (dot,) = ElementTree.fromstring(chart("a single point", {"one": [(3.0, 2.0)]})).findall(".//polyline")
    first, second = dot.get("points").split()  # a line of no length, which round ends make a dot
    assert first == second
    zeros = ElementTree.fromstring(chart("zeros", {"one": [(0.0, 0.0), (1.0, 0.0)]})).find(".//polyline")
    assert {point.split(",")[1] for point in zeros.get("points").split()} == {"156.0"}  # the floor
