"""Tables from tar shards, and tables with their images written as shards."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pmpguard.data.byte_ranges import open_shard
from pmpguard.data.column_names import STANDARD, ColumnNames
from pmpguard.data.dataset_card import CARD, dataset_card
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.images.roots import OUTSIDE, OUTSIDE_FIX, is_confined
from pmpguard.data.pair_rows import (
    PairRows,
    dataset_name,
    images_in_order,
    json_value,
    split_of_file,
)
from pmpguard.data.pairs import PairTable
from pmpguard.data.samples import CAPTION_ENDINGS, describe_sample, group_samples
from pmpguard.data.shards import (
    IMAGE_ENDINGS,
    MAX_MEMBER_BYTES,
    iter_members,
    read_member,
    split_reference,
)
from pmpguard.data.text_files import require_content
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import new_directory, write_atomic
from pmpguard.safe_text import one_line

SAMPLES_PER_SHARD = 1000
MAX_SPLIT_BYTES = 100
_SIGNATURES = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"II+\0": "tif",
    b"MM\0+": "tif",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"\0\0\0\x0cjP": "jp2",
}


def recognise_rs5m(file: Peek) -> bool:
    return "img_content" in file.members


def recognise_webdataset(file: Peek) -> bool:
    endings = {ending.rpartition(".")[2] for ending in file.members}
    captioned = bool(file.names) or endings & {*CAPTION_ENDINGS, "json"}
    return bool(endings & set(IMAGE_ENDINGS)) and bool(captioned)


def read_shards(
    files: list[Path],
    images: Path | None,
    names: ColumnNames = ColumnNames(),  # noqa: B008 - frozen
) -> PairTable:
    """Captions and image references of webdataset or RS5M shards; image bytes are skipped, not read."""
    root, named = images or common_folder(files), dict(names.given)
    if set(named) - {"image", "caption"}:
        raise ConfigError("columns: only image and caption of a shard can be named", fix="leave others out")
    image_as, captions_as = named.get("image", (None,))[0], named.get("caption", ())
    rows = PairRows(files[0])
    for path in files:
        require_content(path)
        if not path.is_relative_to(root):
            raise DataError(f"{path}: shard lies outside {root}", fix="leave --images out for shards")
        shard, split = path.relative_to(root).as_posix(), split_of_file(path)
        with open_shard(path) as stream:
            for key, members in group_samples(iter_members(stream, str(path)), str(path)):
                image, captions, metadata = describe_sample(stream, path, key, members, image_as, captions_as)
                _add_sample(
                    rows, f"{path} sample {key!r}", f"{shard}#{image.name}", captions, metadata, split
                )
    return rows.build_below(root, rows.columns["image"], dataset_name(files[0]))


def _add_sample(
    rows: PairRows, where: str, image: str, captions: tuple[str, ...], metadata: dict[str, Any], split: str
) -> None:
    """One row per caption; `pairs` in the metadata holds a list of values, one per caption, for each name."""
    lists = metadata.pop("pairs", {})
    if not isinstance(lists, dict):
        raise DataError(
            f"{where}: pairs is no object", fix='write {"pairs": {"name": [...]}} or leave it out'
        )
    for name, values in lists.items():
        if not isinstance(values, list) or len(values) != len(captions):
            raise DataError(
                f"{where}: pairs.{name} does not match {len(captions)} captions", fix="give one each"
            )
    for number, caption in enumerate(captions):
        record = {**metadata, **{name: values[number] for name, values in lists.items()}}
        rows.add(
            where,
            image,
            caption,
            record.get("split") or split,
            pair_id=record.get("pair_id"),
            image_id=record.get("image_id"),
            label=record.get("label"),
            extra={name: value for name, value in record.items() if name not in STANDARD},
        )


def image_bytes(table: PairTable, image: str) -> bytes:
    """An image as stored; only files that begin like an image are ever copied."""
    name, member = split_reference(image)
    path = table.root / name
    if not is_confined(table, path):
        raise DataError(f"{one_line(image)}: {OUTSIDE} {table.root}", fix=OUTSIDE_FIX)
    if member is not None:
        data = read_member(path, member)
    elif not path.is_file():
        raise DataError(f"{path}: image not found", fix="pass the folder that holds the images with --images")
    elif path.stat().st_size > MAX_MEMBER_BYTES:
        raise DataError(f"{path}: over {MAX_MEMBER_BYTES:,} bytes", fix="make the image smaller")
    else:
        data = path.read_bytes()
    if image_ending(data) is None:
        raise DataError(f"{table.root / image}: does not begin like an image", fix="remove its pairs")
    return data


def image_ending(data: bytes) -> str | None:
    """The usual ending for an image's bytes, None when they are no known image.

    >>> image_ending(b"BM..."), image_ending(b"root:x:0:0")
    ('bmp', None)
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((ending for signature, ending in _SIGNATURES.items() if data.startswith(signature)), None)


def write_shards(table: PairTable, target: Path, about: Sequence[str] = ()) -> None:
    """A card, and shards `<split>-000000.tar`: the image, its first caption as .txt, everything as .json."""
    splits = list(table.splits())
    with new_directory(target) as folder:
        for split in splits:
            check_split_name(table, split)
            images = list(images_in_order(table.split(split)))
            for start in range(0, len(images), SAMPLES_PER_SHARD):
                shard = folder / f"{split}-{start // SAMPLES_PER_SHARD:06d}.tar"
                with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT) as tar:
                    for number, rows in enumerate(images[start : start + SAMPLES_PER_SHARD], start):
                        _write_sample(tar, f"{number:08d}", table, rows)
        card = dataset_card(table, {split: f"{split}-??????.tar" for split in splits}, about)
        write_atomic(folder / CARD, card)


def check_split_name(table: PairTable, split: str) -> None:
    """Refuse a split that cannot be part of a file's name."""
    if "/" in split or split.startswith(".") or len(split.encode()) > MAX_SPLIT_BYTES:
        raise DataError(f"{table.name}: split {split[:99]!r} cannot name a file", fix="rename the split")


def _write_sample(tar: tarfile.TarFile, key: str, table: PairTable, rows: list[dict[str, Any]]) -> None:
    data = image_bytes(table, rows[0]["image"])
    described: dict[str, Any] = {"captions": [row["caption"] for row in rows], "pairs": {}}
    for name in rows[0].keys() - {"image", "caption"}:
        values = [row[name] for row in rows]
        if name == "pair_id" or any(value != values[0] for value in values):
            described["pairs"][name] = values
        elif values[0] is not None:
            described[name] = values[0]
    text = json.dumps(described, ensure_ascii=False, sort_keys=True, default=json_value)
    for ending, content in (
        (image_ending(data), data),
        ("txt", rows[0]["caption"].encode()),
        ("json", text.encode()),
    ):
        member = tarfile.TarInfo(f"{key}.{ending}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


WEBDATASET = Format(
    "tar shards with .jpg/.png, .txt, .json",
    recognise_webdataset,
    read_shards,
    write_shards,
    several_files=True,
    names_columns=True,
    keeps_columns=True,
    copies_images=True,
    has_card=True,
)
RS5M = Format(
    "tar shards of RS5M: .img_content, .img_name, .caption", recognise_rs5m, read_shards, several_files=True
)
