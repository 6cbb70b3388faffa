"""Pages say what the recorded rows say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pmpguard.errors import DataError
from pmpguard.experiments.rows import ResultRow, append_row
from tools.docs_numbers import (
    TABLES,
    detection_table,
    frozen_table,
    light_table,
    main,
    rendered,
    ucm_table,
)

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def row(method: str, rate: float, seed: int, mr: float, **metrics: float) -> ResultRow:
    return ResultRow("rsicd", method, "caption", rate, seed, "a+b", "val", {"mr": mr, **metrics})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_holds_the_numbers_of_its_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert rendered(text, ROOT / "benchmarks" / "results", page.name) == text, (
        "run python -m tools.docs_numbers"
    )


def test_every_table_stands_in_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(f"<!-- results: {name} -->" in text for name in TABLES)


def test_means_deviations_single_seeds_and_gaps(tmp_path: Path) -> None:
    file = tmp_path / "rsicd-light.jsonl"
    for seed, mr in enumerate((10.0, 12.0)):
        append_row(file, row("infonce", 0.4, seed, mr))
    append_row(file, row("pmpguard", 0.4, 0, 20.0, detection_auroc=0.9876))
    text = light_table(tmp_path, (("InfoNCE", "infonce"), ("PMPGuard, this package", "pmpguard")), full=False)
    assert "| InfoNCE | – | – | 11.00 ± 1.41 | – | – |" in text
    assert "| **PMPGuard, this package** | **–** | **–** | **20.00 ¹** |" in text
    assert "(AUROC) | – | – | 0.988 | – | – |" in text and "| 26.32 | 25.41 |" in text


def test_the_best_that_is_not_told_is_bold(tmp_path: Path) -> None:
    for rate in (0.0, 0.4, 0.8):
        for method, mr in (("infonce", 10.0), ("ccl", 11.0), ("oracle", 12.0)):
            append_row(tmp_path / "rsicd-frozen.jsonl", row(method, rate, 0, mr))
    text = frozen_table(tmp_path)
    assert "| CCL | **11.00 ¹** |" in text and "| 12.00 ¹ | 12.00 ¹ |" in text


def test_residual_noise_follows_from_f1_and_the_share_flagged(tmp_path: Path) -> None:
    """Of 100 pairs 40 are wrong, 30 are flagged, 27 of those rightly: 13 of 70 are left."""
    found = {"detection_true_rate": 0.4, "detection_flagged_rate": 0.3, "detection_f1": 2 * 27 / 70,
             "detection_auroc": 0.9, "detection_estimated_rate": 0.3, "train_seconds": 12.0}  # fmt: skip
    lines = (("InfoNCE", "infonce"), ("L2RM", "l2rm"))
    append_row(tmp_path / "t.jsonl", row("infonce", 0.4, 0, 7.0))
    append_row(tmp_path / "t.jsonl", row("l2rm", 0.4, 0, 7.0, **found))
    told = detection_table(tmp_path, "t", lines).splitlines()[2:]
    assert told == ["| 40 % | L2RM | 0.186 | 0.050 | 0.900 | 0.300 | 12 |"]
    append_row(tmp_path / "t.jsonl", row("l2rm", 0.4, 0, 7.0, **found, detection_residual_rate=0.2))
    assert "| L2RM | 0.200 |" in detection_table(tmp_path, "t", lines)  # what a row says counts


def test_rows_of_other_settings_are_no_seeds_of_a_line(tmp_path: Path) -> None:
    for batch in (640, 320):
        one = replace(row("infonce", 0.4, batch, 7.0), settings={"train": {"batch_size": batch}})
        append_row(tmp_path / "t.jsonl", one)
    with pytest.raises(DataError, match="rows of 'infonce' at 0\\.4 differ"):
        detection_table(tmp_path, "t", ())


def test_a_table_without_rows_says_so(tmp_path: Path) -> None:
    assert "| no row yet | – |" in ucm_table(tmp_path)
    append_row(tmp_path / "ucm-light.jsonl", row("ncr", 0.4, 0, 30.0))
    assert ucm_table(tmp_path).splitlines()[2] == "| NCR | – | 30.00 ¹ | – |"


def test_bad_markers_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="p: no table 'nothing'\nFix: known: rsicd-light headline"):
        rendered("<!-- results: nothing -->\n<!-- /results -->", tmp_path, "p")
    with pytest.raises(DataError, match="p: a results marker is not closed"):
        rendered("<!-- results: demo seeds -->\n", tmp_path, "p")


def test_the_command_writes_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in (0.0, 0.4, 0.8):
        append_row(tmp_path / "benchmarks/results/rsicd-frozen.jsonl", row("infonce", rate, 0, 7.0))
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- results: rsicd-frozen mr -->\nold\n<!-- /results -->\nb\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--check"]) == 1 and "old" in page.read_text()
    assert main([]) == 0 and capsys.readouterr().out == "README.md\nREADME.md\n"
    assert "| InfoNCE | **7.00 ¹** |" in page.read_text() and page.read_text().endswith(
        "<!-- /results -->\nb\n"
    )
    assert main(["--check"]) == 0
