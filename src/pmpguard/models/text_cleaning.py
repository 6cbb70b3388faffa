"""What a CLIP's own code did to a text before its tokenizer saw it."""

from __future__ import annotations

import html
import string
from collections.abc import Callable
from typing import Literal

from pmpguard.errors import require

# "clip": as OpenAI's and OpenCLIP's code; "whitespace" and "canonical": OpenCLIP's other two ways;
# "siglip" and "lower": as SigLIP's and SigLIP 2's own code.
Cleaning = Literal["none", "clip", "whitespace", "canonical", "siglip", "lower"]
_NO_PUNCTUATION = str.maketrans("_", " ", string.punctuation.replace("_", ""))
_NO_MARKS = str.maketrans("", "", string.punctuation)


def text_cleaner(cleaning: Cleaning) -> Callable[[str], str]:
    """The function that cleans a text; OpenCLIP's need the package ftfy, which mends broken letters."""
    plain: dict[str, Callable[[str], str]] = {"none": str, "lower": str.lower, "siglip": _siglip}
    if cleaning in plain:
        return plain[cleaning]
    require("ftfy", "clip")
    return {"clip": _lower, "whitespace": _mended, "canonical": _canonical}[cleaning]


def _siglip(text: str) -> str:
    """Lower case without punctuation, single spaces."""
    return " ".join(text.lower().translate(_NO_MARKS).split())


def _mended(text: str) -> str:
    fix_text = require("ftfy", "clip").fix_text
    return " ".join(html.unescape(html.unescape(fix_text(text))).split())


def _lower(text: str) -> str:
    return _mended(text).lower()


def _canonical(text: str) -> str:
    """Lower case without punctuation, as OpenCLIP reads texts for SigLIP."""
    return " ".join(_mended(text).translate(_NO_PUNCTUATION).lower().split())
