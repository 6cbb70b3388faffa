"""Rows on their way into a PairTable and out of it; each is checked, and each error names the row's place."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pmpguard.data.images.roots import locate_images
from pmpguard.data.pairs import COORDINATES, PairTable
from pmpguard.errors import DataError

MAX_CAPTION_CHARACTERS = 10_000
STANDARD = ("pair_id", "image", "caption", "split", "image_id", "label")
IMAGE_NAMES = ("image", "filepath", "file_name", "filename", "image_path", "path", "img_name", "name")
CAPTION_NAMES = ("caption", "title", "text", "sentence", "raw")
TIME = pa.timestamp("us", tz="UTC")
_SPLIT_WORDS = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}
_UNKNOWN_LABELS = ("", "unnamed", "none")


class PairRows:
    """Collects rows from a reader and builds the table from them."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.columns: dict[str, list[Any]] = {name: [] for name in STANDARD}
        self.extra: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self.columns["image"])

    def add(
        self,
        where: str,
        image: Any,
        caption: Any,
        split: Any,
        *,
        pair_id: Any = None,
        image_id: Any = None,
        label: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Check one row and keep it; `where` names it in errors, such as `pairs.csv line 3`."""
        count = len(self)
        columns = self.columns
        columns["image"].append(checked_image(image, where))
        columns["caption"].append(checked_caption(caption, where))
        if not isinstance(split, str) or not split:
            raise DataError(f"{where}: split is {split!r}", fix="use a name such as train, val or test")
        columns["split"].append(split)
        columns["pair_id"].append(None if pair_id is None else str(pair_id))
        columns["image_id"].append(None if image_id is None else str(image_id))
        columns["label"].append(None if str(label).lower() in _UNKNOWN_LABELS else str(label))
        for name, value in (extra or {}).items():
            values = self.extra.setdefault(name, [])
            values.extend([None] * (count - len(values)))
            values.append(checked_extra(name, value, where))

    def build(self, folder: Path, images: Path | None, name: str) -> PairTable:
        """The table, with images looked for from `folder` on; ids that were not given are filled in.

        A pair without an id gets `<image>#<n>`, the n-th caption of its image, so that one dataset has the
        same ids in every format.
        """
        root, named = locate_images(self.columns["image"], folder, images)
        return self.build_below(root, named, name)

    def build_below(self, root: Path, images: list[str], name: str) -> PairTable:
        """The table, with `images` relative to the known folder `root`."""
        if not len(self):
            raise DataError(f"{self.source}: holds no pairs", fix="check that this is the right file")
        seen: Counter[str] = Counter()
        pair_ids = []
        for image, given in zip(images, self.columns["pair_id"], strict=True):
            pair_ids.append(f"{image}#{seen[image]}" if given is None else given)
            seen[image] += 1
        image_ids = [given or image for given, image in zip(self.columns["image_id"], images, strict=True)]
        known: dict[str, Any] = {**self.columns, "image": images, "pair_id": pair_ids, "image_id": image_ids}
        columns = {column: pa.array(values, pa.string()) for column, values in known.items()}
        for column, values in self.extra.items():
            values.extend([None] * (len(self) - len(values)))
            try:
                columns[column] = pa.array(values, TIME if column == "time" else None)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise DataError(
                    f"{self.source}: field {column!r} mixes kinds of values ({error})",
                    fix="give the field one type in every row",
                ) from error
        return PairTable.from_columns(pa.table(columns), root, name, str(self.source))


def checked_image(image: Any, where: str) -> str:
    if not isinstance(image, str) or not image.strip():
        raise DataError(f"{where}: image is {image!r}", fix="give the image's file name")
    if "\0" in image:
        raise DataError(f"{where}: image name holds a NUL character", fix="correct the name")
    return image


def checked_caption(caption: Any, where: str) -> str:
    if not isinstance(caption, str):
        raise DataError(f"{where}: caption is {caption!r}, not text", fix="give one sentence as text")
    if len(caption) > MAX_CAPTION_CHARACTERS:
        raise DataError(
            f"{where}: caption has {len(caption):,} characters, over {MAX_CAPTION_CHARACTERS:,}",
            fix="shorten it or remove the row",
        )
    return caption


def checked_extra(name: str, value: Any, where: str) -> Any:
    """Coordinates as finite degrees, times as UTC; anything else as it is, an empty string as unknown."""
    if value is None or value == "":
        return None
    if name in COORDINATES:
        try:
            degrees = float(value)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{where}: {name} is {value!r}, not a number", fix="correct it or leave it empty"
            ) from error
        if not math.isfinite(degrees) or abs(degrees) > COORDINATES[name]:
            raise DataError(
                f"{where}: {name} is {value}, outside ±{COORDINATES[name]:g}",
                fix="correct it or leave it empty",
            )
        return degrees
    if name == "time":
        try:
            moment = datetime.datetime.fromisoformat(value)
        except (TypeError, ValueError) as error:
            raise DataError(f"{where}: time is {value!r}", fix="write it as 2024-05-01T12:00:00Z") from error
        return moment.astimezone(datetime.UTC) if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return value


def add_record(rows: PairRows, where: str, record: Mapping[str, Any], split: str) -> None:
    """Add a row given as named fields, under any of the usual names; further fields are kept."""
    image = field_of(record, IMAGE_NAMES, where)
    caption = field_of(record, CAPTION_NAMES, where)
    used = {image, caption, *STANDARD}
    extra = {name: value for name, value in record.items() if name not in used}
    captions = record[caption]
    several = isinstance(captions, list)
    for sentence in captions if several else [captions]:
        rows.add(
            where,
            record[image],
            sentence,
            record.get("split") or split,
            pair_id=None if several else record.get("pair_id") or None,
            image_id=record.get("image_id") or None,
            label=record.get("label"),
            extra=extra,
        )


def iter_rows(table: PairTable) -> Iterator[dict[str, Any]]:
    """Every row as named values, a few thousand in memory at a time."""
    for batch in table.arrow.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def images_in_order(table: PairTable) -> Iterator[list[dict[str, Any]]]:
    """The rows of each image, in order of first appearance; a image must have one split, label and id."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in iter_rows(table):
        groups.setdefault(row["image"], []).append(row)
    for image, rows in groups.items():
        for field in ("split", "label", "image_id"):
            values = {row[field] for row in rows}
            if len(values) > 1:
                raise DataError(
                    f"{table.name}: image {image} has {field} {' and '.join(sorted(map(str, values)))}",
                    fix=f"this format holds one {field} per image; write jsonl or parquet instead",
                )
        yield rows


def json_value(value: Any) -> str:
    """What JSON cannot hold by itself: times as ISO 8601."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    raise DataError(
        f"a {type(value).__name__} cannot be written as JSON", fix="drop the column or write parquet"
    )


def field_of(record: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    """The first of `names` that the record has."""
    for name in names:
        if name in record:
            return name
    raise DataError(f"{where}: no field {names[0]!r}", fix=f"found {', '.join(record) or 'nothing'}")


def split_in_name(name: str) -> str | None:
    """The split a file or folder name speaks of.

    >>> split_in_name("pub11-train-0003.tar"), split_in_name("a_valid.json"), split_in_name("training.csv")
    ('train', 'val', None)
    """
    words = re.split(r"[^a-z]+", name.lower())
    return next((_SPLIT_WORDS[word] for word in reversed(words) if word in _SPLIT_WORDS), None)


def split_of_file(path: Path) -> str:
    """The split named by the file or its folder, "train" when neither names one."""
    return split_in_name(path.name) or split_in_name(path.parent.name) or "train"


def dataset_name(path: Path) -> str:
    """A dataset's name from its annotation file: without `dataset_`, split words and shard numbers.

    >>> dataset_name(Path("x/dataset_rsicd.json")), dataset_name(Path("x/rs3-val-0001.tar"))
    ('rsicd', 'rs3')
    """
    stem = path.name.split(".")[0].removeprefix("dataset_")
    words = [
        word
        for word in re.split(r"[_-]", stem)
        if word and word.lower() not in _SPLIT_WORDS and not re.fullmatch(r"\d{3,}", word)
    ]
    return "_".join(words) or path.parent.name or "pairs"
