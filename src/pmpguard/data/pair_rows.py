"""Rows on their way into a PairTable and out of it; each is checked, and each error names the row's place."""

from __future__ import annotations

import datetime
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pmpguard.data.column_names import CAPTION_NAMES, STANDARD, ColumnNames
from pmpguard.data.images.roots import locate_images
from pmpguard.data.pairs import COORDINATES, PairTable
from pmpguard.errors import DataError

log = logging.getLogger("pmpguard")
MAX_CAPTION_CHARACTERS = 10_000
TIME = pa.timestamp("us", tz="UTC")
_SPLIT_WORDS = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}
_SPLIT_VALUES = {**_SPLIT_WORDS, "training": "train", "testing": "test", "restval": "train"}
_TEXT = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
_QUOTED, _QUOTED_LIST = re.compile(_TEXT), re.compile(rf"\[\s*{_TEXT}(?:\s*+(?:,\s*+)?{_TEXT})*+\s*\]")
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
        columns["split"].append(split_called(_checked_text("split", split, where)))
        columns["pair_id"].append(checked_word("pair_id", pair_id, where))
        columns["image_id"].append(checked_word("image_id", image_id, where))
        label = checked_word("label", label, where)
        columns["label"].append(None if str(label).lower() in _UNKNOWN_LABELS else label)
        for name, value in (extra or {}).items():
            if name not in self.extra:
                self.extra[_checked_text("a field's name", name, where)] = []
            values = self.extra[name]
            values.extend([None] * (count - len(values)))
            values.append(checked_extra(name, value, where))

    def build(self, folder: Path, images: Path | None, name: str, likely: Path | None = None) -> PairTable:
        """The table, with images looked for in `likely` and from `folder` on; missing ids are filled in.

        A pair without an id gets `<image>#<n>`, the n-th caption of its image, so that one dataset has the
        same ids in every format.
        """
        root, named = locate_images(self.columns["image"], folder, images, likely)
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
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                why = str(error).partition("\n")[0][:200]
                log.warning(f"{self.source}: field {column!r} is left out, it mixes kinds of values ({why})")
        return PairTable.from_columns(pa.table(columns), root, name, str(self.source))


def checked_image(image: Any, where: str) -> str:
    if not isinstance(image, str) or not image.strip():
        raise DataError(f"{where}: image is {image!r:.200}", fix="give the image's file name")
    if "\0" in image:
        raise DataError(f"{where}: image name holds a NUL character", fix="correct the name")
    return _checked_text("image", image, where)


def checked_caption(caption: Any, where: str) -> str:
    if not isinstance(caption, str):
        raise DataError(f"{where}: caption is {caption!r:.200}, not text", fix="give one sentence as text")
    if len(caption) > MAX_CAPTION_CHARACTERS:
        raise DataError(
            f"{where}: caption has {len(caption):,} characters, over {MAX_CAPTION_CHARACTERS:,}",
            fix="shorten it or remove the row",
        )
    return _checked_text("caption", caption, where)


def checked_word(name: str, value: Any, where: str) -> str | None:
    """An id or a class: a text, or a number as text."""
    if value is None or isinstance(value, str):
        return value if value is None else _checked_text(name, value, where)
    if isinstance(value, int | float):
        return str(value)
    raise DataError(f"{where}: {name} is {value!r:.200}", fix="give one text or number")


def _checked_text(name: str, value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {name} holds {value[error.start]!a}, half a character that no text file can hold",
            fix="correct it, or write the file again as UTF-8",
        ) from error
    return value


def checked_extra(name: str, value: Any, where: str) -> Any:
    """Coordinates as finite degrees, times as UTC; anything else as it is, an empty string as unknown."""
    if value is None or value == "":
        return None
    if name in COORDINATES:
        try:
            degrees = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{where}: {name} is {value!r:.200}, not a number", fix="correct it or leave it empty"
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
            raise DataError(
                f"{where}: time is {value!r:.200}", fix="write it as 2024-05-01T12:00:00Z"
            ) from error
        try:
            return moment.astimezone(datetime.UTC) if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        except OverflowError as error:
            raise DataError(f"{where}: time is {value!r}", fix="give a year between 1 and 9999") from error
    return value


