"""Captions of COCO and of what is annotated like it, one file per split; further fields are kept.

::

    {"images": [{"id": 9, "file_name": "000000000009.jpg"}],
     "annotations": [{"id": 1, "image_id": 9, "caption": "a bowl"}]}

`captions_train2017.json` lies beside or above the folder `train2017`, which holds the images.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from pmpguard.data.column_names import STANDARD
from pmpguard.data.dataset_card import CARD, dataset_card
from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.formats.image_folder import place_image
from pmpguard.data.formats.json_fields import entry_of, list_of
from pmpguard.data.formats.shards import check_split_name
from pmpguard.data.images.decode import FORMATS
from pmpguard.data.pair_rows import PairRows, dataset_name, images_in_order, json_value, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_json
from pmpguard.errors import DataError
from pmpguard.files import new_directory, write_atomic

OTHERS = ("instances_", "person_keypoints_", "stuff_", "panoptic_", "image_info_")  # files beside captions
OWN = ("id", "image_id", "caption")  # fields of an annotation


def recognise_coco(file: Peek) -> bool:
    return (
        file.is_json
        and not (file.path.name.startswith(OTHERS) and '"caption"' not in file.head)
        and file.head.startswith("{")
        and re.search(r'"(images|annotations)"\s*:\s*\[', file.head) is not None
        and re.search(r'"(file_name|coco_url|annotations)"\s*:', file.head) is not None
        and '"sentences"' not in file.head
    )


def read_coco(files: list[Path], images: Path | None) -> PairTable:
    rows = PairRows(files[0])
    for path in files:
        content, split = read_json(path), split_of_file(path)
        named = re.search(r"(train|val|test)\d{4}", path.stem)
        file_of: dict[str, str] = {}
        known_of: dict[str, Mapping[str, Any]] = {}
        for number, image in enumerate(list_of(entry_of(content, "images", str(path)), f"{path} images")):
            where = f"{path} images[{number}]"
            name = str(entry_of(image, "file_name", where))
            id = str(entry_of(image, "id", where))
            file_of[id], known_of[id] = f"{named[0]}/{name}" if named else name, image
        annotations = list_of(entry_of(content, "annotations", str(path)), f"{path} annotations")
        for number, annotation in enumerate(annotations):
            where = f"{path} annotations[{number}]"
            id = str(entry_of(annotation, "image_id", where))
            if id not in file_of:
                raise DataError(f"{where}: no image has the id {id}", fix="download the file again")
            rows.add(
                where,
                file_of[id],
                entry_of(annotation, "caption", where),
                split,
                pair_id=annotation.get("pair_id"),
                image_id=known_of[id].get("image_id"),
                label=known_of[id].get("label"),
                extra={key: value for key, value in annotation.items() if key not in (*OWN, *STANDARD)},
            )
    name = re.sub(r"^captions_?|(train|val|test)\d{4}$", "", files[0].stem) or "coco"
    return rows.build(common_folder(files), images, name if name == "coco" else dataset_name(files[0]))


def write_coco(table: PairTable, target: Path, about: Sequence[str] = ()) -> None:
    """A folder with a card, `annotations/captions_<split>.json` and the images below `images`."""
    with new_directory(target) as folder:
        (folder / "annotations").mkdir()
        numbers, placed = itertools.count(1), dict[str, str]()
        for split in table.splits():
            check_split_name(table, split)
            images: list[dict[str, Any]] = []
            annotations: list[dict[str, Any]] = []
            for number, rows in enumerate(images_in_order(table.split(split)), 1):
                name = rows[0]["image"]
                placed[name] = placed.get(name) or place_image(table, name, folder)
                width, height = _size(folder / placed[name])
                entry = {"id": number, "file_name": placed[name], "width": width, "height": height}
                of_image = {key: rows[0][key] for key in ("image_id", "label") if rows[0][key] is not None}
                images.append(entry | of_image)
                annotations += [{"id": next(numbers), "image_id": number} | _annotation(row) for row in rows]
            content = {
                "info": {"description": table.name},
                "licenses": [],
                "images": images,
                "annotations": annotations,
            }
            text = json.dumps(content, ensure_ascii=False, default=json_value)
            write_atomic(folder / "annotations" / f"captions_{split}.json", text)
        write_atomic(folder / CARD, dataset_card(table, {}, about))


def _annotation(row: Mapping[str, Any]) -> dict[str, Any]:
    gone = ("image", "split", "image_id", "label")
    return {key: value for key, value in row.items() if key not in gone and value is not None}


def _size(path: Path) -> tuple[int, int]:
    """Width and height from the header; 0 where Pillow cannot tell."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.size
    except Exception:  # a damaged file leads Pillow to raise anything
        return 0, 0


COCO = Format(
    "captions JSON of COCO, one file per split",
    recognise_coco,
    read_coco,
    write_coco,
    keeps_columns=True,
    copies_images=True,
    has_card=True,
)
