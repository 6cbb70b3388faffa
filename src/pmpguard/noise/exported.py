"""Our noise in the forms of other projects, for their code to train on: NCR's index and RRSITR's list.

NCR's `.npy` says for each caption of the split which image it was put to, images numbered in order of first
appearance. It holds noise that moves each caption to one place (mode "permute"), not captions drawn twice.
RRSITR's CSV lists the pairs themselves, so it holds any noise.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pmpguard.data.arrays import save_array
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import atomic_output, write_atomic
from pmpguard.noise.inject import Corruption, in_split
from pmpguard.noise.sources import Units


def to_image_index(corruption: Corruption) -> npt.NDArray[np.int64]:
    """(pairs of the split,): the image that each caption was put to, as NCR's noise files have it."""
    rows, sources = _moves(corruption)
    units = Units.of_split(corruption.table, corruption.split, by_image=True, other_class=False)
    own = np.searchsorted(units.image, corruption.table.image_codes[rows])  # (pairs,) each pair's image
    index = np.empty(len(rows), np.int64)
    index[sources] = own
    return index


def to_permutation(corruption: Corruption) -> npt.NDArray[np.int64]:
    """(pairs of the split,): whose caption each pair takes."""
    return _moves(corruption)[1]


def _moves(corruption: Corruption) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The split's rows, and for each the place in the split that its caption comes from, each place once."""
    rows = np.flatnonzero(in_split(corruption.table, corruption.split))
    sources = corruption.source_rows[rows]
    if not np.array_equal(np.sort(sources), rows):
        raise DataError(
            f"{corruption.table.name}: some captions are used twice or newly written (mode "
            f"{corruption.mode!r}), which an index of permuted captions cannot hold",
            fix="corrupt with --mode permute, or export a .csv, which holds the pairs themselves",
        )
    return rows, np.searchsorted(rows, sources)


def save_index(index: npt.NDArray[np.int64], path: Path) -> None:
    """A plain `.npy` array."""
    with atomic_output(path) as stream:
        save_array(stream, index)


def save_rrsitr(corruption: Corruption, path: Path) -> None:
    """`filename,title` of the corrupted split. RRSITR reads splits apart, each from its own file."""
    if path.suffix.lower() != ".csv":
        raise ConfigError(f"{path}: RRSITR's list is a .csv", fix="change the ending")
    table = corruption.table.split(corruption.split)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["filename", "title"])
    writer.writerows(zip(table.column("image"), table.captions, strict=True))
    write_atomic(path, text.getvalue())
