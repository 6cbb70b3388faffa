"""Pairs that are in memory already, as a PairTable: data frames, `datasets`, and data sets of samples.

No library is imported. A frame has `columns` and gives one by name. A dataset of Hugging Face has `features`
and gives row after row, also where it is streamed. Others, as torchgeo's and torch's, have a length and give
a dict by number, with an image as an array or a tensor of bands. Images that are no files are written to a
folder, one file for each different content.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pmpguard.data.column_names import ColumnNames, Columns
from pmpguard.data.images.decode import from_bands
from pmpguard.data.pair_rows import PairRows, add_record
from pmpguard.data.pairs import PairTable
from pmpguard.errors import DataError

log = logging.getLogger("pmpguard")
NAME = "pairs"


def holds_pairs(data: Any) -> bool:
    """Whether something is a frame, a dataset, a dict of them by split, or gives samples by number."""
    if isinstance(data, str | bytes | Path | PairTable):
        return False
    if isinstance(data, Mapping):
        return bool(data) and all(isinstance(name, str) and holds_pairs(part) for name, part in data.items())
    return hasattr(data, "columns") or _gives_rows(data) or _gives_samples(data)


def _gives_rows(data: Any) -> bool:
    return hasattr(data, "column_names") or hasattr(data, "features")


def _gives_samples(data: Any) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, np.ndarray)


def pairs_of_data(data: Any, columns: str | Columns | None, root: Path | None, written: Path) -> PairTable:
    """The pairs of a frame or a dataset, or of a dict of them by split.

    `columns` names columns that have unusual names; `root` is the folder that image names are relative to;
    `written` takes images that are no files.
    """
    names, rows = ColumnNames.of(columns), PairRows(Path(NAME))
    for split, part in data.items() if isinstance(data, Mapping) else [("train", data)]:
        classes, colours = _class_names(part), _colour_bands(part)
        for number, record in enumerate(_records(part, names)):
            where = f"{split} row {number}" if isinstance(data, Mapping) else f"row {number}"
            image = names.find(list(record), where).image
            plain = {name: _plain(value) for name, value in record.items() if name != image}
            plain |= {name: _named(plain[name], known) for name, known in classes.items() if name in plain}
            plain[image] = image_path(record[image], written, where, colours)
            add_record(rows, where, plain, split, names)
    if root is None and any(written.glob("*")):
        root = written
    # Whoever holds the names in memory has chosen the files.
    return replace(rows.build(Path.cwd(), root, NAME), allow_outside=True)


def _records(data: Any, names: ColumnNames) -> Iterator[Mapping[str, Any]]:
    """Row after row as named values."""
    if hasattr(data, "features") and hasattr(type(data), "__iter__"):
        yield from _undecoded(data, names)
    elif hasattr(data, "to_batches"):  # a table of Arrow, whose cells are no values of Python
        for batch in data.to_batches(max_chunksize=1000):
            yield from batch.to_pylist()
    elif hasattr(data, "columns") or hasattr(data, "column_names"):
        listed = list(data.column_names if hasattr(data, "column_names") else data.columns)
        for values in zip(*(list(data[name]) for name in listed), strict=True):
            yield dict(zip(map(str, listed), values, strict=True))
    else:
        for number in range(len(data)):
            sample = data[number]
            if not isinstance(sample, Mapping):
                raise DataError(
                    f"row {number}: a sample is a {type(sample).__name__}",
                    fix="give a dict with image and caption for each sample, or a path",
                )
            yield sample


def _undecoded(data: Any, names: ColumnNames) -> Any:
    """A dataset whose images stay bytes or paths: decoding and writing them again would change them."""
    features = data.features
    if features is None:  # of a stream that was mapped, known from its first row on
        stream = iter(data)
        first = next(stream, None)
        return stream if first is None else itertools.chain([first], stream)
    image = names.find(list(features), "columns").image
    kind: Any = type(features[image])
    return data.cast_column(image, kind(decode=False)) if kind.__name__ == "Image" else data


def _class_names(data: Any) -> dict[str, list[str]]:
    """The names of numbered classes, by column: of `datasets`, or of data sets with a list `classes`."""
    features = getattr(data, "features", None) or {}
    named = {column: list(kind.names) for column, kind in dict(features).items() if hasattr(kind, "int2str")}
    classes = getattr(data, "classes", None)
    if isinstance(classes, list | tuple) and not named:
        named["label"] = [str(each) for each in classes]
    return named


def _colour_bands(data: Any) -> list[int]:
    """Which bands of a data set of torchgeo are red, green and blue: the places of `rgb_bands` in `bands`."""
    bands, colours = getattr(data, "bands", None), getattr(data, "rgb_bands", None)
    if not (isinstance(bands, list | tuple) and isinstance(colours, list | tuple)):
        return []
    return [bands.index(name) for name in colours] if len(colours) == 3 and {*colours} <= {*bands} else []


def _named(value: Any, classes: list[str]) -> Any:
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else value


def image_path(image: Any, written: Path, where: str, colours: Sequence[int] = ()) -> str:
    """The file of one image: its name, or where its content was written; `colours` are the bands to show."""
    if isinstance(image, str | Path):
        return str(image)
    if isinstance(image, Mapping) and image.get("bytes") is None and image.get("path"):
        return str(image["path"])
    if isinstance(image, Mapping):  # as `datasets` and parquet store images
        image = image.get("bytes")
    if hasattr(image, "detach"):  # of torch
        image = image.detach().cpu().numpy()
    if isinstance(image, np.ndarray):
        image = _picture(image, where, colours)
    if isinstance(image, bytes | bytearray):
        content, ending = bytes(image), "image"
    elif hasattr(image, "save") and hasattr(image, "convert"):  # of PIL
        stream = io.BytesIO()
        image.convert("RGB").save(stream, "PNG")
        content, ending = stream.getvalue(), "png"
    else:
        raise DataError(
            f"{where}: image is a {type(image).__name__}",
            fix="give a file name, a PIL image, an array, bytes, or a struct with bytes or path",
        )
    path = written / f"{hashlib.sha256(content).hexdigest()[:32]}.{ending}"
    if not path.is_file():
        path.write_bytes(content)
    return path.name


def _picture(values: np.ndarray, where: str, colours: Sequence[int]) -> Image.Image:
    """Bands (C, H, W), or (H, W, C), as an image; 0 to 1 and whole numbers to 255 are not stretched."""
    bands = values[None] if values.ndim == 2 else values
    if bands.ndim != 3 or bands.dtype.kind not in "uif" or 0 in bands.shape:
        raise DataError(
            f"{where}: image has shape {values.shape} of {values.dtype}", fix="give bands (C, H, W)"
        )
    if bands.shape[0] <= bands.shape[2]:
        bands = np.moveaxis(bands, 0, 2)  # (H, W, C)
    if colours and max(colours) < bands.shape[2]:
        bands = bands[..., list(colours)]
    elif bands.shape[2] > 4 and where.endswith("row 0"):
        log.warning(f"{where}: the first three of {bands.shape[2]} bands are taken for red, green and blue")
    if bands.min() >= 0 and bands.max() <= 255 and (bands == bands.round()).all():
        bands = bands.astype(np.uint8)
    elif bands.min() >= 0 and bands.max() <= 1:
        bands = (bands * 255).round().astype(np.uint8)
    return from_bands(bands)


def _plain(value: Any) -> Any:
    """Numbers and arrays as Python's; not-a-number, which frames put for nothing, as None."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return None if isinstance(value, float) and value != value else value
