"""Strangers' text on its way to a terminal, a log or a spreadsheet: nothing in it is taken for a command.

Names of files and members may hold anything but NUL. A terminal obeys escape sequences, a spreadsheet
calculates cells that begin like a formula, and a line break in a name makes one entry look like two.
"""

from __future__ import annotations

import logging
import sys
import unicodedata

MAX_NAME_CHARACTERS = 300  # of a name in a message
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
_TURNING = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)  # of bidi text
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def printable(text: str) -> str:
    r"""The text with control characters as escapes; line breaks and tabs stay. JSON stays the same JSON.

    >>> print(printable("red\x1b[31m\x07\nnext line"))
    red\u001b[31m\u0007
    next line
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():  # almost always
        return text
    return "".join(one if one in "\n\t" else _escaped(one) for one in text)


def one_line(name: str) -> str:
    r"""A name as one line of bounded length, for messages and tables.

    >>> print(one_line("a.png\nerror: b"), len(one_line(5000 * "a")))
    a.png\u000aerror: b 300
    """
    text = "".join(map(_escaped, name))
    return text if len(text) <= MAX_NAME_CHARACTERS else f"{text[: MAX_NAME_CHARACTERS - 3]}..."


def _escaped(character: str) -> str:
    if unicodedata.category(character) in _CONTROLS or character in _TURNING:
        return f"\\u{ord(character):04x}"
    return character


def spreadsheet_text(text: str) -> str:
    """The text of a cell, with an apostrophe before what a spreadsheet would take for a formula.

    >>> spreadsheet_text(" =HYPERLINK(A1)"), spreadsheet_text("a pond")
    ("' =HYPERLINK(A1)", 'a pond')
    """
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA_STARTS) else text


class PrintableFormatter(logging.Formatter):
    """Log lines without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def tell(text: str) -> None:
    """Say on stderr what goes on: results go to stdout."""
    print(printable(text), file=sys.stderr, flush=True)
