"""Damaged files of every format: a table or our error naming the file, never another exception.

`PMPGUARD_FUZZ_CASES=20000 pytest tests/data/test_fuzzed_readers.py` tries more.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import format_examples as examples

from pmpguard.data.formats import read_pairs
from pmpguard.data.statistics import dataset_statistics
from pmpguard.errors import PmpguardError

CASES = int(os.environ.get("PMPGUARD_FUZZ_CASES", "20"))  # of each example
EXAMPLES: dict[str, Callable[[Path], Path]] = {
    "karpathy": examples.karpathy,
    "nwpu": examples.nwpu,
    "pir": examples.pir,
    "amfmn": examples.amfmn,
    "rrsitr": examples.rrsitr,
    "csv": examples.openclip,
    "jsonl": examples.jsonl,
    "folder": examples.metadata_folder,
    "lines": examples.metadata_lines,
    "webdataset": examples.webdataset,
    "rs5m": examples.rs5m,
    "coco": examples.coco,
    "flickr": examples.flickr_tokens,
    "llava": examples.llava,
    "parquet": examples.hugging_face_parquet,
}
ENDINGS = {".json", ".jsonl", ".csv", ".txt", ".tar", ".token", ".parquet"}
HOSTILE = (
    b"\\ud800", b"\xed\xa0\x80", b"\xff", b"\0", b"\x1b]0;x\x07", b"9" * 5000, b"[" * 3000, b'"', b"{", b"}",
    b"[]", b"null", b"NaN", b"-1e999", b"\n", b"\r", b",", b"\t", b"../../etc/passwd", b"a" * 300, b"1e5",
    b"\xef\xbb\xbf", b'["a", 1]', b'{"raw": 1}', b" ", b"0001-01-01T00:00:00+14:00",
)  # fmt: skip


def damaged(data: bytes, chance: random.Random) -> bytes:
    """One to three cuts, flips, insertions, repetitions or hostile values."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(changed) + 1)
        stop = min(len(changed), start + chance.choice((0, 1, 1, 2, 4, 20)))
        kind = chance.randrange(5)
        if kind == 0:
            changed[start:stop] = chance.choice(HOSTILE)
        elif kind == 1:
            changed[start:stop] = bytes(chance.randrange(256) for _ in range(stop - start))
        elif kind == 2:
            del changed[start:]
        elif kind == 3:
            changed[start:start] = changed[start : start + chance.randrange(200)]
        else:
            quotes = [place for place, byte in enumerate(changed) if byte in b'":,']
            place = chance.choice(quotes) if quotes else start
            changed[place + 1 : place + 1] = chance.choice(HOSTILE)
    return bytes(changed)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_damaged_file_gives_a_table_or_our_error(tmp_path: Path, name: str) -> None:
    path = EXAMPLES[name](tmp_path / "data")
    files = [file for file in sorted((tmp_path / "data").rglob("*")) if file.suffix in ENDINGS]
    contents = {file: file.read_bytes() for file in files}
    outcomes = set()
    for number in range(CASES):
        chance = random.Random(f"{name} {number}")
        file = chance.choice(files)
        file.write_bytes(damaged(contents[file], chance))
        try:
            dataset_statistics(read_pairs(path)).as_text()
            outcomes.add("read")
        except PmpguardError as error:
            assert str(tmp_path) in error.message and error.fix, f"case {number}"
            outcomes.add("refused")
        except Exception as error:
            shutil.copy(file, tmp_path / "case")
            pytest.fail(f"{name} case {number}: {type(error).__name__}: {error}")
        file.write_bytes(contents[file])
    assert "refused" in outcomes  # the damage reaches the readers
    assert len(read_pairs(path)) > 0
