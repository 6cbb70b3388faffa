"""The card of a written dataset, `README.md`: what the Hub shows, and which files are which split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from pmpguard.data.pairs import PairTable
from pmpguard.safe_text import one_line

CARD = "README.md"
MEANING = {
    "pair_id": "id of the pair",
    "image_id": "pairs of one image share it",
    "label": "scene class",
    "provenance": "what the audit or its reviewer did to the pair",
    "original_caption": "the caption before, where it was another",
    "p_match": "the probability that the original caption matches the image, as the audit judged it",
    "weight": "the weight a training should give the pair",
    "lon": "degrees",
    "lat": "degrees",
    "time": "UTC",
}


def dataset_card(table: PairTable, files: Mapping[str, str], about: Sequence[str] = ()) -> str:
    """A card; `files` of each split are named where the Hub can load them.

    `about` are further lines, such as where the pairs come from.
    """
    described: dict[str, Any] = {
        "task_categories": ["image-to-text", "text-to-image"],
        "tags": ["remote-sensing", "image-text-retrieval"],
        "size_categories": [_size(len(table))],
    }
    if files:
        named = [{"split": split_name(split), "path": path} for split, path in files.items()]
        described["configs"] = [{"config_name": "default", "data_files": named}]
    lines = [
        "---",
        yaml.safe_dump(described, sort_keys=False).strip(),
        "---",
        "",
        f"# {one_line(table.name)}",
    ]
    lines += ["", f"{len(table):,} image-caption pairs of {len(table.first_rows):,} images.", ""]
    lines += ["| split | pairs | images |", "|---|---|---|"]
    names = table.arrow["split"].to_numpy(zero_copy_only=False)
    for split, pairs in table.splits().items():
        images = len(np.unique(table.image_codes[names == split]))
        lines.append(f"| {one_line(split)} | {pairs:,} | {images:,} |")
    known = [name for name in table.arrow.column_names if name in MEANING]
    lines += ["", *(f"* `{name}`: {MEANING[name]}" for name in known)]
    if about:
        lines += ["", "## Where it comes from", "", *(f"* {one_line(line)}" for line in about)]
    return "\n".join([*lines, ""])


def split_name(split: str) -> str:
    """A split as Hugging Face names it.

    >>> split_name("val"), split_name("train"), split_name("north-2")
    ('validation', 'train', 'north_2')
    """
    if split == "val":
        return "validation"
    return "".join(one if one.isalnum() or one in "._" else "_" for one in split) or "train"


def _size(count: int) -> str:
    """The Hub's word for a number of rows.

    >>> _size(999), _size(54_605), _size(5_000_000)
    ('n<1K', '10K<n<100K', '1M<n<10M')
    """
    steps = [(1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
             (10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M")]  # fmt: skip
    return next((word for most, word in steps if count < most), "100M<n<1B")
