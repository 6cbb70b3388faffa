"""Every format behind two functions: `read_pairs` finds the reader from the path, `write_pairs` writes.

A path is a file, a folder or a pattern of shards. Files are told apart by name, ending and first bytes; a
folder by the files in it, or in its folder `data` or those named after splits. Each format is one module here
and says how its files are recognised; the first in `FORMATS` that recognises a file reads it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pmpguard.data.column_names import ColumnNames, Columns
from pmpguard.data.formats.amfmn import AMFMN
from pmpguard.data.formats.arrow import ARROW, SPLITS_FILE
from pmpguard.data.formats.caption_files import CAPTION_FILES
from pmpguard.data.formats.coco import COCO
from pmpguard.data.formats.delimited import CSV
from pmpguard.data.formats.excel import EXCEL
from pmpguard.data.formats.flickr import FLICKR
from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.formats.hub import HUB
from pmpguard.data.formats.image_folder import FOLDER
from pmpguard.data.formats.jsonl import JSONL
from pmpguard.data.formats.karpathy import KARPATHY
from pmpguard.data.formats.llava import LLAVA
from pmpguard.data.formats.nwpu import NWPU
from pmpguard.data.formats.parquet import PARQUET
from pmpguard.data.formats.pir import PIR
from pmpguard.data.formats.rrsitr import RRSITR
from pmpguard.data.formats.scan import SCAN
from pmpguard.data.formats.shards import RS5M, WEBDATASET
from pmpguard.data.formats.unrecognised import not_recognised
from pmpguard.data.images.roots import missing_images
from pmpguard.data.known_datasets import differences
from pmpguard.data.pair_rows import split_in_name, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import expand_pattern, is_shard, split_reference
from pmpguard.data.text_files import require_content
from pmpguard.errors import ConfigError, DataError
from pmpguard.remote import as_path, exists, is_remote, local_file

log = logging.getLogger("pmpguard")

FORMATS: dict[str, Format] = {
    "captions": CAPTION_FILES,
    "coco": COCO,
    "karpathy": KARPATHY,
    "nwpu": NWPU,
    "llava": LLAVA,
    "pir": PIR,
    "scan": SCAN,
    "amfmn": AMFMN,
    "flickr": FLICKR,
    "folder": FOLDER,
    "rrsitr": RRSITR,
    "csv": CSV,
    "excel": EXCEL,
    "parquet": PARQUET,
    "hub": HUB,
    "arrow": ARROW,
    "jsonl": JSONL,
    "rs5m": RS5M,
    "webdataset": WEBDATASET,
}


def read_pairs(
    path: Path | str,
    columns: str | Columns | None = None,
    *,
    format: str | None = None,
    images: Path | None = None,
    strict: bool = False,
    allow_outside: bool | None = None,
) -> PairTable:
    """Read a dataset. `format` overrides the search for the reader, `images` that for the images.

    `columns` names columns that have unusual names: `{"image": "Bild", "caption": ["c1", "c2"]}`, or
    `"image=Bild,caption=c1+c2"`. Differences from the published counts of a known dataset and missing images
    are logged as warnings; `strict` makes them errors. Images outside the folder of the images, by an
    absolute path, `..` or a link, are refused when they are opened; `allow_outside` opens them.
    """
    if not isinstance(path, str | Path):
        raise DataError(
            f"the path is a {type(path).__name__}",
            fix="give a file or folder; pmpguard.audit also takes data frames and datasets",
        )
    path, names = as_path(path), ColumnNames.of(columns)
    if format and format not in FORMATS:
        raise ConfigError(f"format {format!r} is not known", fix=f"one of {', '.join(FORMATS)}")
    if images is not None and not is_remote(images) and not images.is_dir():
        raise DataError(f"{images}: no such image folder", fix="pass the folder that holds the images")
    name, files = find_files(path, format or None, names)
    kind = FORMATS[name]
    if names and not kind.names_columns:
        raise ConfigError(f"{path}: {name} has no columns to name", fix="leave --columns out")
    table = kind.read(files, images, names) if kind.names_columns else kind.read(files, images)
    if is_remote(path) and not is_remote(table.root):
        table = replace(table, root=_remote_root(path, table))
    notes = table_notes(table)
    if notes and strict:
        raise DataError("\n".join(notes), fix="correct the data, or read it without strict")
    for note in notes:
        log.warning(note)
    return table if allow_outside is None else replace(table, allow_outside=allow_outside)


def table_notes(table: PairTable) -> list[str]:
    """What a user should know of a table: differences from the published dataset, images not found."""
    return [*differences(table), *filter(None, [missing_images(table)])]


def write_pairs(table: PairTable, path: Path, format: str, about: Sequence[str] = ()) -> None:
    """Write a table; the target is whole or absent. Folder formats never replace a folder in use.

    `about` are lines for the dataset's card, in formats that have one.
    """
    chosen = FORMATS.get(format)
    if chosen is None or chosen.write is None:
        known = ", ".join(name for name, kind in FORMATS.items() if kind.write)
        raise ConfigError(f"format {format!r} cannot be written", fix=f"one of {known}")
    if path.is_dir() and chosen.endings:
        raise DataError(
            f"{path}: is a folder, {format} is one file", fix=f"add a name such as pairs{chosen.endings[0]}"
        )
    chosen.write(table, path, about) if chosen.has_card else chosen.write(table, path)


def find_files(
    path: Path,
    format: str | None = None,
    names: ColumnNames = ColumnNames(),  # noqa: B008 - frozen
) -> tuple[str, list[Path]]:
    """The format of a path and its annotation files, or an error listing what it might be."""
    if is_remote(path):
        files = local_copies(expand_pattern(str(path)))
        found = group_by_format(files, names)
    elif not path.exists():
        if not re.search(r"[{*?\[]", str(path)):
            raise DataError(f"{path}: no such file or folder", fix="check the path")
        files = expand_pattern(str(path))
        found = group_by_format(files, names)
    elif path.is_dir():
        files, found = search_folder(path, names)
    else:
        require_content(path)
        files = [path]
        found = {format: files} if format else group_by_format(files, names)
    if format:
        found = {format: found[format]} if format in found else {}
    elif "parquet" in found and {file.stem for file in found["parquet"]} <= _stems(
        found.get("webdataset", [])
    ):
        del found["parquet"]  # img2dataset's lists of what is in the shards of the same names
    if not found:
        there = files if files or is_remote(path) else sorted(path.iterdir())
        raise not_recognised(path, there, format, names, list(FORMATS))
    if len(found) > 1:
        listed = "; ".join(
            f"{name}: {', '.join(file.name for file in files[:3])}" for name, files in found.items()
        )
        raise DataError(
            f"{path}: holds several formats ({listed})", fix="choose one with --format or name a file"
        )
    name, files = next(iter(found.items()))
    if not FORMATS[name].several_files:
        _require_one_per_split(path, files, FORMATS[name].one_file)
    return name, files


def search_folder(
    path: Path,
    names: ColumnNames = ColumnNames(),  # noqa: B008 - frozen
) -> tuple[list[Path], dict[str, list[Path]]]:
    """The files that were looked at last, and annotations by format: in the folder, or in those of splits."""
    files = sorted(path.iterdir())
    found = group_by_format(files, names)
    if not found:
        files = [file for folder in _split_folders(path) for file in sorted(folder.iterdir())]
        found = group_by_format(files, names)
    for pattern in ("*/metadata.*", "data/*/metadata.*"):
        if not found:
            files = sorted(path.glob(pattern))
            found = group_by_format(files, names)
    return files, found


def local_copies(files: list[Path]) -> list[Path]:
    """Of files at an address the shards, read where they lie, and copies of what may be annotations."""
    endings = (".json", ".jsonl", ".csv", ".tsv", ".txt", ".token", ".parquet")
    named = [file for file in files if is_shard(file) or file.name.lower().endswith(endings)]
    return [file if is_shard(file) else local_file(file) for file in named]


def _remote_root(path: Path, table: PairTable) -> Path:
    """Where the images lie that a table at an address names: in the table itself, in `images`, beside it."""
    name, member = split_reference(str(table.arrow["image"][0]))
    if member is not None and (table.root / name).is_file():
        return table.root
    folder = path.parent if path.suffix else path
    return next((place for place in (folder / "images", folder) if exists(place / name)), folder)


def _split_folders(path: Path) -> list[Path]:
    """The folders of a folder that are named after splits; also `data`, where the Hub has them.

    All folders of what `datasets.save_to_disk` wrote are splits.
    """
    every = (path / SPLITS_FILE).is_file()
    return [
        folder
        for folder in sorted(path.iterdir())
        if folder.is_dir() and (every or folder.name in ("data", "annotations") or split_in_name(folder.name))
    ]


def _stems(files: list[Path]) -> set[str]:
    return {file.name.partition(".")[0] for file in files}


def _require_one_per_split(path: Path, files: list[Path], one_file: bool) -> None:
    splits: dict[str, Path] = {}
    for file in files:
        other = splits.setdefault("" if one_file else split_of_file(file), file)
        if other != file:
            raise DataError(
                f"{path}: {other.name} and {file.name} may both be meant", fix="pass the path of one file"
            )


def group_by_format(
    files: list[Path],
    names: ColumnNames = ColumnNames(),  # noqa: B008 - frozen
) -> dict[str, list[Path]]:
    """Annotation files by format; files that are none are left out."""
    found: dict[str, list[Path]] = {}
    for file in files:
        there = is_remote(file) or (file.is_file() and file.stat().st_size)
        name = recognise(file, names) if there else None
        if name:
            found.setdefault(name, []).append(file)
    return found


def recognise(path: Path, names: ColumnNames = ColumnNames()) -> str | None:  # noqa: B008 - frozen
    """The format of one file from its name and first bytes, None when it is no annotation file.

    Who names columns means a format that has columns, if one can be meant.
    """
    peek = Peek(path, names)
    ordered = sorted(FORMATS, key=lambda name: bool(names) and not FORMATS[name].names_columns)
    return next((name for name in ordered if FORMATS[name].recognise(peek)), None)
