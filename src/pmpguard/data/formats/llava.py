"""LLaVA's JSON, a list or lines: conversations about images, of which the first answer is the caption.

::

    [{"id": "1", "image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\\nDescribe it."},
                                                     {"from": "gpt", "value": "a pond"}]}]
"""

from __future__ import annotations

import logging
from pathlib import Path

from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.formats.json_fields import entry_of, list_of
from pmpguard.data.formats.jsonl import LINES, first_record, json_records
from pmpguard.data.pair_rows import PairRows, dataset_name, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.errors import DataError

log = logging.getLogger("pmpguard")


def recognise_llava(file: Peek) -> bool:
    return (file.is_json or file.ending in LINES) and "conversations" in first_record(file)


def read_llava(files: list[Path], images: Path | None) -> PairTable:
    """Conversations without an image are left out; later questions and answers are, too."""
    rows, without = PairRows(files[0]), 0
    for path in files:
        for where, entry in json_records(path):
            turns = list_of(entry_of(entry, "conversations", where), f"{where}.conversations")
            if entry.get("image") is None:
                without += 1
                continue
            answers = [turn for turn in turns if isinstance(turn, dict) and turn.get("from") == "gpt"]
            if not answers:
                raise DataError(f"{where}: no answer from gpt", fix="remove the entry")
            caption = entry_of(answers[0], "value", where)
            rows.add(where, entry["image"], caption, split_of_file(path))
    if without:
        log.warning(f"{files[0]}: {without:,} conversations without an image are left out")
    return rows.build(files[0].parent, images, dataset_name(files[0]))


LLAVA = Format("conversations JSON of LLaVA, a list or lines", recognise_llava, read_llava)