def add_record(
    rows: PairRows,
    where: str,
    record: Mapping[str, Any],
    split: str,
    names: ColumnNames = ColumnNames(),  # noqa: B008 - frozen
    below: str = "",
) -> None:
    """Add a row given as named fields: a pair for each caption; further fields are kept.

    `below` is the folder that the record's image name starts from.
    """
    fields = names.find(list(record), where)
    used = {fields.image, *fields.captions, *fields.standard.values(), *STANDARD}
    extra = {name: value for name, value in record.items() if name not in used}
    known = {name: record[column] for name, column in fields.standard.items()}
    extra |= {name: value for name, value in known.items() if name not in STANDARD}
    image = record[fields.image]
    if below and isinstance(image, str) and not image.startswith("/"):
        image = f"{below}/{image}"
    sentences = _sentences(record, fields.captions)
    for sentence in sentences:
        rows.add(
            where,
            image,
            sentence,
            known.get("split") or split,
            pair_id=None if len(sentences) > 1 or known.get("pair_id") == "" else known.get("pair_id"),
            image_id=None if known.get("image_id") == "" else known.get("image_id"),
            label=known.get("label"),
            extra=extra,
        )


def _sentences(record: Mapping[str, Any], columns: tuple[str, ...]) -> list[Any]:
    """The captions of a record; of several columns those that say something."""
    found = [sentence for column in columns for sentence in _listed(record[column])]
    spoken = [sentence for sentence in found if sentence is not None and sentence != ""]
    return spoken or found[:1] or [None]


def _listed(value: Any) -> list[Any]:
    """A cell as captions: a list, a list written as text, objects that hold a caption, or one text."""
    if isinstance(value, str):
        value = listed_text(value)
    if not isinstance(value, list):
        return [value]
    return [
        next((item[name] for name in CAPTION_NAMES if name in item), item)
        if isinstance(item, Mapping)
        else item
        for item in value
    ]


def listed_text(cell: str) -> str | list[str]:
    """A list of texts as JSON, Python or NumPy write it; anything else as it is.

    >>> listed_text('["a", "b"]'), listed_text("['a pond' 'two']"), listed_text("[sic] a pond")
    (['a', 'b'], ['a pond', 'two'], '[sic] a pond')
    """
    if not (cell.startswith(('["', "['")) and cell.endswith("]")):
        return cell
    try:
        parsed = json.loads(cell)
    except (ValueError, RecursionError):
        texts = [text[1:-1] for text in _QUOTED.findall(cell)] if _QUOTED_LIST.fullmatch(cell) else []
        return [re.sub(r"\\(.)", r"\1", text) for text in texts] or cell
    return parsed if all(isinstance(item, str) for item in parsed) else cell


def iter_rows(table: PairTable) -> Iterator[dict[str, Any]]:
    """Every row as named values, a few thousand in memory at a time."""
    for batch in table.arrow.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def images_in_order(table: PairTable) -> Iterator[list[dict[str, Any]]]:
    """The rows of each image, in order of first appearance; an image must have one split, label and id."""
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


def split_called(value: str) -> str:
    """The usual name of a split, whatever a dataset calls it; COCO's `restval` is trained on, as by others.

    >>> split_called("Validation"), split_called("dev"), split_called("restval"), split_called("north")
    ('val', 'val', 'train', 'north')
    """
    return _SPLIT_VALUES.get(value.strip().lower(), value)


def split_in_name(name: str) -> str | None:
    """The split a file or folder name speaks of; none where it speaks of several, as `RS3_train_val.csv`.

    >>> split_in_name("pub11-train-0003.tar"), split_in_name("a_valid.json"), split_in_name("train_val.csv")
    ('train', 'val', None)
    """
    words = re.split(r"[^a-z]+", name.lower())
    named = {_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS}
    return named.pop() if len(named) == 1 else None


def split_of_file(path: Path) -> str:
    """The split named by the file or its folder, "train" when neither names one."""
    return split_in_name(path.name) or split_in_name(path.parent.name) or "train"


def dataset_name(path: Path) -> str:
    """A dataset's name from its annotation file: without `dataset_`, split words and shard numbers.

    Where nothing is left, or `data` alone, it is the name of the folder above that is neither.

    >>> dataset_name(Path("x/dataset_rsicd.json")), dataset_name(Path("x/rs3-val-0001.tar"))
    ('rsicd', 'rs3')
    >>> dataset_name(Path("ucm/data/train-00000-of-00001.parquet"))
    'ucm'
    """
    stem = path.name.encode(errors="replace").decode().split(".")[0].removeprefix("dataset_")
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", stem)
    words = [
        word
        for word in re.split(r"[_-]", stem)
        if word and word.lower() not in _SPLIT_WORDS and not re.fullmatch(r"\d{3,}", word)
    ]
    above = (folder.name for folder in path.parents if folder.name.lower() not in ("data", *_SPLIT_WORDS))
    return "_".join(words if words != ["data"] else []) or next(above, "") or "_".join(words) or "pairs"
