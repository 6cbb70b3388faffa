"""What a missing dataset's folder is said to hold is what the readers accept."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import format_examples as examples

from pmpguard.data.formats import read_pairs
from pmpguard.experiments.downloads import DOWNLOADS, missing_dataset

ANNOTATIONS = {key: entry.holds[0] for key, entry in DOWNLOADS.items() if entry.holds[0].endswith(".json")}


@pytest.mark.parametrize("name", [*ANNOTATIONS.values(), "dataset.json"])
def test_the_named_annotation_file_is_read_and_so_is_one_of_another_name(tmp_path: Path, name: str) -> None:
    written = examples.karpathy(tmp_path / "data")
    expected = read_pairs(written)
    written.rename(written.with_name(name))
    assert read_pairs(tmp_path / "data").fingerprint == expected.fingerprint


def test_the_page_on_training_names_the_same_files() -> None:
    page = Path(__file__).parents[2] / "docs" / "train.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert set(ANNOTATIONS) == {"rsicd", "ucm", "rsitmd"}
    for key, file in ANNOTATIONS.items():
        title = DOWNLOADS[key].title.partition(" ")[0]
        (line,) = [line for line in lines if line.startswith(f"| {title} |")]
        assert f"`{file}`" in line


def test_advice_names_where_each_file_belongs(tmp_path: Path) -> None:
    for key, file in ANNOTATIONS.items():
        advice = missing_dataset(str(tmp_path / key)) or ""
        assert f"{tmp_path / key}/{file}" in advice and DOWNLOADS[key].source in advice
        assert not any(other in advice for other in set(ANNOTATIONS.values()) - {file})
    assert missing_dataset(str(tmp_path)) is None
