"""Pairs that are in memory already, a data frame or a `datasets.Dataset`, as a PairTable.

Neither library is imported: a frame has `columns`, a dataset `column_names`, and both give a column by name.
Images that are no files are written to a folder, one file for each different content.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmpguard.data.column_names import CAPTION_NAMES, IMAGE_NAMES, STANDARD, ColumnNames, Columns
from pmpguard.data.pair_rows import PairRows
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError

SEVERAL_CAPTIONS = ("captions", "sentences", "texts")
NAME = "pairs"


def is_columnar(data: Any) -> bool:
    """Whether something has named columns."""
    return hasattr(data, "column_names") or hasattr(data, "columns")


def pairs_of_columns(data: Any, columns: str | Columns | None, root: Path | None, written: Path) -> PairTable:
    """The pairs of a frame or a dataset.

    `columns` names the columns of "image" and "caption" where they are not the usual ones; `root` is the
    folder that image names are relative to; `written` takes images that are no files.
    """
    names = list(data.column_names if hasattr(data, "column_names") else data.columns)
    given = {name: "+".join(chosen) for name, chosen in ColumnNames.of(columns).given}
    image = _column("image", IMAGE_NAMES, names, given)
    caption = _column("caption", (*CAPTION_NAMES, *SEVERAL_CAPTIONS), names, given)
    data = _undecoded(data, image)
    values = {name: list(data[name]) for name in names}
    rows = PairRows(Path(NAME))
    extra = [name for name in names if name not in (image, caption, *STANDARD)]
    for number, (shown, captions) in enumerate(zip(values[image], values[caption], strict=True)):
        where = f"row {number}"
        several = not isinstance(captions, str) and hasattr(captions, "__iter__")
        known = {name: _plain(values[name][number]) for name in STANDARD if name in values}
        path = image_path(shown, written, where)
        for sentence in captions if several else [captions]:
            rows.add(
                where,
                path,
                sentence,
                known.get("split") or "train",
                pair_id=None if several else known.get("pair_id"),
                image_id=known.get("image_id"),
                label=known.get("label"),
                extra={name: _plain(values[name][number]) for name in extra},
            )
    if root is None and any(written.glob("*")):
        root = written
    return rows.build(Path.cwd(), root, NAME)


def image_path(image: Any, written: Path, where: str) -> str:
    """The file of one image: its name, or where its content was written."""
    if isinstance(image, str | Path):
        return str(image)
    if isinstance(image, Mapping) and image.get("bytes") is None and image.get("path"):
        return str(image["path"])
    if isinstance(image, Mapping):  # as `datasets` and parquet store images
        image = image.get("bytes")
    if isinstance(image, bytes | bytearray):
        content, ending = bytes(image), "image"
    elif hasattr(image, "save") and hasattr(image, "convert"):  # of PIL
        stream = io.BytesIO()
        image.convert("RGB").save(stream, "PNG")
        content, ending = stream.getvalue(), "png"
    else:
        raise DataError(
            f"{where}: image is a {type(image).__name__}",
            fix="give a file name, a PIL image, bytes, or a struct with bytes or path",
        )
    path = written / f"{hashlib.sha256(content).hexdigest()[:32]}.{ending}"
    if not path.is_file():
        path.write_bytes(content)
    return path.name


def _column(what: str, usual: tuple[str, ...], names: list[str], columns: Mapping[str, str] | None) -> str:
    chosen = (columns or {}).get(what)
    unknown = sorted(set(columns or {}) - {"image", "caption"})
    if unknown:
        raise ConfigError(f"columns: {unknown[0]!r} is unknown", fix='name "image" and "caption"')
    if chosen is not None and chosen not in names:
        raise DataError(f"no column {chosen!r} for the {what}", fix=f"there are {', '.join(names)}")
    found = chosen or next((name for name in usual if name in names), None)
    if found is None:
        raise DataError(
            f"no column for the {what} among {', '.join(names)}",
            fix='name it: columns={"image": ..., "caption": ...}',
        )
    return found


def _undecoded(data: Any, image: str) -> Any:
    """A dataset whose images stay bytes or paths: decoding and writing them again would change them."""
    feature = getattr(data, "features", {}).get(image) if hasattr(data, "cast_column") else None
    kind: Any = type(feature)
    if kind.__name__ == "Image":
        return data.cast_column(image, kind(decode=False))
    return data


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python; not-a-number, which frames put for nothing, as None."""
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    return None if isinstance(value, float) and value != value else value
