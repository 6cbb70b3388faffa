"""Damaged files of every format: a result or our error naming the file, never another exception.

`python benchmarks/fuzz_readers.py` tries ten thousand of each and records them.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from helpers.damaged_files import FAMILIES, fuzz

from pmpguard.data.formats import FORMATS

CASES = 20  # of each family
RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz_readers.json"


@pytest.mark.parametrize("name", FAMILIES)
def test_damaged_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    logging.disable(logging.WARNING)
    try:
        outcomes, failures = fuzz(name, tmp_path, CASES)
    finally:
        logging.disable(logging.NOTSET)
    assert not failures
    assert outcomes["refused"] > 0  # the damage reaches the readers


def test_ten_thousand_of_each_are_on_record() -> None:
    record = json.loads(RECORD.read_text())["families"]
    assert set(record) == set(FAMILIES)
    for name, found in record.items():
        assert found["cases"] >= 10_000 and not found["failures"], name
        outcomes = found["outcomes"]
        assert outcomes["read"] + outcomes["refused"] == found["cases"] and min(outcomes.values()) > 0, name


def test_every_format_is_among_them() -> None:
    names = {name.replace("image folder", "folder").partition(",")[0] for name in FAMILIES}
    assert set(FORMATS) - {"hub"} <= names  # which is read as parquet
