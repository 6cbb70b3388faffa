"""Noise of other projects: index files that say which caption was put to which image.

Two kinds are in use. A permutation says for each pair (or each image) of the training split whose caption
(or captions) it takes. An image index says for each caption which image it was put to. They are read with
`allow_pickle=False`: a pickled array is refused. Such files may leave pairs right by chance, so what is wrong
is found by comparing strings, and the effective rate is lower than the requested one.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pmpguard.data.arrays import load_array
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_lines
from pmpguard.errors import DataError
from pmpguard.noise.inject import Corruption, move_captions
from pmpguard.noise.sources import Units


def read_index(path: Path) -> np.ndarray:
    """(N,) int64 from a `.npy` file; nothing is unpickled."""
    values = load_array(path, "save it with np.save(path, array.astype('int64'))")
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(f"{path}: expected a one-dimensional array of whole numbers")
    return values.astype(np.int64)


def read_captions(path: Path, table: PairTable) -> list[tuple[int, str]]:
    """(row, caption) of each line of a JSON-lines file of partly wrong captions."""
    row_of = {pair_id: row for row, pair_id in enumerate(table.column("pair_id"))}
    found = []
    for number, line in read_lines(path):
        try:
            record = json.loads(line)
            pair_id, caption = record["pair_id"], record["caption"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{path} line {number}: no JSON object with pair_id and caption",
                fix='write {"pair_id": "...", "caption": "..."} on each line',
            ) from error
        if not isinstance(caption, str) or not isinstance(pair_id, str) or pair_id not in row_of:
            raise DataError(
                f"{path} line {number}: pair_id {pair_id!r} or its caption does not fit {table.name}",
                fix="use pair ids of this dataset, and captions that are text",
            )
        found.append((row_of[pair_id], caption))
    return found


def from_permutation(table: PairTable, permutation: np.ndarray, split: str = "train") -> Corruption:
    """Pair i takes the caption of pair permutation[i]; or image i the captions of image permutation[i].

    Pairs and images are numbered inside the split, images in order of first appearance. Which of the two
    is meant is seen from the length.
    """
    pairs = Units.of_split(table, split, by_image=False, other_class=False)
    images = Units.of_split(table, split, by_image=True, other_class=False)
    by_length = {len(images): ("image", images), len(pairs): ("caption", pairs)}
    if len(permutation) not in by_length:
        raise DataError(
            f"the permutation has {len(permutation)} entries; split {split!r} has {len(pairs)} pairs of "
            f"{len(images)} images",
            fix="use the file made for this dataset and split",
        )
    level, units = by_length[len(permutation)]
    if not np.array_equal(np.sort(permutation), np.arange(len(units))):
        raise DataError(f"the permutation does not hold each number from 0 to {len(units) - 1} once")
    source_rows = np.arange(len(table))
    rows, sources = units.captions_from(np.arange(len(units)), permutation)
    source_rows[rows] = sources
    return _imported(table, source_rows, level, split)


def from_image_index(table: PairTable, image_of_caption: np.ndarray, split: str = "train") -> Corruption:
    """Caption i was put to image image_of_caption[i], images numbered in order of first appearance.

    Our tables keep the images and move the captions: a caption that was put elsewhere takes the place of
    one that left there.
    """
    units = Units.of_split(table, split, by_image=True, other_class=False)
    rows = np.sort(units.rows)
    if len(image_of_caption) != len(rows):
        raise DataError(
            f"the index has {len(image_of_caption)} entries, split {split!r} has {len(rows)} captions",
            fix="use the file made for this dataset and split",
        )
    own = np.searchsorted(units.image, table.image_codes[rows])  # (pairs,) number of each pair's image
    if not np.array_equal(np.sort(image_of_caption), np.sort(own)):
        raise DataError(
            "the index does not put as many captions to each image as it has",
            fix="use the file made for this dataset and split",
        )
    moved = np.flatnonzero(image_of_caption != own)
    places = moved[np.argsort(own[moved], kind="stable")]
    captions = moved[np.argsort(image_of_caption[moved], kind="stable")]
    source_rows = np.arange(len(table))
    source_rows[rows[places]] = rows[captions]
    return _imported(table, source_rows, "caption", split)


def is_mismatched(table: PairTable, source_rows: np.ndarray, split: str) -> np.ndarray:
    """(N,) bool: rows of the split whose new caption equals no caption of their image."""
    units = Units.of_split(table, split, by_image=False, other_class=False)
    unit_of_row = np.full(len(table), -1)
    unit_of_row[units.rows] = np.arange(len(units))
    sources = unit_of_row[source_rows[units.rows]]
    if (sources < 0).any():
        row = units.rows[np.flatnonzero(sources < 0)[0]]
        raise DataError(f"{table.name} row {row}: its caption comes from outside split {split!r}")
    wrong = np.zeros(len(table), dtype=bool)
    wrong[units.rows] = units.allowed(np.arange(len(units)), sources)
    return wrong


def _imported(table: PairTable, source_rows: np.ndarray, level: str, split: str) -> Corruption:
    moved = int((source_rows != np.arange(len(table))).sum())
    return move_captions(
        table,
        source_rows,
        rate=moved / len(table.split(split)),
        seed=0,
        level=level,
        mode="imported",
        split=split,
        is_noisy=is_mismatched(table, source_rows, split),
    )
