"""Every format behind two functions: `read_pairs` finds the reader from the path, `write_pairs` writes.

A path is a file, a folder or a pattern of shards. Files are told apart by name, ending and first bytes; a
folder by the files in it, or in its folders named after splits.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pmpguard.data.formats.json_annotations import (
    read_jsonl,
    read_karpathy,
    read_nwpu,
    read_pir,
    write_jsonl,
    write_karpathy,
    write_pir,
)
from pmpguard.data.formats.parquet import read_parquet
from pmpguard.data.formats.shards import read_shards, write_folder, write_shards
from pmpguard.data.formats.text_lists import (
    CAPTION_FILE,
    read_amfmn,
    read_folder,
    read_openclip,
    read_rrsitr,
    write_amfmn,
    write_openclip,
)
from pmpguard.data.images.roots import missing_images
from pmpguard.data.known_datasets import differences
from pmpguard.data.pair_rows import CAPTION_NAMES, IMAGE_NAMES, split_in_name, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import CAPTION_ENDINGS, IMAGE_ENDINGS, expand_pattern, iter_members
from pmpguard.data.text_files import read_csv, require_content
from pmpguard.errors import ConfigError, DataError

log = logging.getLogger("pmpguard")
SEVERAL_FILES = ("amfmn", "parquet", "webdataset", "rs5m")
ONE_FILE = ("karpathy", "nwpu")
HEAD_BYTES = 65_536
PEEKED_MEMBERS = 16


@dataclass(frozen=True)
class Format:
    """A way of storing pairs: `read(files, images)`, and `write(table, path)` where writing makes sense."""

    about: str
    read: Callable[[list[Path], Path | None], PairTable]
    write: Callable[[PairTable, Path], None] | None = None
    endings: tuple[str, ...] = ()
    keeps_columns: bool = False
    copies_images: bool = False


FORMATS: dict[str, Format] = {
    "karpathy": Format("JSON of RSICD, RSITMD, UCM", read_karpathy, write_karpathy, (".json",)),
    "nwpu": Format("JSON of NWPU-Captions, by class", read_nwpu),
    "pir": Format("JSON lists of PIR and HarMA, one file per split", read_pir, write_pir),
    "amfmn": Format("<split>_caps.txt and <split>_filename.txt of AMFMN and SWAN", read_amfmn, write_amfmn),
    "rrsitr": Format("CSV of RRSITR: filename,title", read_rrsitr),
    "openclip": Format(
        "CSV or TSV of open_clip: filepath,title", read_openclip, write_openclip, (".csv", ".tsv"), True
    ),
    "jsonl": Format("one JSON object per line", read_jsonl, write_jsonl, (".jsonl", ".ndjson"), True),
    "parquet": Format("parquet, the fastest", read_parquet, PairTable.write_parquet, (".parquet",), True),
    "folder": Format("image folder with metadata.csv", read_folder, write_folder, (), True, True),
    "webdataset": Format("tar shards with .jpg/.png, .txt, .json", read_shards, write_shards, (), True, True),
    "rs5m": Format("tar shards of RS5M: .img_content, .img_name, .caption", read_shards),
}


def read_pairs(
    path: Path, *, format: str | None = None, images: Path | None = None, strict: bool = False
) -> PairTable:
    """Read a dataset. `format` overrides the search for the reader, `images` that for the images.

    Differences from the published counts of a known dataset and missing images are logged as warnings;
    `strict` makes them errors. `format="openclip:COLUMN,COLUMN"` names the image and the caption column.
    """
    name, _, columns = (format or "").partition(":")
    if name and name not in FORMATS:
        raise ConfigError(f"format {name!r} is not known", fix=f"one of {', '.join(FORMATS)}")
    if images is not None and not images.is_dir():
        raise DataError(f"{images}: no such image folder", fix="pass the folder that holds the images")
    if columns:
        chosen = tuple(columns.split(","))
        if name != "openclip" or len(chosen) != 2:
            raise ConfigError(
                f"format {format!r} is not known", fix="write openclip:IMAGE_COLUMN,CAPTION_COLUMN"
            )
        table = read_openclip([path], images, (chosen[0], chosen[1]))
    else:
        name, files = find_files(path, name or None)
        table = FORMATS[name].read(files, images)
    notes = table_notes(table)
    if notes and strict:
        raise DataError("\n".join(notes), fix="correct the data, or read it without strict")
    for note in notes:
        log.warning(note)
    return table


def table_notes(table: PairTable) -> list[str]:
    """What a user should know of a table: differences from the published dataset, images not found."""
    return [*differences(table), *filter(None, [missing_images(table)])]


def write_pairs(table: PairTable, path: Path, format: str) -> None:
    """Write a table; the target is whole or absent. Folder formats never replace a folder in use."""
    chosen = FORMATS.get(format)
    if chosen is None or chosen.write is None:
        known = ", ".join(name for name, kind in FORMATS.items() if kind.write)
        raise ConfigError(f"format {format!r} cannot be written", fix=f"one of {known}")
    if path.is_dir() and chosen.endings:
        raise DataError(
            f"{path}: is a folder, {format} is one file", fix=f"add a name such as pairs{chosen.endings[0]}"
        )
    chosen.write(table, path)


def find_files(path: Path, format: str | None = None) -> tuple[str, list[Path]]:
    """The format of a path and its annotation files, or an error listing what it might be."""
    if not path.exists():
        if not re.search(r"[{*?\[]", str(path)):
            raise DataError(f"{path}: no such file or folder", fix="check the path")
        found = group_by_format(expand_pattern(str(path)))
    elif path.is_dir():
        found = group_by_format(sorted(path.iterdir()))
        if not found:
            below = [
                folder for folder in sorted(path.iterdir()) if folder.is_dir() and split_in_name(folder.name)
            ]
            found = group_by_format([file for folder in below for file in sorted(folder.iterdir())])
    else:
        require_content(path)
        found = {format: [path]} if format else group_by_format([path])
    if format:
        found = {format: found[format]} if format in found else {}
    if not found:
        raise DataError(
            f"{path}: format not recognised{f' as {format}' if format else ''}{_archives_only(path)}",
            fix=f"say which with --format, one of {', '.join(FORMATS)}",
        )
    if len(found) > 1:
        listed = "; ".join(
            f"{name}: {', '.join(file.name for file in files[:3])}" for name, files in found.items()
        )
        raise DataError(
            f"{path}: holds several formats ({listed})", fix="choose one with --format or name a file"
        )
    name, files = next(iter(found.items()))
    if name not in SEVERAL_FILES:
        _require_one_per_split(path, files, name in ONE_FILE)
    return name, files


def _require_one_per_split(path: Path, files: list[Path], one_file: bool) -> None:
    splits: dict[str, Path] = {}
    for file in files:
        other = splits.setdefault("" if one_file else split_of_file(file), file)
        if other != file:
            raise DataError(
                f"{path}: {other.name} and {file.name} may both be meant", fix="pass the path of one file"
            )


def _archives_only(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    archives = [file.name for file in sorted(folder.glob("*.tar"))] if folder.is_dir() else []
    return (
        f" ({archives[0]} holds images without captions: extract it beside the annotations)"
        if archives
        else ""
    )


def group_by_format(files: list[Path]) -> dict[str, list[Path]]:
    """Annotation files by format; files that are none are left out."""
    found: dict[str, list[Path]] = {}
    for file in files:
        name = sniff(file) if file.is_file() else None
        if name:
            found.setdefault(name, []).append(file)
    return found


def sniff(path: Path) -> str | None:
    """The format of one file from its name and first bytes, None when it is no annotation file."""
    ending = path.suffix.lower()
    if CAPTION_FILE.fullmatch(path.name):
        return "amfmn"
    if ending in (".jsonl", ".ndjson"):
        return "jsonl"
    if ending in (".csv", ".tsv"):
        return _sniff_header(path)
    if ending == ".tar":
        return _sniff_shard(path)
    if ending not in (".json", ".parquet"):
        return None
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet"
    return _sniff_json(head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n"))


def _sniff_json(head: str) -> str | None:
    if head.startswith("["):
        return "pir" if '"image"' in head and '"caption"' in head else None
    if re.search(r'"images"\s*:\s*\[', head):
        return "karpathy"
    if re.match(r'\{\s*"[^"]*"\s*:\s*\[\s*\{', head) and '"raw"' in head:
        return "nwpu"
    first = head.partition("\n")[0]
    return "jsonl" if re.match(r"\{.*\}\s*$", first) and '"image"' in first and '"caption"' in first else None


def _sniff_header(path: Path) -> str | None:
    if not path.stat().st_size:
        return None
    header = set(read_csv(path)[0])
    if "file_name" in header:
        return "folder"
    if {"filename", "title"} <= header:
        return "rrsitr"
    return "openclip" if header & set(IMAGE_NAMES) and header & set(CAPTION_NAMES) else None


def _sniff_shard(path: Path) -> str | None:
    endings = set()
    with path.open("rb") as stream:
        for _, member in zip(range(PEEKED_MEMBERS), iter_members(stream, str(path)), strict=False):
            endings.add(member.name.rpartition(".")[2].lower())
    if "img_content" in endings:
        return "rs5m"
    return "webdataset" if endings & set(IMAGE_ENDINGS) and endings & {*CAPTION_ENDINGS, "json"} else None
