"""Precomputed regions as SCAN, NCR and those after them use: `<split>_caps.txt` and `<split>_ims.npy`.

A line of the text file is a caption; the array has the regions of an image (n, d), or its pooled features
(d,), for each caption or for each run of captions. There are no images to look at: an image is named
`train_ims.npy#17`, and `image_features` gives what an audit can judge by.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pmpguard.data.formats.embeddings import mapped_array
from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.pair_rows import PairRows, split_in_name
from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import split_reference
from pmpguard.data.text_files import read_lines
from pmpguard.errors import DataError

CAPTIONS, FEATURES = "_caps.txt", "_ims.npy"
COMPARED = 16  # numbers of an image that are compared first with those of the one before


def recognise_scan(file: Peek) -> bool:
    return file.path.name.endswith(CAPTIONS) and _features_file(file.path).is_file()


def _features_file(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(CAPTIONS) + FEATURES)


def read_scan(files: list[Path], images: Path | None) -> PairTable:
    """Splits are named as the files are, `dev` as `val`."""
    rows, folder = PairRows(files[0]), files[0].parent
    for path in files:
        named = path.name.removesuffix(CAPTIONS)
        captions = [caption for _, caption in read_lines(path)]
        features = _features_file(path)
        array = _regions(features)
        if len(captions) == len(array):
            numbers = _first_of_repeated(array)
        else:
            each, rest = divmod(len(captions), max(1, len(array)))
            if rest or not each or not len(array):
                raise DataError(
                    f"{path}: {len(captions):,} captions, but {features.name} has {len(array):,} images",
                    fix="use the two files that were made together",
                )
            numbers = np.arange(len(captions)) // each
        for line, (number, caption) in enumerate(zip(numbers.tolist(), captions, strict=True), 1):
            rows.add(
                f"{path} line {line}", f"{features.name}#{number}", caption, split_in_name(named) or named
            )
    return rows.build_below(folder, rows.columns["image"], folder.resolve().name)


def _regions(path: Path) -> np.ndarray:
    """(I, d) or (I, n, d), in the file."""
    array: np.ndarray = mapped_array(path)
    if array.ndim not in (2, 3) or not np.issubdtype(array.dtype, np.floating):
        raise DataError(
            f"{path}: holds {array.dtype} of shape {array.shape}", fix="expected (images, regions, features)"
        )
    return array


def _first_of_repeated(array: np.ndarray) -> np.ndarray:
    """(C,) for each image the first of the run of equal ones it is in."""
    flat = array.reshape(len(array), -1)
    new = np.r_[True, (flat[1:, :COMPARED] != flat[:-1, :COMPARED]).any(1)]
    for row in np.flatnonzero(~new):
        new[row] = not np.array_equal(flat[row], flat[row - 1])
    return np.maximum.accumulate(np.where(new, np.arange(len(array)), 0))


def image_features(table: PairTable) -> np.ndarray:
    """(I, d) float32: for each image of the table the mean of its regions, in order of image codes."""
    found: list[np.ndarray] = []
    arrays: dict[str, np.ndarray] = {}
    for name in table.arrow["image"].take(table.first_rows).to_pylist():
        file, number = split_reference(name)
        if not file.endswith(FEATURES) or number is None:
            raise DataError(f"{table.name}: image {name} is no row of features", fix="embed the images")
        if file not in arrays:
            arrays[file] = _regions(table.root / file)
        regions = np.asarray(arrays[file][int(number)], np.float32)
        found.append(regions if regions.ndim == 1 else regions.mean(0))
    return np.stack(found)


SCAN = Format("precomputed regions of SCAN and NCR", recognise_scan, read_scan, several_files=True)
