"""The fenced blocks of a page and the commands in them."""

from __future__ import annotations

import re


def blocks(text: str, language: str = "") -> list[str]:
    """The fenced blocks of a language; those of plain code have none."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for name, code in fences if name == language]


def commands(text: str) -> list[str]:
    """Every `pmpguard ...` in blocks of plain code or shell and between backticks, without comments."""
    code = "".join(blocks(text) + blocks(text, "sh"))
    lines = code.replace("\\\n", " ").splitlines()
    lines = [re.sub(r"^.*-m pmpguard ", "pmpguard ", line) for line in lines]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += [" ".join(words.split()) for words in re.findall(r"`(pmpguard [^`]+)`", prose)]
    return [
        " ".join(re.split(r"\s+[#>|]\s", line)[0].split())
        for line in lines
        if re.match(r"pmpguard [a-z-]", line) and "..." not in line and "COMMAND" not in line
    ]
