"""Damaged files of every format: a result or our error naming the file, never another exception.

`python benchmarks/fuzz_readers.py` tries ten thousand of each and records them.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from helpers.damaged_files import FAMILIES, fuzz

from pmpguard.data.formats import FORMATS

CASES = 20  # of each family


@pytest.mark.parametrize("name", FAMILIES)
def test_damaged_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    logging.disable(logging.WARNING)
    try:
        outcomes, failures = fuzz(name, tmp_path, CASES)
    finally:
        logging.disable(logging.NOTSET)
    assert not failures
    assert outcomes["refused"] > 0  # the damage reaches the readers


def test_every_format_is_among_them() -> None:
    names = {name.replace("image folder", "folder").partition(",")[0] for name in FAMILIES}
    assert set(FORMATS) - {"hub"} <= names  # which is read as parquet
