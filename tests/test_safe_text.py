"""Names of files cannot move the cursor, ring the bell, turn the text round or start a line of their own."""

from __future__ import annotations

import json
import logging

import pytest

from pmpguard.safe_text import PrintableFormatter, one_line, printable, spreadsheet_text

HOSTILE = "\x1b[2J\x07\x9b31m\u202e\u2028\ud800\x7f"


def test_nothing_hostile_reaches_the_terminal():
    for shown in (printable(f"a\n\t{HOSTILE}"), one_line(HOSTILE)):
        assert not set(HOSTILE) & set(shown) - set("[2J31m")
        shown.encode()  # half characters too
    assert printable("déjà vu 水\n") == "déjà vu 水\n"
    assert one_line("a\nb\tc") == r"a\u000ab\u0009c"


def test_json_stays_the_same_json():
    text = json.dumps({"image": HOSTILE}, ensure_ascii=False)
    assert json.loads(printable(text)) == {"image": HOSTILE}


def test_a_long_name_is_cut():
    assert one_line("b" * 5000).endswith("bbb...") and len(one_line("b" * 5000)) == 300


def test_log_lines_too():
    record = logging.LogRecord("a", logging.WARNING, "f.py", 1, "%s: gone", ("\x1b[31m.png",), None)
    assert PrintableFormatter().format(record) == r"\u001b[31m.png: gone"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", " ="])
def test_no_cell_is_a_formula(start):
    assert spreadsheet_text(f"{start}1+1") == f"'{start}1+1"
    assert spreadsheet_text(f"a{start}") == f"a{start}"
