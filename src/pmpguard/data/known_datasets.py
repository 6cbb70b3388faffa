"""What is published about well-known datasets, and in what a table differs from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pmpguard.data.pairs import PairTable
from pmpguard.files import read_json
from pmpguard.remote import exists, is_remote, local_file

STAND_IN, STANDS_IN = "stand-in.json", " stand-in"


@dataclass(frozen=True)
class KnownDataset:
    """A published dataset: images in all, and per split under each of the splits in use."""

    title: str
    images: int
    splits: Mapping[str, Mapping[str, int]]
    captions_per_image: int = 5


KNOWN = {
    "rsicd": KnownDataset(
        "RSICD",
        10_921,
        {
            "official": {"train": 8_734, "val": 1_094, "test": 1_093},
            "AMFMN, SWAN, PIR": {"train": 7_862, "val": 1_966, "test": 1_093},
            "train with val": {"train": 9_828, "test": 1_093},
        },
    ),
    "rsitmd": KnownDataset(
        "RSITMD",
        4_743,
        {
            "AMFMN, SWAN, PIR": {"train": 3_435, "val": 856, "test": 452},
            "train with val": {"train": 4_291, "test": 452},
        },
    ),
    "ucm": KnownDataset("UCM-Captions", 2_100, {"official": {"train": 1_680, "val": 210, "test": 210}}),
    "nwpu": KnownDataset(
        "NWPU-Captions", 31_500, {"official": {"train": 25_200, "val": 3_150, "test": 3_150}}
    ),
}


def known_dataset(name: str) -> KnownDataset | None:
    """The published dataset a table's name speaks of.

    >>> known_dataset("dataset_RSICD").images, known_dataset("my pairs")
    (10921, None)
    """
    found = re.search(rf"(?<![a-z])({'|'.join(KNOWN)})", name.lower())
    return KNOWN[found[1]] if found else None


def images_per_split(table: PairTable) -> dict[str, int]:
    """Number of different images in each split."""
    splits = table.arrow["split"].to_numpy(zero_copy_only=False)
    return {name: len(np.unique(table.image_codes[splits == name])) for name in table.splits()}


def matching_split(table: PairTable) -> str | None:
    """The name of the published split the table follows; a table with only some of the splits may."""
    known, counts = known_dataset(table.name), images_per_split(table)
    for title, published in known.splits.items() if known else ():
        if all(published.get(split) == count for split, count in counts.items()):
            return title
    return None


def differences(table: PairTable) -> list[str]:
    """Sentences saying in what a table differs from the dataset its name promises; none for unknown names."""
    known = known_dataset(table.name)
    if known is None:
        return []
    found = []
    if matching_split(table) is None:
        counts = images_per_split(table)
        published = "; ".join(f"{_listed(counts)} ({title})" for title, counts in known.splits.items())
        found.append(
            f"{table.name}: {_listed(counts)} images, {sum(counts.values()):,} in all, but {known.title} "
            f"is published with {known.images:,}: {published}"
        )
    per_image = np.bincount(table.image_codes)
    odd = np.flatnonzero(per_image != known.captions_per_image)
    if len(odd):
        first = table.arrow["image"][int(table.first_rows[odd[0]])].as_py()
        found.append(
            f"{table.name}: {len(odd):,} images do not have the published "
            f"{known.captions_per_image} captions; the first is {first} with {per_image[odd[0]]}"
        )
    return found


def _listed(counts: Mapping[str, int]) -> str:
    return " / ".join(f"{split} {count:,}" for split, count in counts.items())


def named_as_stand_in(table: PairTable, path: Path) -> PairTable:
    """The table under a name that says so, where its folder says that it stands in for a dataset."""
    mark = path / STAND_IN
    if is_remote(path):
        mark = local_file(mark) if exists(mark) else mark
    return replace(table, name=f"{read_json(mark)['for']}{STANDS_IN}") if mark.is_file() else table


def is_stand_in(name: str) -> bool:
    return name.endswith(STANDS_IN)
